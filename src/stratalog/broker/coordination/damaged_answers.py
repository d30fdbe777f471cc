"""Count the damaged answers of other nodes, and log the first of each kind.

In: answers that this node discarded, with the reasons. Out: counts by API, log lines. It discards nothing itself, and
never ends anything: the caller asks again.

Kafka: KAFKA-18723.
"""

from collections import Counter

import structlog

from stratalog.broker.metrics import is_power_of_ten
from stratalog.wire.apis import APIS

__all__ = ["DamagedAnswers"]

_log = structlog.get_logger()


class DamagedAnswers:
    """Those that one node received since its start."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        """By the name of the API; the empty name is for bytes that answer nothing."""
        self._by_node: Counter[tuple[str, str]] = Counter()

    def note(self, node: str, api_key: int | None, reason: str) -> None:
        """Count an answer; log the first of a node to an API, the tenth, the hundredth and so on.

        `node` is an id or an address, as the caller knows the other node.
        """
        api = "" if api_key is None else APIS[api_key].name
        self.counts[api] += 1
        self._by_node[node, api] += 1
        count = self._by_node[node, api]
        if is_power_of_ten(count):
            _log.warning("damaged answer", node=node, api=api, reason=reason, count=count)
