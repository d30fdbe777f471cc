"""Faults of real stores under a broker with producers: MinIO slowed, cut, frozen, killed and restarted; MinIO and
versitygw with revoked keys and with a deleted bucket.

Goal: producing continues through all faults. Every acknowledged record is read back byte for byte. Afterwards the
bucket is complete and catches up. Method: toxiproxy between broker and MinIO; each fault lasts until enough records
were acknowledged under it. `./test --all tests/compat/test_store_faults.py` runs it.
"""

import json
import os
import signal
import threading
import time
from contextlib import closing, contextmanager

import boto3
import pytest
from botocore.exceptions import ClientError
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
    """A thread that writes records one after another; `acknowledged` has them by offset."""

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
            self._producer.produce("t", value, partition=0, on_delivery=self._delivered)
            self._producer.poll(0)
            number += 1
            time.sleep(0.01)

    def _delivered(self, error, message):
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


@contextmanager
def keys_revoked(server):
    """The server accepts only other keys until the block ends."""
    known, server.keys = server.keys, ("other-key", "and-its-secret")
    server.kill()
    server.start()
    try:
        yield
    finally:
        server.keys = known
        server.kill()
        server.start()


def delete_bucket(server, name):
    """Empty and remove a bucket, although the broker puts objects into it meanwhile."""
    client = boto3.Session().client("s3", endpoint_url=server.endpoint, region_name=server.region)
    for _ in range(100):
        for page in client.get_paginator("list_objects_v2").paginate(Bucket=name):
            for found in page.get("Contents", ()):
                client.delete_object(Bucket=name, Key=found["Key"])
        try:
            client.delete_bucket(Bucket=name)
        except ClientError as error:
            assert error.response["Error"]["Code"] == "BucketNotEmpty"
        else:
            client.close()
            return
    raise AssertionError("the bucket did not become empty")


def tiered_end(url):
    listed = strata("tier", "describe", url, "--json")
    rows = json.loads(listed.stdout) if listed.returncode == 0 else []
    return rows[0]["end"] if rows else 0


def wait_until_tiered(url, end, broker):
    """Wait until all records are tiered, except for those of the open segment."""
    deadline = time.monotonic() + WAIT_S
    while (tiered := tiered_end(url)) < end - 100:
        assert time.monotonic() < deadline, f"{tiered} of {end} {broker.said()}"
        time.sleep(0.5)


def read_everything(address, end, first=0):
    consumer = Consumer({"bootstrap.servers": address, "group.id": "g"})
    consumer.assign([TopicPartition("t", 0, first)])
    found = {}
    deadline = time.monotonic() + WAIT_S
    while max(found, default=first - 1) < end - 1:
        assert time.monotonic() < deadline, f"{len(found)} from {first} to {end} read"
        for message in consumer.consume(500, 1):
            if message.error() is None:
                found[message.offset()] = message.value()
    consumer.close()
    return {offset: value for offset, value in found.items() if offset < end}


def test_producers_survive_every_fault_of_minio_under_load(tmp_path):
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
            wait_until_tiered(straight, end, broker)
            assert read_everything(broker.address, end) == load.acknowledged
        verified = strata("tier", "verify", straight)
        assert verified.returncode == 0, verified.stdout + verified.stderr


@pytest.mark.parametrize("kind", ["minio", "versitygw"])
def test_producers_survive_revoked_keys_and_a_deleted_bucket_under_load(kind, tmp_path):
    """Once the keys work again, the archiver catches up. Records only in a deleted bucket are lost: a read is an
    error and never data. Later records go into the new bucket, which the broker claims without a restart.
    """
    with s3_server(kind, tmp_path) as store:
        url = store.url("tier")
        with closing(S3Bucket(parse_bucket_url(url))) as bucket:
            bucket.create()
            with Server(tmp_path, [f"tier.url={url}", *SETTINGS]) as broker:
                at = ("-b", broker.address)
                created = strata("topic", "create", "t", "-c", "remote.storage.enable=true", *at)
                assert created.returncode == 0
                load = Load(broker.address)
                try:
                    load.until(RECORDS_PER_TROUBLE)
                    with keys_revoked(store):
                        load.until(RECORDS_PER_TROUBLE)
                    wait_until_tiered(url, max(load.acknowledged), broker)
                    assert read_everything(broker.address, 100) == first(load.acknowledged, 100)
                    delete_bucket(store, "tier")
                    gone = max(load.acknowledged) + 1
                    load.until(RECORDS_PER_TROUBLE)
                    bucket.create()
                    load.until(RECORDS_PER_TROUBLE)
                finally:
                    load.end()
                assert not load.failures
                end = max(load.acknowledged) + 1
                wait_until_tiered(url, end, broker)
                kept = {offset: load.acknowledged[offset] for offset in range(gone, end)}
                assert read_everything(broker.address, end, gone) == kept
                assert gives_no_data(broker.address, 0)


def first(records, count):
    return {offset: records[offset] for offset in range(count)}


def gives_no_data(address, offset):
    """Return whether a consumer at this offset gets errors and no record."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": "g"})
    consumer.assign([TopicPartition("t", 0, offset)])
    given = consumer.consume(1000, 3)
    consumer.close()
    return all(message.error() is not None for message in given)
