"""What fuzzing found, each by itself: Kafka's code where a connection was closed with a stack trace before."""

from datetime import timedelta
from uuid import UUID

import pytest
from tests.sim.loop import run
from tests.sim.machine import Machine
from tests.sim.raw import Raw
from tests.sim.world import World

from stratalog.errors import ErrorCode
from stratalog.wire.envelope import request
from stratalog.wire.fields import ms_to_timedelta

METADATA, DELETE_TOPICS = 3, 20
SOME_ID = UUID(int=7)


def answer(key, version, make):
    """The answer of a new broker to the request that `make` makes."""

    async def story():
        broker = Machine(World(1))
        await broker.start()
        raw = await Raw.connect(broker.world.network)
        found = await raw.ask(key, version, make(request(key, version)))
        raw.close()
        await broker.stop()
        return found

    return run(story())


@pytest.mark.parametrize("version", [10, 11])
@pytest.mark.parametrize(("name", "topic_id"), [(None, SOME_ID), (None, None), ("a", SOME_ID)])
def test_metadata_by_id_before_that_meant_anything_is_an_invalid_request(version, name, topic_id):
    found = answer(
        METADATA,
        version,
        lambda make: make.MetadataRequest(
            topics=[make.MetadataRequestTopic(name=name, topic_id=topic_id)],
            allow_auto_topic_creation=True,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=False,
        ),
    )
    (topic,) = found.topics
    assert (topic.error_code, topic.name) == (ErrorCode.invalid_request, name or "")


def test_deleting_a_topic_without_a_name_or_an_id_is_an_invalid_request():
    found = answer(
        DELETE_TOPICS,
        6,
        lambda make: make.DeleteTopicsRequest(
            topics=[make.DeleteTopicState(name=None, topic_id=None)], timeout=1000
        ),
    )
    (topic,) = found.responses
    assert topic.error_code == ErrorCode.invalid_request


def test_the_longest_negative_duration_is_one():
    assert ms_to_timedelta(-(1 << 63)) == timedelta.min
