"""A reader of committed records gets the model's records, from the bucket and from a broker.

Method: Hypothesis interleaves producers' transactions, cuts the log into segments (so that transactions begin and end
in others), archives them with the archiver, plans any range in any number of tasks and chunks, and reads it; a client
scripted by the test answers Fetches with Kafka's list of aborted transactions. The rows must be the model's.
"""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.transactional_log import ABORT, COMMIT, Step, TransactionalLog, transactional_log
from tests.unit.table.buckets import Bucket, topic_id
from tests.unit.table.test_tasks import PlayedClient, manifest_in, shared, values

from stratalog.adapters.object_store import open_store
from stratalog.client.calls import READ_COMMITTED, READ_UNCOMMITTED
from stratalog.table import chunks, tasks
from stratalog.table.plan import BrokerTask, Range, plan
from stratalog.table.tasks import read_task
from stratalog.wire.compression import CODEC_NAMES

SOME = settings(max_examples=40, deadline=None)
producers = st.integers(1, 4)
steps = st.one_of(
    st.builds(
        Step, producers, st.integers(1, 5), st.booleans(), codec=st.sampled_from(CODEC_NAMES)
    ),
    st.builds(Step, producers, st.just(0), kind=st.sampled_from([ABORT, COMMIT])),
)
logs = (
    st.lists(steps, min_size=1, max_size=40).map(transactional_log).filter(lambda log: log.end > 0)
)


def segments_of(log: TransactionalLog, data: st.DataObject) -> list[list[bytes]]:
    cut: list[list[bytes]] = [[]]
    for one in log.batches:
        if cut[-1] and data.draw(st.integers(0, 3)) == 0:
            cut.append([])
        cut[-1].append(one)
    return cut


@SOME
@given(logs, st.data())
def test_committed_records_from_the_bucket_are_the_models(
    log: TransactionalLog, data: st.DataObject
) -> None:
    first = data.draw(st.integers(0, log.end - 1))
    end = data.draw(st.integers(first + 1, log.end))
    with TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patched:
        patched.setattr(chunks, "CHUNK_BYTES", data.draw(st.sampled_from([1, 500, 1 << 20])))
        place = Path(directory)
        bucket = Bucket(open_store(place.as_uri()), index_interval_bytes=1)
        bucket.create("t")
        bucket.archive("t", 0, segments_of(log, data), aborted=log.aborted)
        wanted = Range("t", topic_id("t"), 0, first, end)
        min_tasks = data.draw(st.sampled_from([None, 2, 9]))
        live = list(manifest_in(place).recent())
        work = plan([(wanted, live)], has_broker=False, min_tasks=min_tasks)
        for isolation, expected in (
            (READ_COMMITTED, log.committed),
            (READ_UNCOMMITTED, log.uncommitted),
        ):
            asked = replace(shared(place), isolation=isolation)
            found = [offset for task in work for offset in values(read_task(task, asked))]
            assert found == [offset for offset in expected if first <= offset < end]


@SOME
@given(logs, st.data())
def test_committed_records_from_a_broker_are_the_models(
    log: TransactionalLog, data: st.DataObject
) -> None:
    first = data.draw(st.integers(0, log.end - 1))
    end = data.draw(st.integers(first + 1, log.end))
    client = PlayedClient(log.batches, at_once=data.draw(st.integers(1, 9)), aborted=log.aborted)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tasks, "client_of", lambda _: client)
        asked = replace(shared(), isolation=READ_COMMITTED)
        found = values(read_task(BrokerTask(Range("t", topic_id("t"), 0, first, end)), asked))
    assert found == [offset for offset in log.committed if first <= offset < end]
