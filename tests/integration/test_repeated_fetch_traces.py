"""What a repeated fetch leaves behind: rights, the place where the handler begins, memory.

Method: as in `test_repeated_fetches.py`, with one broker.
"""

import gc
from collections import Counter
from contextlib import closing
from uuid import UUID

import pytest
from confluent_kafka import Producer
from tests.compat.tools import cannot_be_had
from tests.integration.test_repeated_fetches import (
    STANDARD,
    TOPIC,
    Consumer,
    Drive,
    reading,
    repeated,
)
from tests.integration.waiting import wait_for
from tests.wire_client import TIMEOUT_S

from stratalog.adapters.compiled_door import open_door
from stratalog.broker.fetching.repeating import _NextFetch
from stratalog.broker.network.session import mute_no_connection
from stratalog.broker.small_fetches import SmallFetches
from stratalog.broker.storage.directory import LogDirectory
from stratalog.errors import ErrorCode
from stratalog.metadata.rights import Operation, Resource
from stratalog.wire.messages.fetch import ForgottenTopic

__all__ = ["repeated"]


def test_a_client_whose_fetches_the_door_read_is_denied_once_an_acl_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The door looks at the rights itself, and calls the handler without an authorizer."""
    compiled = open_door()
    if compiled is None:
        cannot_be_had("the compiled door", "install cargo, then run hatch_build.py")
    compiled.close()
    read_by_the_door: list[bytes] = []
    begin = SmallFetches.begin

    def noting(self, request, sessions):
        read_by_the_door.append(request)
        return begin(self, request, sessions)

    monkeypatch.setattr(SmallFetches, "begin", noting)
    settings = {"authorizer.class.name": STANDARD, "allow.everyone.if.no.acl.found": "true"}
    with reading(settings | {"small.requests.compiled": "true"}) as (broker, wire, one):
        for _ in range(2):  # a connection is lent to the door after two fetches that waited
            assert not one.partition(one.fetch(10, partition_max_bytes=1))[0].records
        for offset in range(3):
            assert one.partition(one.fetch(offset, partition_max_bytes=1))[0].records
        assert len(read_by_the_door) == 3
        authorizer = broker._node.broker.authorizer
        wire.permit_host(TOPIC, "127.0.0.9")
        (session,) = [at.session for at in broker._node._connections if at.session.answer_next]
        right = (Operation.READ, Resource.TOPIC, TOPIC)
        wait_for(lambda: not authorizer.allows(session, *right), "the ACL counts")
        for offset in (3, 4):
            partition, _ = one.partition(one.fetch(offset, partition_max_bytes=1))
            assert partition.error_code == ErrorCode.topic_authorization_failed
            assert not partition.records


def test_a_fetch_that_waits_for_the_drive_reads_it_once(
    repeated: Counter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The handler begins where the last answer ended, although the connection has looked there first."""
    drive, reads = Drive(monkeypatch), []
    read = LogDirectory.read

    def noting(self, path, position, size):
        reads.append(position)
        return read(self, path, position, size)

    monkeypatch.setattr(LogDirectory, "read", noting)
    with reading({}, records=1_000, size=700) as (_, _, one):
        assert repeated == {True: 1}
        drive.is_cold = True
        reads.clear()
        sizes = [len(one.partition(one.fetch(1_000 * at))[0].records) for at in range(3, 6)]
        assert reads == [at * sizes[0] for at in range(3, 6)]
        assert repeated == {True: 1, False: 3}


def test_a_client_that_does_not_wait_gets_what_is_there(repeated: Counter) -> None:
    with reading({}, records=2, size=50_000) as (broker, _, one):
        (hosted,) = [at for at in broker._node.broker.hosting.all() if at.name.topic == TOPIC]
        hosted.log.tail.clear()
        limits = {"min_bytes": 1 << 20, "max_wait_ms": 0, "partition_max_bytes": 350_000}
        found = [one.partition(one.fetch(offset, **limits))[0].records for offset in (0, 6, 12)]
        assert [len(each) // 100_000 for each in found] == [3, 3, 3]
        assert repeated == {True: 1, False: 3}


def test_a_closed_connection_leaves_no_form_to_the_garbage_collector(repeated: Counter) -> None:
    with reading({}) as (broker, _, first):
        gc.collect()
        before = forms()
        gc.disable()
        try:
            for _ in range(5):
                with closing(Consumer(broker.address, first.topic_id)) as one:
                    for offset in range(3):
                        one.fetch(offset, partition_max_bytes=1)
            assert repeated[True] == 6
            wait_for(lambda: forms() <= before, "each form has gone with its connection")
        finally:
            gc.enable()


def test_a_closed_connection_s_session_keeps_nothing_of_it() -> None:
    with reading({}) as (broker, _, first):
        others = {id(at) for at in broker._node._connections}
        with closing(Consumer(broker.address, first.topic_id)) as one:
            for offset in range(3):
                one.fetch(offset, partition_max_bytes=1)
            (new,) = [at for at in broker._node._connections if id(at) not in others]
            assert new.session.answer_next
        wait_for(lambda: new.session.mute is mute_no_connection, "the session has let it go")
        assert new.session.answer_next is None


def forms() -> int:
    return sum(type(one) is _NextFetch for one in gc.get_objects())


def test_a_request_that_forgets_partitions_is_not_kept(repeated: Counter) -> None:
    """Only a session's requests need to, and such a list may be long: it is not encoded on the event loop."""
    gone = [ForgottenTopic(topic_id=UUID(int=7), partitions=[0])]
    with reading({}) as (_, _, one):
        for offset in range(3):
            assert one.partition(one.fetch(offset, forgotten_topics_data=gone))[0].records
        assert repeated[True] == 1, "the one before"


def test_a_form_is_not_taken_again_and_again_where_transactions_were_aborted(
    repeated: Counter,
) -> None:
    with reading({}) as (broker, _, one):
        producer = Producer({"bootstrap.servers": broker.address, "transactional.id": "x"})
        producer.init_transactions(TIMEOUT_S)
        producer.begin_transaction()
        producer.produce(TOPIC, b"aborted", partition=0)
        assert producer.flush(TIMEOUT_S) == 0
        producer.abort_transaction(TIMEOUT_S)
        (hosted,) = [at for at in broker._node.broker.hosting.all() if at.name.topic == TOPIC]
        wait_for(lambda: hosted.last_stable_offset == 12, "the marker is there")
        for offset in range(5):
            limits = {"partition_max_bytes": 1, "isolation_level": 1}
            assert one.partition(one.fetch(offset, **limits))[0].records
        assert repeated == {True: 1, False: 1}, "after the first one there is no form"
