"""Bugs that replication may have, each as a patch of the product, for `python -m tests.cluster --bugs`.

In: the name of a bug. Out: a context in which every node has that bug. Some seed must find each.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from stratalog.broker.apis import fetch
from stratalog.broker.coordination.cluster_image import ClusterImage
from stratalog.quorum import elections
from stratalog.replication.partition import PartitionReplica

Patch = tuple[Any, str, Any]


def acknowledged_before_the_isr() -> Iterator[Patch]:
    """The leader's own log end is the high watermark."""

    def advance(self: Any) -> bool:
        moved = self.log_end_offset > self.high_watermark
        self.high_watermark = max(self.high_watermark, self.log_end_offset)
        return moved

    yield PartitionReplica, "_advance", advance


def watermark_from_one_replica() -> Iterator[Patch]:
    """The high watermark is where the fastest follower is."""

    def advance(self: Any) -> bool:
        ends = [one.log_end_offset for one in self.followers.values()]
        reached = min(self.log_end_offset, max(ends, default=self.log_end_offset))
        moved = reached > self.high_watermark
        self.high_watermark = max(self.high_watermark, reached)
        return moved

    yield PartitionReplica, "_advance", advance


def unclean_election() -> Iterator[Patch]:
    """The controller elects any replica that is alive."""
    real = elections._elect

    def elect(before: Any, replicas: Any, isr: Any, elr: Any, election: Any, rules: Any) -> Any:
        for broker in replicas:
            if broker != before.leader and rules.may_lead(broker):
                return elections._Elected(broker, unclean=True)
        return real(before, replicas, isr, elr, election, rules)

    yield elections, "_elect", elect


def no_truncation() -> Iterator[Patch]:
    """The leader sees no divergence, so a follower keeps what only it has."""

    def none(*_: Any) -> None:
        return None

    yield fetch, "diverging_epoch", none


def isr_joined_too_early() -> Iterator[Patch]:
    """A follower joins the ISR before it has what is committed."""

    def joins(self: Any, node_id: int) -> bool:
        follower = self.followers[node_id]
        return bool(follower.log_end_offset >= 0)

    yield PartitionReplica, "_joins", joins


def acts_before_it_registered() -> Iterator[Patch]:
    """A node that starts acts on metadata that names its earlier incarnation as a leader."""

    def hold(self: Any) -> Any:
        self._acts = True
        return self.image

    yield ClusterImage, "hold", hold


BUGS: dict[str, Callable[[], Iterator[Patch]]] = {
    "acknowledged before the ISR": acknowledged_before_the_isr,
    "watermark from one replica": watermark_from_one_replica,
    "unclean election": unclean_election,
    "no truncation": no_truncation,
    "ISR joined too early": isr_joined_too_early,
    "acts before it registered": acts_before_it_registered,
}


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Plant one bug in every node."""
    with ExitStack() as stack:
        for owner, attribute, value in BUGS[name]():
            stack.enter_context(patch.object(owner, attribute, value))
        yield
