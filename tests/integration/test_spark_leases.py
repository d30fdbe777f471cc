"""A Spark job that pinned a version of history reads all of it, however long the job takes.

Method: a job's tasks pause halfway, and DeleteRecords empties the topic. The broker removes a lease of the same
duration that no client renews, so the job's lease would be gone too without renewals. Then the tasks continue. Each
record contains its own offset.
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
    tiered_end,
    until,
    wait_until_tiered,
    whole,
)

from stratalog.adapters.object_store import open_store
from stratalog.ports import ObjectStore
from stratalog.tier.bucket.leases import Lease, put_lease
from stratalog.tier.reading.reader import open_bucket

pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("spark")]

RECORDS = 80_000
SMALL_BATCHES = {"spark.sql.execution.arrow.maxRecordsPerBatch": "500"}
"""A task has more to read than Spark and its pipes can buffer, so a paused task is still reading."""
LEASE_MS = 10_000  # on a busy drive a renewal may wait for seconds


def objects(store: ObjectStore, kind: str) -> set[str]:
    return {info.path for info in store.list("") if kind in info.path}


def outlive_a_lease(broker: BrokerProcess, topic: str) -> None:
    """Wait until the broker has removed a lease of the job's duration that no client renews."""
    bucket = open_bucket(open_store(broker.bucket_url))
    found = bucket.topic(topic)
    assert found is not None
    abandoned = Lease(
        cluster_id=bucket.cluster_id,
        id="A" * 22,
        holder="abandoned",
        versions={found.topic_id: {"0": 1}},
        lasts_ms=LEASE_MS,
    )
    put_lease(bucket.store, abandoned)
    until(
        lambda: abandoned.path not in objects(bucket.store, "/leases/"), "the abandoned lease stays"
    )


@pytest.mark.big
def test_a_slow_job_reads_its_pinned_version_after_a_deletion(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    gate.mkdir()
    with broker_process(tmp_path / "broker", remote__delete__grace__ms="500") as broker:
        produce(broker, "slow", 0, RECORDS, configs=SEGMENT | {"segment.bytes": str(4 << 20)})
        wait_until_tiered(broker, "slow", RECORDS * 3 // 4)
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
                    assert segments <= objects(store, ".seg"), (
                        "the lease must keep the objects that the job reads"
                    )
                finally:
                    (gate / "go").touch()
                whole(job.result(), 0, 0, end)
        finally:
            driver.kill()
        assert len(list(gate.glob("begun-*"))) > 2, "some tasks must begin after the deletion"
        until(
            lambda: not segments & objects(store, ".seg"),
            "the broker did not delete the unpinned segments",
        )
        until(lambda: not objects(store, "/leases/"), "a lease stays")
