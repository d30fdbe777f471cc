"""Place the replicas of a new topic.

In: the registered brokers, the number of partitions and replicas. Out: replicas for each partition, the leader first.
It draws no random number: the caller passes the start.

Leaders go round the active brokers. A partition's other replicas prefer racks that it does not have yet, then active
brokers. A fenced one gets a replica only for want of those, and never the first (Kafka: StripedReplicaPlacer). A
cordoned broker gets none (KIP-1066).
"""

from collections import deque
from collections.abc import Sequence
from itertools import cycle, islice
from uuid import UUID

from stratalog.errors import ErrorCode, Rejected
from stratalog.metadata.image import DIRECTORY_MIGRATING, DIRECTORY_UNASSIGNED, Broker

Replicas = tuple[int, ...]


def place(
    brokers: Sequence[Broker], partitions: int, replication_factor: int, start: int
) -> list[Replicas]:
    """Return replicas for each partition; raises Rejected(INVALID_REPLICATION_FACTOR) where there are too few
    brokers.
    """
    usable = [one for one in brokers if not (one.in_controlled_shutdown or one.is_cordoned)]
    if replication_factor > len(usable):
        cordoned = sum(one.is_cordoned for one in brokers)
        besides = f" and {cordoned} cordoned" if cordoned else ""
        raise Rejected(
            ErrorCode.invalid_replication_factor,
            f"replication factor {replication_factor} with {len(usable)} brokers registered{besides}",
        )
    leaders = _alternating_racks([broker for broker in usable if broker.is_active])
    fenced = _alternating_racks([broker for broker in usable if not broker.is_active])
    if not leaders:
        raise Rejected(ErrorCode.invalid_replication_factor, "all brokers are fenced")
    laps = max(len(usable) - 1, 1)  # after these the placements repeat
    placed = []
    for partition in range(start, start + min(partitions, laps * len(leaders))):
        # Each lap begins its followers one broker further on, so that pairs of brokers do not repeat.
        lap, turn = divmod(partition, len(leaders))
        leader = leaders[turn]
        others = deque(broker for broker in leaders if broker is not leader)
        others.rotate(-(turn + lap))
        silent = deque(fenced)
        silent.rotate(-partition)
        placed.append(_with_followers(leader, [*others, *silent], replication_factor))
    return list(islice(cycle(placed), partitions))


def default_directory(broker: Broker) -> UUID:
    """Return the directory that a new replica gets: the broker's only one; of several, the broker chooses (KIP-858)."""
    match len(broker.directories):
        case 0:
            return DIRECTORY_MIGRATING
        case 1:
            return broker.directories[0]
        case _:
            return DIRECTORY_UNASSIGNED


def _with_followers(leader: Broker, others: list[Broker], replication_factor: int) -> Replicas:
    chosen = [leader]
    racks = {leader.rack}
    while len(chosen) < replication_factor:
        fresh = [broker for broker in others if broker.rack not in racks or broker.rack is None]
        if not fresh:
            # Every rack has its share: begin another round.
            racks = set()
            continue
        broker = fresh[0]
        others.remove(broker)
        chosen.append(broker)
        racks.add(broker.rack)
    return tuple(broker.id for broker in chosen)


def _alternating_racks(brokers: Sequence[Broker]) -> list[Broker]:
    """Return one broker of each rack in turn, so that neighbours are on different racks as far as possible."""
    by_rack: dict[str, list[Broker]] = {}
    for broker in sorted(brokers, key=lambda broker: broker.id):
        by_rack.setdefault(broker.rack or "", []).append(broker)
    rows = [by_rack[rack] for rack in sorted(by_rack)]
    longest = max((len(row) for row in rows), default=0)
    return [row[turn] for turn in range(longest) for row in rows if turn < len(row)]
