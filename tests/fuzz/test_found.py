"""Faults that fuzzing found, one test each: Kafka's error code instead of a closed connection and a stack trace."""

from uuid import UUID

import pytest
from tests.sim.loop import run
from tests.sim.machine import Machine
from tests.sim.raw import Raw
from tests.sim.world import World

from stratalog.errors import ErrorCode
from stratalog.wire.ids import ZERO_ID
from stratalog.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from stratalog.wire.messages.metadata import MetadataRequest, MetadataRequestTopic

SOME_ID = UUID(int=7)


def answer(version, body):
    """The answer of a new broker to a request."""

    async def story():
        broker = Machine(World(1))
        await broker.start()
        raw = await Raw.connect(broker.world.network)
        found = await raw.ask(version, body)
        raw.close()
        await broker.stop()
        return found

    return run(story())


@pytest.mark.parametrize("version", [10, 11])
@pytest.mark.parametrize(("name", "topic_id"), [(None, SOME_ID), (None, ZERO_ID), ("a", SOME_ID)])
def test_metadata_by_topic_id_in_a_version_without_ids_is_an_invalid_request(
    version, name, topic_id
):
    topic = MetadataRequestTopic(name=name, topic_id=topic_id)
    found = answer(version, MetadataRequest(topics=[topic]))
    (topic,) = found.topics
    assert (topic.error_code, topic.name) == (ErrorCode.invalid_request, name or "")


def test_deleting_a_topic_without_a_name_or_an_id_is_an_invalid_request():
    topic = DeleteTopicState(name=None, topic_id=ZERO_ID)
    found = answer(6, DeleteTopicsRequest(topics=[topic], timeout_ms=1000))
    (topic,) = found.responses
    assert topic.error_code == ErrorCode.invalid_request
