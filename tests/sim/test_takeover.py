"""A takeover restores a cluster from its bucket: the restored state, the new node's log, and the end of the old node.

Method: the real node over a bucket in virtual time. The takeover writes to a new disk, and a second machine starts on
that disk.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import pytest
from tests.sim.machine import Machine
from tests.sim.records import in_bucket, read_all
from tests.sim.test_cluster_state import INTERVAL_S, commit
from tests.sim.test_tier_service import TIERED, URL, Tale, tell
from tests.sim.world import START_MS

from stratalog.client.admin import alter_configs, fetch_offsets
from stratalog.client.aio import Client
from stratalog.client.calls import NewTopic
from stratalog.config.rules import Resource
from stratalog.errors import ErrorCode, Rejected, UserError
from stratalog.metadata.image import Topic
from stratalog.ops.takeover import Taken, take_over
from stratalog.quorum.features import INITIAL_LEVELS
from stratalog.tier.bucket.identity import delete_topic
from stratalog.tier.checking.verify import verify
from stratalog.tier.reading.reader import open_bucket
from stratalog.wire.ids import TopicPartition
from stratalog.wire.records import BatchBuilder

T = TypeVar("T")
HOUR_MS = 3600_000


def one_by_one(calls: Iterable[Callable[[], T]]) -> Iterator[T]:
    return (call() for call in calls)


def taken(tale: Tale, path: str = "/new", node_id: int | None = None) -> Taken:
    """Take the cluster over at this moment, into a new disk."""
    disk = tale.world.disk(path)
    try:
        return take_over(
            tale.store,
            path,
            disk,
            node_id,
            entropy=tale.world.outside.entropy,
            now_ms=tale.world.clock.now_ms(),
            in_order=one_by_one,
        )
    finally:
        disk.close()


def successor(tale: Tale, path: str = "/new", **settings: str) -> Machine:
    """Return a machine with the restored directory and another address."""
    return Machine(
        tale.world,
        {"tier.url": URL, "log.dirs": path, "listeners": "PLAINTEXT://127.0.0.1:9093", **settings},
    )


def topics(machine: Machine) -> dict[str, Topic]:
    return {topic.name: topic for topic in machine.broker.metadata.image.topics_by_id.values()}


async def groups_of(client: Client, group: str) -> dict[TopicPartition, int]:
    """Return a group's committed offset, once its coordinator has loaded the group."""
    for _ in range(100):
        try:
            return await client.on_coordinator(group, fetch_offsets(group))
        except Rejected as error:
            assert error.code is ErrorCode.coordinator_load_in_progress
            await asyncio.sleep(0.1)
    raise AssertionError("never loaded")


def numbered(producer_id: int, sequence: int, values: list[bytes], timestamp: int) -> bytearray:
    builder = BatchBuilder()
    for value in values:
        builder.add(None, value, timestamp)
    return builder.build(0, -1, producer_id, 0, sequence)


def test_a_takeover_restores_topics_and_offsets_and_the_log_continues() -> None:
    async def story(tale: Tale) -> None:
        await tale.start()
        await tale.create(retention_ms="123456789")
        await tale.client.create_topics([NewTopic("untiered", 3)])
        written = await tale.write()
        await commit(tale, "reader", 7)
        await tale.client.on_controller(
            alter_configs(Resource.BROKER, "1", {"log.cleaner.threads": "2"})
        )
        await asyncio.sleep(INTERVAL_S + 1)
        before = {name: topic.id for name, topic in topics(tale.machine).items()}
        await tale.machine.kill()
        _manifest, tiered = in_bucket(tale.store, "t")
        assert 0 < len(tiered) < len(written)

        done = taken(tale)
        assert (done.incarnation, done.node_id, done.moved, done.damaged) == (1, 1, 0, ())
        missing = {
            topic.name: [one.missing for one in topic.partitions] for topic in done.found.topics
        }
        assert missing["t"] == [len(written) - len(tiered)]
        assert missing["untiered"] == [0, 0, 0]

        heir = successor(tale)
        client = await heir.restart()
        assert {name: topic.id for name, topic in topics(heir).items()} == before
        assert heir.broker.metadata.topic_configs("t")["retention.ms"] == "123456789"
        assert heir.broker.metadata.dynamic_configs.own == {"log.cleaner.threads": "2"}
        assert heir.broker.metadata.image.features == INITIAL_LEVELS
        assert heir.broker.metadata.dynamic_configs.every == {"min.insync.replicas": "1"}
        assert await read_all(client, "t", 0, len(tiered)) == tiered
        assert await groups_of(client, "reader") == {("t", 0): 7}
        tale.client, tale.machine = client, heir
        more = await tale.write()
        assert min(more) == len(tiered), "the log continues where the bucket ends"
        await asyncio.sleep(10)
        assert await read_all(client, "t", 0, max(more) + 1) == tiered | more
        _manifest, now_tiered = in_bucket(tale.store, "t")
        assert len(now_tiered) > len(tiered)
        assert now_tiered == {at: (tiered | more)[at] for at in now_tiered}
        assert not verify(tale.store, now_ms=tale.world.clock.now_ms() + 2 * HOUR_MS)
        await heir.stop()

        again = taken(tale, "/third")
        assert again.incarnation == 2
        third = successor(tale, "/third")
        client = await third.restart()
        assert await read_all(client, "t", 0, len(now_tiered)) == now_tiered
        await third.stop()

    tell(story)


def test_a_commit_past_the_end_moves_to_the_end_so_that_no_new_record_is_skipped() -> None:
    async def story(tale: Tale) -> None:
        await tale.start()
        await tale.create()
        written = await tale.write()
        await tale.client.create_topics([NewTopic("untiered", 1)])
        await commit(tale, "ahead", len(written))
        await commit(tale, "lost", 5, "untiered")
        await commit(tale, "behind", 1)
        await asyncio.sleep(INTERVAL_S + 1)
        await tale.machine.kill()
        _manifest, tiered = in_bucket(tale.store, "t")
        assert taken(tale).moved == 2
        heir = successor(tale)
        client = await heir.restart()
        assert await groups_of(client, "ahead") == {("t", 0): len(tiered)}
        assert await groups_of(client, "lost") == {("untiered", 0): 0}
        assert await groups_of(client, "behind") == {("t", 0): 1}
        await heir.stop()

    tell(story)


def test_the_new_node_knows_duplicates_and_allocates_no_producer_id_twice() -> None:
    async def story(tale: Tale) -> None:
        await tale.start()
        await tale.create()
        producer_id, _epoch = await tale.client.init_producer_id()
        for sequence in range(6):
            data = numbered(producer_id, sequence, [b"%d" % sequence], START_MS + sequence * 1100)
            await tale.client.produce("t", 0, data)
        await asyncio.sleep(10)
        await tale.machine.kill()
        manifest, _tiered = in_bucket(tale.store, "t")
        assert manifest is not None
        end = manifest.tiered_end
        assert end == 5

        taken(tale)
        heir = successor(tale)
        client = await heir.restart()
        last = numbered(producer_id, 4, [b"4"], START_MS + 4 * 1100)
        assert (await client.produce("t", 0, last)).base_offset == 4, "the batch is a duplicate"
        lost = numbered(producer_id, 5, [b"5"], START_MS + 5 * 1100)
        assert (await client.produce("t", 0, lost)).base_offset == 5
        another, _epoch = await client.init_producer_id()
        assert another > producer_id + 1_000_000
        await heir.stop()

    tell(story)


@pytest.mark.parametrize("seed", range(6))
def test_a_running_old_node_commits_nothing_more_logs_it_once_and_stops(
    seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    async def story(tale: Tale) -> None:
        tale.machine.slowness = 0.3
        await tale.start()
        for name in ("a", "b"):
            await tale.create(name)
            await tale.write(name)
        writing = asyncio.create_task(tale.write("b", 60))
        await asyncio.sleep(seed / 7)
        capsys.readouterr()
        taken(tale)
        at = {name: in_bucket(tale.store, name) for name in ("a", "b")}
        await asyncio.wait((writing,))
        await tale.create("later")
        await asyncio.sleep(2 * INTERVAL_S)
        for name, (manifest, records) in at.items():
            assert manifest is not None
            assert in_bucket(tale.store, name) == (manifest, records)
            assert manifest.leader_epoch >= 1000
        (reason,) = tale.machine.reasons_to_stop
        assert "was taken over at 2023-11-14" in reason
        assert "its incarnation is 1, this node's is 0" in reason
        said = capsys.readouterr().out
        assert said.count("fenced") == 1, said
        await tale.machine.stop()

        heir = successor(tale)
        client = await heir.restart()
        for name, (_manifest, records) in at.items():
            assert await read_all(client, name, 0, len(records)) == records
        assert "later" not in topics(heir)
        with pytest.raises(UserError, match=r"taken over.*can be read without tier\.url"):
            await tale.machine.start()
        alone = Machine(tale.world, {"tier.url": ""})
        await alone.start()
        assert set(topics(alone)) == {"a", "b", "later"}, "the old node still has its local topics"
        await alone.stop()
        await heir.stop()

    tell(story, seed)


def test_a_deletion_on_the_old_node_does_not_reach_the_new_one() -> None:
    async def story(tale: Tale) -> None:
        await tale.start()
        for name in ("early", "late"):
            await tale.create(name)
            await tale.write(name)
        await asyncio.sleep(INTERVAL_S + 1)
        taken(tale)
        kept = {name: in_bucket(tale.store, name)[1] for name in ("early", "late")}
        late = topics(tale.machine)["late"].id
        await tale.client.delete_topics(["early"])
        # As if the old node had checked its incarnation just before the takeover.
        delete_topic(tale.store, tale.machine.broker.cluster.cluster_id, late, 0)
        await asyncio.sleep(2 * INTERVAL_S)
        assert len(tale.machine.reasons_to_stop) == 1
        await tale.machine.stop()
        heir = successor(tale)
        client = await heir.restart()
        await asyncio.sleep(2 * INTERVAL_S)
        for name, records in kept.items():
            assert in_bucket(tale.store, name)[1] == records
            assert await read_all(client, name, 0, len(records)) == records
        await heir.stop()

    tell(story)


def test_an_old_node_notices_the_takeover_at_the_first_topic_it_creates() -> None:
    """No node has written a manifest of that topic with a higher epoch."""

    async def story(tale: Tale) -> None:
        await tale.start()
        await asyncio.sleep(INTERVAL_S + 1)
        taken(tale)
        await tale.create()
        await asyncio.sleep(INTERVAL_S / 3)
        assert len(tale.machine.reasons_to_stop) == 1
        await tale.machine.stop()

    tell(story)


def test_a_topic_that_an_old_node_created_too_late_leaves_the_bucket() -> None:
    async def story(tale: Tale) -> None:
        await tale.start()
        await tale.create("early")
        kept = await tale.write("early")
        await asyncio.sleep(INTERVAL_S + 1)
        taken(tale)
        await tale.create("late")
        await tale.write("late")
        await asyncio.sleep(INTERVAL_S / 3)
        assert len(tale.machine.reasons_to_stop) == 1
        await tale.machine.stop()
        bucket = open_bucket(tale.store)
        assert {topic.name for topic in bucket.topics()} == {"early", "late"}
        heir = successor(tale)
        client = await heir.restart()
        (made,) = await client.create_topics([NewTopic("empty", 1, configs=TIERED)])
        assert made.error == ErrorCode.none
        await asyncio.sleep(INTERVAL_S)
        assert {topic.name for topic in bucket.topics()} == {"early", "empty"}
        tiered = in_bucket(tale.store, "early")[1]
        assert tiered
        assert await read_all(client, "early", 0, len(tiered)) == {at: kept[at] for at in tiered}
        assert not verify(tale.store, now_ms=tale.world.clock.now_ms(), grace_ms=0)
        await heir.stop()

    tell(story)


def test_an_idle_old_node_notices_the_takeover_at_its_next_start_or_change() -> None:
    async def story(tale: Tale) -> None:
        await tale.start()
        await tale.create()
        await tale.write()
        await asyncio.sleep(3 * INTERVAL_S)
        taken(tale)
        await asyncio.sleep(10 * INTERVAL_S)
        assert not tale.machine.reasons_to_stop, (
            "nothing changes, so the node does not read the bucket"
        )
        await tale.write(count=1)
        await asyncio.sleep(INTERVAL_S + 1)
        assert len(tale.machine.reasons_to_stop) == 1
        await tale.machine.stop()

    tell(story)


def test_an_old_node_notices_the_takeover_once_its_bucket_is_reachable() -> None:
    async def story(tale: Tale) -> None:
        await tale.start()
        await tale.create()
        await tale.write()
        await asyncio.sleep(INTERVAL_S + 1)
        await tale.machine.kill()
        taken(tale)
        tale.store.down = True
        await tale.start()
        await asyncio.sleep(5)
        assert not tale.machine.reasons_to_stop
        manifest = in_bucket(tale.store.store, "t")
        tale.store.down = False
        await asyncio.sleep(40)
        assert len(tale.machine.reasons_to_stop) == 1
        assert in_bucket(tale.store, "t") == manifest
        await tale.machine.stop()

    tell(story)


def test_a_restored_node_as_another_one_has_its_settings() -> None:
    async def story(tale: Tale) -> None:
        await tale.start()
        await tale.create()
        await tale.client.on_controller(
            alter_configs(Resource.BROKER, "1", {"log.cleaner.threads": "2"})
        )
        await asyncio.sleep(INTERVAL_S + 1)
        await tale.machine.kill()
        taken(tale, node_id=7)
        heir = successor(tale, **{"node.id": "7"})
        client = await heir.restart()
        assert heir.broker.metadata.dynamic_configs.own == {"log.cleaner.threads": "2"}
        written = await client.produce("t", 0, numbered(-1, -1, [b"x"], START_MS))
        assert written.base_offset == 0
        await heir.stop()

    tell(story)
