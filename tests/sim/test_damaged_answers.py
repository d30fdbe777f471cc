"""A node that sends damaged answers ends no other node and no task of it; the others discard, count and ask again.

Method: three nodes in virtual time, and a lie about the answers between them (`lies.py`).
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs
from tests.sim.cluster import Cluster, host_of
from tests.sim.disk import SimDisk, paths
from tests.sim.lies import Answer, lying
from tests.sim.loop import run
from tests.sim.test_quorum import on_three, write, written
from tests.sim.world import World

from stratalog.broker.storage.survey import METADATA_DIRECTORY
from stratalog.client import calls
from stratalog.client.admin import alter_configs
from stratalog.client.calls import NewTopic
from stratalog.errors import ErrorCode, UserError
from stratalog.wire.batch import HEADER_SIZE, scan

FETCH, VOTE, FETCH_SNAPSHOT = 1, 52, 59
Change = Callable[[Answer, int, Any], tuple[int, Any]]
SMALL = {"metadata.log.max.record.bytes.between.snapshots": "2000"}


class Lies:
    """Changes answers while `is_on`; counts those that it changed."""

    def __init__(self, change: Change | None = None) -> None:
        self.change = change
        self.liars: set[str] = set()
        self.changes = 0

    def damaged(self, answer: Answer) -> memoryview:
        return answer.frame

    def changed(self, answer: Answer, correlation_id: int, body: Any) -> tuple[int, Any]:
        if answer.sender not in self.liars or self.change is None:
            return correlation_id, body
        changed = self.change(answer, correlation_id, body)
        self.changes += changed != (correlation_id, body)
        return changed


def fetched(body: Any, **changes: Any) -> Any:
    """Return the answer to a Fetch of the metadata log with other fields."""
    topic = body.responses[0]
    return replace(
        body, responses=[replace(topic, partitions=[replace(topic.partitions[0], **changes)])]
    )


def flip_records(answer: Answer, correlation_id: int, body: Any) -> tuple[int, Any]:
    """Damage the last byte of the first batch that the leader sends."""
    if answer.api_key != FETCH or not body.responses:
        return correlation_id, body
    records = bytearray(body.responses[0].partitions[0].records or b"")
    if records:
        _, header = next(scan(records))
        records[header.size - 1] ^= 1
    return correlation_id, fetched(body, records=memoryview(records))


def counted(cluster: Cluster) -> dict[int, dict[str, int]]:
    """Return the damaged answers that each node counted, by API."""
    quorums = cluster.quorums().items()
    return {one: dict(quorum._driver._answers.counts) for one, quorum in quorums}


@pytest.mark.parametrize("seed", range(3))
def test_a_corrupt_metadata_batch_stops_no_follower(seed: int) -> None:
    lies = Lies(flip_records)

    async def tell(cluster: Cluster) -> None:
        leader = await cluster.until_active()
        await write(cluster, "before")
        await cluster.until_equal()
        lies.liars = {host_of(leader)}
        writing = asyncio.create_task(write(cluster, "meanwhile"))
        await cluster.until(lambda: lies.changes >= 4, "damaged answers")
        lies.liars = set()
        await writing
        await cluster.until_equal()
        followers = set(cluster.machines) - {leader}
        counts = counted(cluster)
        assert sum(counts[one]["fetch"] for one in followers) == lies.changes
        assert all(written(cluster, one) == {"before", "meanwhile"} for one in cluster.machines)
        assert cluster.active() == leader, "a short fault costs no election"

    with lying(lies), capture_logs() as logged:
        on_three(tell, seed)
    lines = [one for one in logged if one["event"] == "damaged answer"]
    assert {one["count"] for one in lines} == {1}, "the first of each node is logged"
    assert "the CRC of the batch at offset" in lines[0]["reason"]


@pytest.mark.parametrize("seed", range(3))
def test_a_leader_that_sends_nothing_but_damage_loses_the_lead(seed: int) -> None:
    lies = Lies(flip_records)

    async def tell(cluster: Cluster) -> None:
        leader = await cluster.until_active()
        await write(cluster, "before")
        await cluster.until_equal()
        lies.liars = {host_of(leader)}
        # It is in no other log: the record is lost with the lead.
        lost = asyncio.create_task(write(cluster, "lost"))
        heir = await cluster.until_active(but=leader)
        await write(cluster, "after", on=heir)
        await asyncio.gather(lost, return_exceptions=True)
        await cluster.until_equal()
        assert {"before", "after"} <= written(cluster, leader)

    with lying(lies):
        on_three(tell, seed)


def metadata_file(cluster: Cluster, node_id: int, ending: str) -> tuple[SimDisk, str]:
    disk = cluster.machines[node_id].host.disk("/data")
    found = [one for one in paths(disk, METADATA_DIRECTORY) if one.endswith(ending)]
    return disk, max(found)


async def lag_behind(cluster: Cluster, node_id: int) -> None:
    """Kill a node, and write records that only the others have."""
    await cluster.machines[node_id].kill()
    for number in range(5):
        await write(cluster, f"missed {number}")


@pytest.mark.parametrize("seed", range(3))
def test_a_leader_that_finds_its_own_log_damaged_resigns_and_repairs_itself(seed: int) -> None:
    async def tell(cluster: Cluster) -> None:
        leader = await cluster.until_active()
        others = [one for one in cluster.machines if one != leader]
        await lag_behind(cluster, others[0])
        quorum = cluster.quorum(leader)
        quorum.log.log.tail.clear()  # as later: the batches are on the disk alone
        disk, path = metadata_file(cluster, leader, ".log")
        disk.flip(path, disk.size(path) - 1)
        await cluster.machines[others[0]].start()
        heir = await cluster.until_active(but=leader)
        assert heir == others[1], "the other one had no such record"
        await write(cluster, "after", on=heir)
        await cluster.until_equal()
        assert "missed 4" in written(cluster, others[0])
        await cluster.until(lambda: quorum.log.snapshot is not None, "a snapshot")
        await asyncio.sleep(1)
        # The snapshot has the place of the damaged batch: the node starts again, on its own.
        await cluster.machines[leader].stop()
        await cluster.machines[leader].start()
        await cluster.until_equal()
        assert "after" in written(cluster, leader)

    with capture_logs() as logged:
        on_three(tell, seed)
    assert [one["event"] for one in logged].count("log unreadable") == 1


def test_a_node_that_starts_with_a_damaged_log_is_refused_with_one_line() -> None:
    async def tell(cluster: Cluster) -> None:
        leader = await cluster.until_active()
        follower = next(one for one in cluster.machines if one != leader)
        for number in range(5):
            await write(cluster, f"t{number}")
        await cluster.until_equal()
        await cluster.machines[follower].stop()
        disk, path = metadata_file(cluster, follower, ".log")
        disk.flip(path, HEADER_SIZE + 2)
        with pytest.raises(UserError, match=r"__cluster_metadata-0.*restore the node"):
            await cluster.machines[follower].start()
        disk.flip(path, HEADER_SIZE + 2)
        await cluster.machines[follower].start()

    on_three(tell)


def test_a_node_that_cannot_replay_its_own_log_stops_with_one_line_and_the_others_go_on() -> None:
    async def whole() -> None:
        cluster = Cluster(World(1), roles=dict.fromkeys((1, 2, 3), "controller"))
        await cluster.start()
        leader = await cluster.until_active()
        late = other_than(leader, cluster)
        quorum = cluster.quorum(late)
        await quorum._image_turn.acquire()  # it has the records on its disk, and not in its image
        await write(cluster, "written")
        await cluster.until(lambda: quorum.high_watermark > quorum.image.image.offset + 1, "a lag")
        quorum.log.log.tail.clear()
        disk, path = metadata_file(cluster, late, ".log")
        disk.flip(path, disk.size(path) - 1)
        quorum._image_turn.release()
        machine = cluster.machines[late]
        await cluster.until(lambda: bool(machine.reasons_to_stop), "its end")
        (reason,) = machine.reasons_to_stop
        assert "__cluster_metadata-0" in reason
        assert "has a wrong CRC" in reason
        await write(cluster, "after", on=leader)
        await cluster.stop()

    run(whole())


async def until_snapshot(cluster: Cluster, node_id: int) -> None:
    """Write until a node has a snapshot, and what came before is gone from its log."""
    quorum = cluster.quorum(node_id)
    number = 0
    while quorum.log.snapshot is None or quorum.log.start_offset < 20:
        await write(cluster, f"t{number}")
        number += 1
        assert number < 400, "no snapshot"


def flip_snapshot(answer: Answer, correlation_id: int, body: Any) -> tuple[int, Any]:
    if answer.api_key != FETCH_SNAPSHOT:
        return correlation_id, body
    part = body.topics[0].partitions[0]
    data = bytearray(part.unaligned_records)
    data[len(data) // 2] ^= 1
    part = replace(part, unaligned_records=memoryview(data))
    return correlation_id, replace(body, topics=[replace(body.topics[0], partitions=[part])])


@pytest.mark.parametrize("seed", range(3))
def test_a_damaged_snapshot_is_fetched_again_and_changes_nothing(seed: int) -> None:
    lies = Lies(flip_snapshot)

    async def tell(cluster: Cluster) -> None:
        leader = await cluster.until_active()
        late = next(one for one in cluster.machines if one != leader)
        await cluster.until_equal()
        await cluster.machines[late].kill()
        await until_snapshot(cluster, leader)
        before = written(cluster, leader)
        lies.liars = {host_of(leader)}
        starting = asyncio.create_task(cluster.machines[late].start())
        await cluster.until(lambda: lies.changes >= 3, "damaged snapshots")
        quorum = cluster.quorum(late)
        assert quorum.log.snapshot is None
        assert not [
            one
            for one in paths(cluster.machines[late].host.disk("/data"))
            if one.endswith(".checkpoint")
        ]
        lies.liars = set()
        await starting
        await cluster.until_equal()
        assert before <= written(cluster, late)
        assert counted(cluster)[late]["fetch_snapshot"] >= 3
        # What was discarded is not in the way of the next start.
        await cluster.machines[late].stop()
        await cluster.machines[late].start()

    with lying(lies):
        on_three(tell, seed, settings=SMALL)


@pytest.mark.parametrize("seed", range(3))
def test_a_leader_whose_snapshot_is_damaged_resigns_and_writes_another(seed: int) -> None:
    async def tell(cluster: Cluster) -> None:
        leader = await cluster.until_active()
        late, other = (one for one in cluster.machines if one != leader)
        await cluster.until_equal()
        await cluster.machines[late].kill()
        await until_snapshot(cluster, leader)
        await asyncio.sleep(1)  # the last snapshot is written
        disk, path = metadata_file(cluster, leader, ".checkpoint")
        disk.flip(path, disk.size(path) // 2)
        await cluster.machines[late].start()
        heir = await cluster.until_active(but=leader)
        assert heir == other
        await cluster.until_equal()
        assert written(cluster, late) == written(cluster, leader)
        await asyncio.sleep(1)
        await cluster.machines[leader].stop()
        await cluster.machines[leader].start()

    on_three(tell, seed, settings=SMALL)


# Answers of the controller to brokers


BROKERS: dict[str, Any] = {"roles": None, "settings": {"default.replication.factor": "3"}}
ENVELOPE, REGISTRATION = 58, 62


def other_than(node_id: int, cluster: Cluster) -> int:
    return next(one for one in cluster.machines if one != node_id)


def set_retention(value: int) -> Any:
    return alter_configs(calls.TOPIC, "t", {"retention.ms": str(value)})


@pytest.mark.parametrize(
    "lie",
    [
        lambda data: None,
        lambda data: b"",
        lambda data: bytes(data[:-3]),
        lambda data: b"\xff" * len(data),
        lambda data: bytes([data[0] ^ 1, *data[1:]]),
    ],
    ids=["none", "empty", "cut off", "noise", "another request's"],
)
def test_a_damaged_envelope_reaches_no_client(lie: Callable[[bytes], bytes | None]) -> None:
    def change(answer: Answer, number: int, body: Any) -> tuple[int, Any]:
        if answer.api_key != ENVELOPE:
            return number, body
        lies.liars = set()  # once
        return number, replace(body, response_data=lie(bytes(body.response_data)))

    lies = Lies(change)

    async def tell(cluster: Cluster) -> None:
        leader = await cluster.until_active()
        asked = other_than(leader, cluster)
        client = await cluster.machines[asked].connect()
        await client.create_topics([NewTopic("t", 1)])
        lies.liars = {host_of(leader)}
        altered = await client.call(set_retention(1000), asked)
        assert lies.changes == 1
        assert altered.error is ErrorCode.none, "the broker has asked again"
        assert counts_of(cluster, asked) == {"envelope": 1}

    with lying(lies):
        on_three(tell, **BROKERS)


def counts_of(cluster: Cluster, node_id: int) -> dict[str, int]:
    return dict(cluster.machines[node_id].broker.answers.counts)


@pytest.mark.parametrize("epoch", [-1, 0, 1, 1 << 40])
def test_a_broker_takes_its_epoch_from_the_metadata(epoch: int) -> None:
    """A lower one would be of an earlier life, whose leaderships are not this one's; a higher one never comes."""

    def change(answer: Answer, number: int, body: Any) -> tuple[int, Any]:
        if answer.api_key != REGISTRATION or lies.changes:
            return number, body
        return number, replace(body, error_code=0, broker_epoch=epoch)

    lies = Lies(change)

    async def tell(cluster: Cluster) -> None:
        leader = await cluster.until_active()
        late = other_than(leader, cluster)
        await cluster.machines[late].stop()
        lies.liars = {host_of(leader)}
        await cluster.machines[late].start()
        assert lies.changes == 1
        broker = cluster.machines[late].broker
        own = broker.metadata.image.brokers[late]
        assert broker.registration.broker_epoch == own.epoch
        assert own.is_active

    with lying(lies):
        on_three(tell, **BROKERS)


def test_one_damaged_answer_of_its_own_address_ends_no_controller() -> None:
    """A node that asks its own address which node serves there gets INVALID_VOTER_KEY twice from another one."""
    refused: Counter[str] = Counter()
    """By node, its own answers; every second one is damaged."""

    def change(answer: Answer, number: int, body: Any) -> tuple[int, Any]:
        if answer.api_key != VOTE or answer.asker != answer.sender:
            return number, body
        refused[answer.asker] += 1
        if refused[answer.asker] % 2:
            return number, body
        topic = body.topics[0]
        row = replace(topic.partitions[0], error_code=ErrorCode.invalid_voter_key)
        return number, replace(body, topics=[replace(topic, partitions=[row])])

    lies = Lies(change)

    async def tell(cluster: Cluster) -> None:
        await cluster.until_active()
        lies.liars = {host_of(one) for one in cluster.machines}
        await cluster.until(lambda: lies.changes > 5, "damaged answers")
        lies.liars = set()

    with lying(lies, to_itself=True):
        on_three(tell)
