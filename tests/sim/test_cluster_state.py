"""The cluster's state in the bucket: the times of its uploads, its contents, and that no client waits for them.

Method: the real node over a bucket that a test switches off and on, in virtual time.
"""

import asyncio

from tests.sim.test_tier_service import Tale, tell

from stratalog.client.admin import alter_configs, commit_offsets, find_coordinator
from stratalog.client.calls import NewTopic
from stratalog.config.rules import Resource
from stratalog.errors import ErrorCode
from stratalog.tier.bucket.cluster_state import KEPT_STATES, ClusterState, newest_state
from stratalog.tier.checking.verify import verify
from stratalog.wire.ids import TopicPartition

INTERVAL_S = 30.0
STATE = "/cluster/state/"


async def commit(tale: Tale, group: str, offset: int, topic: str = "t") -> None:
    """Commit an offset as a consumer without a group membership does."""
    await tale.client.on_any(find_coordinator(group))  # creates the offsets topic
    call = commit_offsets(group, {TopicPartition(topic, 0): offset})
    await tale.client.on_coordinator(group, call)


def uploaded(tale: Tale) -> ClusterState:
    state, damaged = newest_state(tale.store, tale.machine.broker.cluster.cluster_id, 0)
    assert state is not None
    assert not damaged
    return state


def uploaded_offset(tale: Tale, group: str) -> int:
    (kept,) = uploaded(tale).groups[group]
    return kept.offset


def versions(tale: Tale) -> list[str]:
    return [info.path for info in tale.store.list("") if STATE in info.path]


def test_the_bucket_has_topics_settings_and_offsets_within_the_interval() -> None:
    async def story(tale: Tale) -> None:
        await tale.start()
        await tale.create(retention_ms="12345")
        await tale.client.create_topics([NewTopic("untiered", 3)])
        await tale.write()
        await commit(tale, "g", 7)
        settings = {
            "": {"log.cleaner.threads": "2"},
            "1": {"listener.name.plaintext.ssl.key.password": "a secret"},
        }
        for name, changes in settings.items():
            altered = alter_configs(Resource.BROKER, name, changes)
            assert (await tale.client.on_controller(altered)).error is ErrorCode.none
        await asyncio.sleep(INTERVAL_S + 1)
        state = uploaded(tale)
        assert (state.incarnation, state.node_id) == (0, 1)
        topics = {topic.name: topic for topic in state.topics}
        assert set(topics) == {"t", "untiered", "__consumer_offsets"}
        assert topics["t"].configs["retention.ms"] == "12345"
        assert len(topics["untiered"].partitions) == 3
        (end,) = {one.end_offset for one in topics["t"].partitions}
        assert end == tale.machine.partition("t").log.log_end_offset
        assert topics["t"].partitions[0].leader_epoch == 0
        (kept,) = state.groups["g"]
        assert (kept.topic, kept.partition, kept.offset) == ("t", 0, 7)
        assert kept.topic_id == topics["t"].topic_id
        assert state.brokers == {
            "": {"log.cleaner.threads": "2", "min.insync.replicas": "1"},
            "1": {},
        }
        assert "a secret" not in str(state), "a bucket holds no secrets"
        assert not verify(tale.store, now_ms=tale.world.clock.now_ms() + 2 * 3600_000)
        await tale.machine.stop()

    tell(story)


def test_the_node_sends_the_bucket_no_request_while_nothing_changes() -> None:
    async def story(tale: Tale) -> None:
        await tale.start()
        await tale.create()
        await commit(tale, "g", 7)
        await asyncio.sleep(3 * INTERVAL_S)
        tale.store.calls.clear()
        await asyncio.sleep(20 * INTERVAL_S)
        assert not [call for call in tale.store.calls if "/cluster/" in call[1]]
        await commit(tale, "g", 8)
        await asyncio.sleep(INTERVAL_S + 1)
        assert uploaded_offset(tale, "g") == 8
        await tale.machine.stop()

    tell(story)


def test_a_clean_stop_uploads_the_latest_commits_and_a_restart_continues() -> None:
    async def story(tale: Tale) -> None:
        await tale.start()
        await tale.create()
        await commit(tale, "g", 7)
        await tale.machine.stop()
        assert uploaded_offset(tale, "g") == 7
        before = uploaded(tale).version
        await tale.start()
        await asyncio.sleep(INTERVAL_S + 1)
        assert uploaded_offset(tale, "g") == 7
        assert uploaded(tale).version == before + 1, "the restart gives leaders new epochs"
        await tale.machine.stop()

    tell(story)


def test_few_versions_are_kept() -> None:
    async def story(tale: Tale) -> None:
        await tale.start()
        await tale.create()
        for offset in range(3 * KEPT_STATES):
            await commit(tale, "g", offset)
            await asyncio.sleep(INTERVAL_S)
        assert len(versions(tale)) == KEPT_STATES
        assert uploaded_offset(tale, "g") >= 3 * KEPT_STATES - 2
        await tale.machine.stop()

    tell(story)


def test_producing_goes_on_while_the_bucket_fails_and_the_state_follows_later() -> None:
    async def story(tale: Tale) -> None:
        await tale.start()
        await tale.create()
        await asyncio.sleep(INTERVAL_S + 1)
        tale.store.down = True
        await commit(tale, "g", 7)
        await tale.write()
        await asyncio.sleep(5 * INTERVAL_S)
        assert "g" not in state_in_the_bucket(tale)
        tale.store.down = False
        await asyncio.sleep(INTERVAL_S + 6)  # the longest wait after a failure, a fifth more
        assert uploaded_offset(tale, "g") == 7
        tale.store.kinds = ("after", "late")  # type: ignore[assignment]
        tale.store.trouble = 0.5
        for offset in range(20):
            await commit(tale, "g", offset)
            await asyncio.sleep(INTERVAL_S)
        tale.store.trouble = 0.0
        tale.store.arrive()
        await asyncio.sleep(2 * INTERVAL_S)
        assert uploaded_offset(tale, "g") == 19
        await tale.machine.stop()

    tell(story)


def state_in_the_bucket(tale: Tale) -> dict[str, object]:
    """Return the offsets in the bucket's newest state, read past the injected faults."""
    state, _damaged = newest_state(tale.store.store, tale.machine.broker.cluster.cluster_id, 0)
    return {} if state is None else dict(state.groups)


def test_readers_use_the_version_before_a_damaged_one() -> None:
    async def story(tale: Tale) -> None:
        await tale.start()
        await tale.create()
        for offset in (7, 8):
            await commit(tale, "g", offset)
            await asyncio.sleep(INTERVAL_S + 1)
        newest = max(versions(tale))
        data = tale.store.get(newest)
        tale.store.put(newest, [data.replace(b'"g"', b'"h"')])
        state, damaged = newest_state(tale.store, tale.machine.broker.cluster.cluster_id, 0)
        assert state is not None
        assert state.groups["g"][0].offset == 7
        (line,) = damaged
        assert newest in line
        (problem,) = verify(tale.store, now_ms=tale.world.clock.now_ms())
        assert problem.path == newest
        await tale.machine.stop()

    tell(story)


def test_the_last_state_stays_until_all_offsets_are_loaded() -> None:
    """A broker that has not loaded all groups must not upload a state without them."""

    async def story(tale: Tale) -> None:
        await tale.start()
        await tale.create()
        await commit(tale, "g", 7)
        await asyncio.sleep(INTERVAL_S + 1)
        groups = tale.machine.broker.groups
        for index in range(2):
            groups.resign(tale.machine.partition("__consumer_offsets", index))
        assert not groups.coordinated
        await tale.write()
        await asyncio.sleep(INTERVAL_S + 1)
        assert uploaded_offset(tale, "g") == 7
        await tale.machine.stop()
        assert uploaded_offset(tale, "g") == 7

    tell(story)


def test_the_state_follows_created_and_deleted_topics() -> None:
    async def story(tale: Tale) -> None:
        await tale.start()
        await tale.create("a")
        await asyncio.sleep(INTERVAL_S + 1)
        await tale.create("b")
        (deleted,) = await tale.client.delete_topics(["a"])
        assert deleted.error is ErrorCode.none
        await asyncio.sleep(INTERVAL_S + 1)
        assert [topic.name for topic in uploaded(tale).topics] == ["b"]
        await tale.machine.stop()

    tell(story)
