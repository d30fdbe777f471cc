"""Choose new places for replicas, and estimate the cost of their moves.

In: partitions with their replicas, brokers with their racks, bytes. Out: replicas for each partition; an estimate of
the bytes and the time of the moves. It moves as few replicas as possible, and contacts no broker.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from stratalog.errors import UserError
from stratalog.wire.ids import TopicPartition

__all__ = ["MoveCost", "cost_of", "replica_counts", "spread"]

Replicas = tuple[int, ...]


def replica_counts(of_partitions: Iterable[Sequence[int]]) -> Counter[int]:
    """Return how many replicas each broker holds."""
    return Counter(node for replicas in of_partitions for node in replicas)


def spread(
    partitions: Mapping[TopicPartition, Replicas],
    allowed: Mapping[int, str | None],
    factor: int | None = None,
    counts: Mapping[int, int] | None = None,
    closed: Collection[int] = (),
) -> dict[TopicPartition, Replicas]:
    """Place partitions on the brokers in `allowed` (node id -> rack); return only those that change.

    A replica on such a broker stays, in its order. A new replica goes to a rack without one of the partition, then to
    the broker with the fewest replicas. `counts` has the replicas that each broker holds, `factor` the new number of
    replicas. Brokers in `closed` keep replicas and get none. Raises UserError where there are fewer brokers than
    replicas.
    """
    load = {node: (counts or {}).get(node, 0) for node in allowed}
    changed = {}
    for partition, before in sorted(partitions.items()):
        wanted = factor or len(before)
        may_hold = [node for node in allowed if node in before or node not in closed]
        if wanted > len(may_hold):
            nodes = ", ".join(map(str, sorted(may_hold))) or "none"
            raise UserError(
                f"{partition} needs {wanted} replicas, and {len(may_hold)} broker(s) may hold one ({nodes})"
            )
        after = _placed(
            [node for node in before if node in allowed][:wanted],
            wanted,
            {node: allowed[node] for node in may_hold},
            load,
        )
        for node in set(after) - set(before):
            load[node] += 1
        for node in (set(before) - set(after)) & load.keys():
            load[node] -= 1
        if after != before:
            changed[partition] = after
    return changed


def _placed(
    kept: list[int], wanted: int, allowed: Mapping[int, str | None], load: Mapping[int, int]
) -> Replicas:
    while len(kept) < wanted:
        racks = [allowed[node] for node in kept]
        kept.append(
            min(
                (node for node in allowed if node not in kept),
                key=lambda node: (racks.count(allowed[node]), load[node], node),
            )
        )
    return tuple(kept)


@dataclass(frozen=True, slots=True)
class MoveCost:
    """The cost of new places: bytes over the network, and the brokers that send, receive or drop replicas."""

    moved_bytes: int
    received_bytes: Mapping[int, int]
    brokers: Collection[int]

    def seconds(self, throttle: float) -> float:
        """Return the time of the move where each broker receives `throttle` bytes a second."""
        return max(self.received_bytes.values(), default=0) / throttle


def cost_of(
    changed: Mapping[TopicPartition, Sequence[int]],
    before: Mapping[TopicPartition, Sequence[int]],
    leaders: Mapping[TopicPartition, int],
    local_bytes: Mapping[TopicPartition, int],
) -> MoveCost:
    """Estimate a move; `local_bytes` is what each partition's leader has on its disk, which a new replica fetches."""
    received: dict[int, int] = {}
    brokers: set[int] = set()
    for partition, after in changed.items():
        adding, removing = set(after) - set(before[partition]), set(before[partition]) - set(after)
        brokers |= adding | removing
        for node in adding:
            brokers.add(leaders[partition])
            received[node] = received.get(node, 0) + local_bytes.get(partition, 0)
    return MoveCost(sum(received.values()), received, brokers - {-1})
