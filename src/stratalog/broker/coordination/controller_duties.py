"""Repeat the regular work of the active controller: fence silent brokers, give leaderships back, grow internal topics,
remove expired delegation tokens.

In: settings, the quorum. Out: calls of the active controller, while this node has it. It decides nothing.

Kafka: PeriodicTaskControlManager; `maybeFenceReplicas` and `electPreferred` of QuorumController.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from stratalog.broker.background import Background
from stratalog.broker.coordination.active_controller import ActiveController
from stratalog.broker.coordination.metadata_quorum import MetadataQuorum
from stratalog.config import BrokerConfig
from stratalog.errors import Rejected

__all__ = ["repeat_duties"]

_GROWTH_S: Final = 10.0
"""Kafka has no such duty. A broker that joins has few replicas for so long anyway."""


def repeat_duties(config: BrokerConfig, background: Background, quorum: MetadataQuorum) -> None:
    """Do the regular work until the background ends. On nodes without the active controller it does nothing."""

    def repeat(
        work: Callable[[ActiveController], Awaitable[float | None]], interval_s: float
    ) -> None:
        async def once() -> float | None:
            if quorum.active is not None:
                with suppress(Rejected):  # another node has the active controller now
                    return await work(quorum.active)
            return None

        background.repeat(once, interval_s)

    # A controller that becomes active meanwhile gives each broker a full session from then on.
    session_s = config.int("broker.session.timeout.ms") / 1000
    repeat(ActiveController.fence_stale_brokers, session_s)
    repeat(ActiveController.grow_internal_topics, _GROWTH_S)
    sweep_s = config.int("delegation.token.expiry.check.interval.ms") / 1000
    repeat(ActiveController.remove_expired_tokens, sweep_s)
    if config.bool("auto.leader.rebalance.enable"):
        interval_s = config.int("leader.imbalance.check.interval.seconds")
        repeat(ActiveController.balance_leaders, interval_s)
