"""MinIO slowed, cut, frozen, killed and started again under a broker that is written to, read back byte for byte.

Goal: producing goes on through all of it, nothing acknowledged is missing or different, the bucket is whole
afterwards and catches up. Method: toxiproxy between broker and MinIO; each trouble lasts until enough was
acknowledged under it. `./test --all tests/compat/test_store_faults.py` runs it.
"""

import json
import os
import signal
import threading
import time
from contextlib import closing, contextmanager

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from tests.compat.object_servers import ENVIRONMENT, s3_server
from tests.compat.toxiproxy import toxiproxy
from tests.integration.server_process import Server, strata

from stratalog.adapters.bucket_url import parse_bucket_url
from stratalog.adapters.s3_bucket import S3Bucket

pytestmark = [pytest.mark.big, pytest.mark.xdist_group("object_stores"), pytest.mark.timeout(600)]

RECORD_BYTES = 20_000
RECORDS_PER_TROUBLE = 300  # 6 MB: six segments close under each
WAIT_S = 120
SETTINGS = (
    "log.segment.bytes=1048576",
    "log.local.retention.bytes=0",
    "log.retention.check.interval.ms=200",
    "remote.log.manager.task.interval.ms=200",
    "remote.log.manager.task.retry.backoff.max.ms=2000",
    "tier.cache.bytes=4194304",
)


class Load:
    """Records written one after another on a thread of their own; `acknowledged` by offset."""

    def __init__(self, address):
        self.acknowledged = {}
        self.failures = []
        self._producer = Producer({"bootstrap.servers": address, "linger.ms": 5})
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def until(self, count):
        """Wait until so many more records are acknowledged."""
        wanted = len(self.acknowledged) + count
        deadline = time.monotonic() + WAIT_S
        while len(self.acknowledged) < wanted:
            assert not self.failures, self.failures[:3]
            assert time.monotonic() < deadline, "producing stopped"
            time.sleep(0.05)

    def end(self):
        self._ending.set()
        self._thread.join(60)
        assert self._producer.flush(60) == 0

    def _write(self):
        number = 0
        while not self._ending.is_set():
            value = b"%09d" % number + os.urandom(64) * (RECORD_BYTES // 64)
            self._producer.produce("t", value, partition=0, on_delivery=self._told)
            self._producer.poll(0)
            number += 1
            time.sleep(0.01)

    def _told(self, error, message):
        if error is not None:
            self.failures.append(str(error))
        else:
            self.acknowledged[message.offset()] = message.value()


@pytest.fixture(scope="module", autouse=True)
def keys():
    with pytest.MonkeyPatch.context() as environment:
        for name, value in ENVIRONMENT.items():
            environment.setenv(name, value)
        yield


@contextmanager
def killed(minio):
    minio.kill()
    yield
    minio.start()


@contextmanager
def frozen(minio):
    minio.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        minio.process.send_signal(signal.SIGCONT)


def tiered_end(url):
    listed = strata("tier", "describe", url, "--json")
    rows = json.loads(listed.stdout) if listed.returncode == 0 else []
    return rows[0]["end"] if rows else 0


def read_everything(address, count):
    consumer = Consumer({"bootstrap.servers": address, "group.id": "g"})
    consumer.assign([TopicPartition("t", 0, 0)])
    found = {}
    deadline = time.monotonic() + WAIT_S
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} read"
        for message in consumer.consume(500, 1):
            if message.error() is None:
                found[message.offset()] = message.value()
    consumer.close()
    return found


def test_minio_in_every_trouble_under_load(tmp_path):
    with (
        s3_server("minio", tmp_path) as minio,
        toxiproxy(minio.port, tmp_path) as proxy,
    ):
        with closing(S3Bucket(parse_bucket_url(minio.url("tier")))) as bucket:
            bucket.create()
        url = minio.url("tier", endpoint=f"http://127.0.0.1:{proxy.port}")
        straight = minio.url("tier")
        with Server(tmp_path, [f"tier.url={url}", *SETTINGS]) as broker:
            at = ("-b", broker.address)
            assert (
                strata("topic", "create", "t", "-c", "remote.storage.enable=true", *at).returncode
                == 0
            )
            load = Load(broker.address)
            try:
                load.until(RECORDS_PER_TROUBLE)
                for trouble in (
                    proxy.toxic("latency", latency=400, jitter=300),
                    proxy.toxic("bandwidth", stream="upstream", rate=200),
                    proxy.toxic("limit_data", bytes=300),
                    proxy.toxic("reset_peer", timeout=20),
                    proxy.toxic("timeout", timeout=0),
                    frozen(minio),
                    killed(minio),
                ):
                    with trouble:
                        load.until(RECORDS_PER_TROUBLE)
                    load.until(RECORDS_PER_TROUBLE // 4)
            finally:
                load.end()
            assert not load.failures
            end = max(load.acknowledged) + 1
            deadline = time.monotonic() + WAIT_S
            while tiered_end(straight) < end - 100:
                assert time.monotonic() < deadline, (
                    f"{tiered_end(straight)} of {end} {broker.said()}"
                )
                time.sleep(0.5)
            assert read_everything(broker.address, end) == load.acknowledged
        verified = strata("tier", "verify", straight)
        assert verified.returncode == 0, verified.stdout + verified.stderr
