"""A Spark job that pinned a version of history finishes undisturbed, however long it takes.

Method: a job's tasks stop in the middle; DeleteRecords empties the topic; the broker removes a lease of the same time
that nobody renews, so the job's own would be gone too. Then the tasks go on. Each record says its own
offset.
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.broker_process import BrokerProcess, broker_process
from tests.integration.test_spark_broker import (
    SEGMENT,
    Driver,
    both,
    delete_records,
    produce,
    settle,
    tiered_end,
    until,
    whole,
)

from stratalog.adapters.object_store import open_store
from stratalog.ports import ObjectStore
from stratalog.tier.bucket.leases import Lease, put_lease
from stratalog.tier.reading.reader import open_bucket

pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("spark")]

RECORDS = 80_000
SMALL_BATCHES = {"spark.sql.execution.arrow.maxRecordsPerBatch": "500"}
"""So that a task has more to read than Spark and its pipes hold: while it waits it is still reading."""
LEASE_MS = 10_000  # a drive that syncs for everybody else too keeps a renewal waiting for seconds


def objects(store: ObjectStore, kind: str) -> set[str]:
    return {info.path for info in store.list("") if kind in info.path}


def outlive_a_lease(broker: BrokerProcess, topic: str) -> None:
    """Until the broker has removed a lease that lives as long as the job's, and that nobody renews."""
    bucket = open_bucket(open_store(broker.bucket_url))
    found = bucket.topic(topic)
    assert found is not None
    abandoned = Lease(
        cluster_id=bucket.cluster_id,
        id="A" * 22,
        holder="nobody",
        versions={found.topic_id: {"0": 1}},
        lasts_ms=LEASE_MS,
    )
    put_lease(bucket.store, abandoned)
    until(lambda: abandoned.path not in objects(bucket.store, "/leases/"), "it lives for ever")


def test_a_job_that_is_slow_reads_what_it_pinned_whatever_is_deleted(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    gate.mkdir()
    with broker_process(tmp_path / "broker", remote__delete__grace__ms="500") as broker:
        produce(broker, "slow", 0, RECORDS, configs=SEGMENT | {"segment.bytes": str(4 << 20)})
        settle(broker, "slow", RECORDS * 3 // 4)
        store = open_store(broker.bucket_url)
        end, segments = tiered_end(broker, "slow"), objects(store, ".seg")
        options = both(broker, "slow", maxRecordsPerPartition=str(RECORDS // 4))
        options["tier.lease.ms"] = str(LEASE_MS)
        del options["kafka.bootstrap.servers"]
        driver = Driver(tmp_path / "driver", SMALL_BATCHES)
        try:
            with ThreadPoolExecutor(1) as pool:
                job = pool.submit(driver.ask, "gated", options=options, gate=str(gate))
                try:
                    until(lambda: len(list(gate.iterdir())) == 2 or job.done(), "no task begins")
                    delete_records(broker, "slow", end)
                    outlive_a_lease(broker, "slow")
                    assert not job.done()
                    assert segments <= objects(store, ".seg"), "somebody reads them"
                finally:
                    (gate / "go").touch()
                whole(job.result(), 0, 0, end)
        finally:
            driver.kill()
        assert len(list(gate.glob("begun-*"))) > 2, "tasks that began when all of it was deleted"
        until(lambda: not segments & objects(store, ".seg"), "what nobody reads any more stays")
        until(lambda: not objects(store, "/leases/"), "a lease stays")
