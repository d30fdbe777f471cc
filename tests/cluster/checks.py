"""The properties of a cluster that a run watches, and those that hold at its end.

In: the nodes of a simulated cluster. Out: counts of what happened, notes for the trace; raises `Broken` where a
property does not hold. It changes nothing.

Names of properties are those of the design: OneLeaderPerEpoch, HighWatermarkNeverFalls, CommittedDataAgrees. Two more
are those of KIP-966: each member of the ISR and each eligible replica has all that is committed, and the high watermark
stands while the ISR is below `min.insync.replicas`. A watch looks at every node each 20 ms of virtual time, so a state
that ends sooner may stay unseen.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Any

from tests.sim.cluster import Cluster
from tests.sim.machine import Machine

from stratalog.broker.partitions.partition import HostedPartition
from stratalog.metadata.image import Image, Partition
from stratalog.wire.batch import scan
from stratalog.wire.ids import TopicPartition

LOOK_S = 0.02
MIN_ISR = 2
"""The runs' `min.insync.replicas`."""


class Broken(AssertionError):
    """A property does not hold."""


class Stuck(AssertionError):
    """The cluster makes no progress, although every fault has ended."""


def hosted_by(machine: Machine) -> list[HostedPartition]:
    """Return the partitions that the machine's node has opened; none while it is down or begins to start."""
    if not machine.is_up or machine.node.broker is None:
        return []
    return list(machine.broker.hosting.by_id.values())


def images(cluster: Cluster) -> list[Image]:
    """Return the image of each running node."""
    return [one.image.image for one in quorums(cluster).values()]


def quorums(cluster: Cluster) -> dict[int, Any]:
    """Return the quorum as each running node sees it."""
    return {
        node_id: machine.node._quorum
        for node_id, machine in cluster.machines.items()
        if machine.is_up and machine.node._quorum is not None
    }


def newest(cluster: Cluster) -> Image | None:
    """Return the image that has the most records."""
    return max(images(cluster), key=lambda image: image.offset, default=None)


def partitions_of(image: Image | None, topic: str) -> dict[int, Partition]:
    """Return a topic's partitions; none while the topic is unknown."""
    found = None if image is None else image.topic(topic)
    return {} if found is None else dict(sorted(found.partitions.items()))


class Watch:
    """Looks at all nodes again and again."""

    def __init__(
        self,
        cluster: Cluster,
        counts: Counter[str],
        note: Callable[[str], None],
        topic: str,
        raise_found: Callable[[], None],
    ) -> None:
        """`raise_found` raises what was found beside the watch."""
        self._raise_found = raise_found
        self._cluster = cluster
        self._counts = counts
        self._note = note
        self._topic = topic
        self._controllers: dict[int, int] = {}
        """Epoch of the quorum: its leader."""
        self._leaders: dict[tuple[Any, int], tuple[int, int]] = {}
        """Partition and leader epoch: the leader, and which of its lives."""
        self._watermarks: dict[tuple[Any, int], int] = {}
        self._states: dict[tuple[Any, int], Partition] = {}
        """Topic id, partition and partition epoch: the partition."""
        self._latest: dict[int, Partition] = {}
        self._rewrites: dict[tuple[int, int, Any], int] = {}
        self._committed: dict[Any, int] = {}
        """Partition: the highest high watermark of any of its leaders."""
        self._newest: dict[Any, Partition] = {}
        """Each partition in its highest partition epoch."""
        self._alone: dict[Any, tuple[tuple[int, int, int], int]] = {}
        """Partition with too few in sync: its leader and epochs, and the high watermark then."""

    async def look_again_and_again(self) -> None:
        """Look until cancelled. Raises Broken."""
        while True:
            self._look()
            await asyncio.sleep(LOOK_S)

    def _look(self) -> None:
        self._raise_found()
        for node_id, quorum in quorums(self._cluster).items():
            if quorum.is_leader:
                self._one_controller(node_id, quorum.leader_epoch)
            self._same_states(quorum.image.image)
        self._elections()
        for node_id, machine in self._cluster.machines.items():
            for hosted in hosted_by(machine):
                if hosted.replica.leads:
                    self._one_leader(node_id, machine, hosted)
                life = (node_id, machine.starts, hosted.key)
                self._counts["truncations"] += hosted.rewrites - self._rewrites.get(life, 0)
                self._rewrites[life] = hosted.rewrites
            if machine.is_up and machine.node.broker is not None:
                self._passed_over_are_as_answered(node_id, machine)
        self._members_have_what_is_committed()

    def _passed_over_are_as_answered(self, node_id: int, machine: Machine) -> None:
        """Raise Broken where a follower's next fetch would pass over a partition with news for it."""
        for session in machine.broker.fetch_sessions._sessions.values():
            changes = session.changes
            if changes is None:
                continue
            follower = changes.identity[0]
            for key, remembered in session.partitions.items():
                if key in changes.marked():
                    continue
                self._counts["partitions passed over"] += 1
                hosted = machine.broker.hosting.by_id.get(key)
                wanted = remembered.requested
                expected = (
                    (wanted.current_leader_epoch, remembered.high_watermark),
                    (wanted.fetch_offset, remembered.log_start_offset, True, True),
                )
                replica, log = (None, None) if hosted is None else (hosted.replica, hosted.log)
                if (
                    replica is None
                    or log is None
                    or expected
                    != (
                        (replica.leader_epoch, replica.high_watermark),
                        (
                            log.log_end_offset,
                            log.log_start_offset,
                            replica.leads,
                            follower in replica.isr,
                        ),
                    )
                ):
                    raise Broken(f"NoNewsIsPassedOver: {node_id} for {follower}: {key}, {expected}")

    def _one_controller(self, node_id: int, epoch: int) -> None:
        before = self._controllers.setdefault(epoch, node_id)
        if before != node_id:
            raise Broken(f"OneLeaderPerEpoch: {before} and {node_id} lead the quorum in {epoch}")

    def _one_leader(self, node_id: int, machine: Machine, hosted: HostedPartition) -> None:
        if machine.broker.registration.broker_epoch < 0:
            raise Broken(f"{node_id} leads {hosted.name} before it is registered")
        replica = hosted.replica
        at = hosted.key, replica.leader_epoch
        life = node_id, machine.starts
        before = self._leaders.setdefault(at, life)
        if before != life:
            raise Broken(
                f"OneLeaderPerEpoch: {hosted.name}, epoch {at[1]}: (node, life) {before}, {life}"
            )
        if replica.high_watermark < self._watermarks.get(at, 0):
            raise Broken(
                f"HighWatermarkNeverFalls: {hosted.name}, epoch {at[1]}: {self._watermarks[at]} "
                f"became {replica.high_watermark}"
            )
        self._watermarks[at] = replica.high_watermark
        before_any = self._committed.get(hosted.key, 0)
        self._committed[hosted.key] = max(before_any, replica.high_watermark)
        self._stands_below_min_isr(node_id, hosted)

    def _stands_below_min_isr(self, node_id: int, hosted: HostedPartition) -> None:
        replica = hosted.replica
        if len(replica.isr) >= min(MIN_ISR, len(replica.replicas)):
            self._alone.pop(hosted.key, None)
            return
        self._counts["looks below min ISR"] += 1
        at = node_id, replica.leader_epoch, replica.partition_epoch
        known, watermark = self._alone.get(hosted.key, (at, replica.high_watermark))
        if known == at and replica.high_watermark > watermark:
            raise Broken(
                f"WatermarkWaitsForMinIsr: {hosted.name}, ISR {replica.isr}: {watermark} became "
                f"{replica.high_watermark}"
            )
        self._alone[hosted.key] = at, replica.high_watermark

    def _members_have_what_is_committed(self) -> None:
        """Raise Broken where a registered broker is in sync or eligible, and lacks a committed record."""
        image = newest(self._cluster)
        if image is None:
            return
        hosted = {one: hosted_by(machine) for one, machine in self._cluster.machines.items()}
        led: dict[Any, int] = {}
        """Partition: the highest partition epoch that a leader knows."""
        for ours in hosted.values():
            for one in ours:
                if one.replica.leads:
                    led[one.key] = max(led.get(one.key, -1), one.replica.partition_epoch)
        for node_id, ours in hosted.items():
            broker = image.brokers.get(node_id)
            if not ours or broker is None:
                continue
            if self._cluster.machines[node_id].broker.registration.broker_epoch != broker.epoch:
                continue  # its earlier life may have had more
            for one in ours:
                found = image.partition(*one.key)
                if found is not None:
                    self._has_what_is_committed(node_id, one, found, led.get(one.key, -1))

    def _has_what_is_committed(
        self, node_id: int, hosted: HostedPartition, found: Partition, led: int
    ) -> None:
        known = self._newest.get(hosted.key, found)
        self._newest[hosted.key] = known = max(known, found, key=lambda one: one.partition_epoch)
        if led > known.partition_epoch:
            return  # the leader knows a decision that no image shows
        committed = self._committed.get(hosted.key, 0)
        if node_id in {*known.isr, *known.eligible_leader_replicas}:
            end = hosted.log.log_end_offset
            if end < committed:
                raise Broken(
                    f"MembersHaveWhatIsCommitted: {hosted.name}: {node_id} ends at {end}, below "
                    f"{committed}; ISR {known.isr}, eligible {known.eligible_leader_replicas}"
                )

    def _same_states(self, image: Image) -> None:
        topic = image.topic(self._topic)
        for index, partition in partitions_of(image, self._topic).items():
            assert topic is not None
            at = (topic.id, index), partition.partition_epoch
            before = self._states.setdefault(at, partition)
            if before is not partition and before != partition:
                raise Broken(
                    f"CommittedDataAgrees: two states of {self._topic}-{index} in partition epoch "
                    f"{partition.partition_epoch}: {before}, {partition}"
                )

    def _elections(self) -> None:
        """Count elections and changes of ISRs; each must obey the rules of epochs."""
        for index, after in partitions_of(newest(self._cluster), self._topic).items():
            before = self._latest.get(index, after)
            if after.partition_epoch <= before.partition_epoch:
                self._latest[index] = before  # only nodes that lag are up
                continue
            self._latest[index] = after
            self._counts["elections"] += after.leader_epoch != before.leader_epoch
            self._counts["ISR changes"] += after.isr != before.isr
            self._note(
                f"{self._topic}-{index}: leader {after.leader}, epoch {after.leader_epoch}, ISR "
                f"{after.isr}, eligible {after.eligible_leader_replicas}"
            )
            if after.leader != before.leader and after.leader_epoch <= before.leader_epoch:
                raise Broken(f"{self._topic}-{index}: {after.leader} leads without a new epoch")
            if set(after.isr) & set(after.eligible_leader_replicas):
                raise Broken(f"{self._topic}-{index}: in sync and eligible: {after}")
            if after.leader >= 0 and after.leader not in after.isr:
                raise Broken(f"{self._topic}-{index}: the leader is not in sync: {after}")


# The end


def check_replicas(cluster: Cluster, name: TopicPartition) -> bytes:
    """Return the bytes of a partition's log. Raises Broken where replicas differ, or a log has a gap."""
    logs = {one.host.name: log_bytes(one, name) for one in holders(cluster, name)}
    first, *others = logs.values()
    if any(other != first for other in others):
        sizes = {host: len(data) for host, data in logs.items()}
        raise Broken(f"CommittedDataAgrees: {name}: replicas differ: {sizes} bytes")
    expected = 0
    for _, header in scan(memoryview(first)):
        if header.base_offset != expected:
            raise Broken(f"{name}: a gap before {header.base_offset}")
        expected = header.last_offset + 1
    return first


def holders(cluster: Cluster, name: TopicPartition) -> list[Machine]:
    """Return the machines with a replica, the leader's first."""
    found = partitions_of(newest(cluster), name.topic)[name.partition]
    ids = sorted(found.replicas, key=lambda one: one != found.leader)
    return [cluster.machines[one] for one in ids]


def log_bytes(machine: Machine, name: TopicPartition) -> bytes:
    """Return all batches of a machine's replica."""
    hosted = machine.partition(*name)
    disk = machine.host.disk(hosted.directory.path)
    return b"".join(bytes(disk.read(one.path, 0, one.size)) for one in hosted.log.segments)


def check_metadata(cluster: Cluster) -> None:
    """Raise Broken unless all nodes have the same image, voters, and committed batches."""
    first, *others = images(cluster)
    for other in others:
        if other != first:
            raise Broken(f"CommittedDataAgrees: images differ at {first.offset}, {other.offset}")
    voters = {one.voters.ids for one in quorums(cluster).values()}
    controllers = [one for one, m in cluster.machines.items() if m.is_controller]
    if voters != {tuple(controllers)}:
        raise Broken(f"the nodes know the voters as {voters}")
    logs = {node_id: dict(_metadata_batches(m)) for node_id, m in cluster.machines.items()}
    for one, two in combinations(logs, 2):
        for offset in logs[one].keys() & logs[two].keys():
            if logs[one][offset] != logs[two][offset]:
                raise Broken(
                    f"LogMatching: the metadata logs of {one} and {two} differ at {offset}"
                )


def _metadata_batches(machine: Machine) -> Iterator[tuple[int, bytes]]:
    """Yield the committed batches of a node's metadata log, each with its offset."""
    quorum = machine.node._quorum
    assert quorum is not None, "started"
    disk = machine.host.disk(quorum.log.directory.path)
    for segment in quorum.log.log.segments:
        data = memoryview(bytes(disk.read(segment.path, 0, segment.size)))
        for position, header in scan(data):
            if header.last_offset < quorum.high_watermark:
                yield header.base_offset, bytes(data[position : position + header.size])
