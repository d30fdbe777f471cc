"""`strata tier check`: a sound store passes; a store with one flaw fails at that flaw, over the wire too."""

import asyncio
import json
import threading
from collections import Counter
from contextlib import contextmanager
from urllib.parse import quote

import boto3
import pytest
from moto.server import DomainDispatcherApplication, create_backend_app
from tests.integration.server_process import strata
from werkzeug.serving import make_server

from stratalog.adapters.object_store import MemoryStore, open_store
from stratalog.adapters.system import outside
from stratalog.errors import Unavailable
from stratalog.ports import AlreadyExists, ObjectInfo
from stratalog.tier.checking.check import RACERS, check_store

LARGE_BYTES = 1 << 20


def checked(store, racers=5):
    async def run():
        system = outside()
        worker = system.workers.start("check", racers)
        try:
            return await check_store(
                [store] * racers, worker, system.clock, system.entropy, large_bytes=LARGE_BYTES
            )
        finally:
            await worker.close()

    return {finding.check: finding for finding in asyncio.run(run())}


def failed(store):
    return [finding.check for finding in checked(store).values() if not finding.passed]


def test_a_sound_store_passes_and_is_left_unchanged(tmp_path):
    store = open_store(tmp_path.as_uri())
    store.put("stratalog-check-mine", [b"1"])
    findings = checked(store)
    assert all(finding.passed for finding in findings.values()), findings
    assert f"{5} writers: one winner each" in findings["put-if-absent"].seen
    assert "MB/s" in findings["throughput"].seen
    assert [info.path for info in store.list("")] == ["stratalog-check-mine"]


class TwoWinners(MemoryStore):
    """A store that checks, then writes: the second writer has checked before the first one writes."""

    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()
        self.writers = Counter()

    def put_if_absent(self, path, data):
        with self.lock:
            self.writers[path] += 1
            if "/race/" in path and self.writers[path] == 2:
                self.put(path, [data])
                return
            super().put_if_absent(path, data)


class NoCondition(MemoryStore):
    def put_if_absent(self, path, data):
        self.put(path, [data])


class NobodyWins(MemoryStore):
    def put_if_absent(self, path, data):
        super().put_if_absent(path, data)
        if "/race/" in path:
            raise AlreadyExists(path)


class StaleRead(MemoryStore):
    def put(self, path, chunks):
        if path.endswith("/again"):
            self._objects.setdefault(path, (b"".join(chunks), 0))
        else:
            super().put(path, chunks)


class StaleList(MemoryStore):
    def list(self, prefix):
        yield from list(super().list(prefix))[:-1] if "/list/" in prefix else super().list(prefix)


class OtherClock(MemoryStore):
    def list(self, prefix):
        for info in super().list(prefix):
            yield ObjectInfo(info.path, info.size, info.modified_ms - 3_600_000)


class WholeForRange(MemoryStore):
    def get_range(self, path, start, size):
        return self.get(path)


class NeverDeletes(MemoryStore):
    def delete(self, paths):
        pass


class DropsBytes(MemoryStore):
    def put(self, path, chunks):
        super().put(path, [b"".join(chunks)[: LARGE_BYTES - 1]])


class NoDelete(MemoryStore):
    def delete(self, paths):
        if "/delete/" in paths[0]:
            raise Unavailable("405: not allowed")
        super().delete(paths)


@pytest.mark.parametrize(
    ("store", "check"),
    [
        (TwoWinners, "put-if-absent"),
        (NoCondition, "put-if-absent"),
        (NobodyWins, "put-if-absent"),
        (StaleRead, "read-after-write"),
        (StaleList, "list-after-write"),
        (OtherClock, "list-after-write"),
        (WholeForRange, "ranges"),
        (NeverDeletes, "delete"),
        (NoDelete, "delete"),
        (DropsBytes, "throughput"),
    ],
)
def test_a_store_with_one_flaw_fails_at_that_flaw(store, check):
    assert check in failed(store())


def test_an_unreachable_store_is_an_error_and_not_a_finding():
    class Closed(MemoryStore):
        def put_if_absent(self, path, data):
            raise Unavailable("403")

    with pytest.raises(Unavailable, match="403"):
        checked(Closed())


@contextmanager
def s3_over_the_wire(monkeypatch, *, forgets_conditions):
    """A mock of S3 on a port; it can ignore the condition of a put, as servers without conditional puts do.

    The mock checks, then writes, so it serves one request at a time: two writers at once would both win.
    """
    served = DomainDispatcherApplication(create_backend_app)
    lock = threading.Lock()

    def application(environ, start_response):
        if forgets_conditions:
            environ.pop("HTTP_IF_NONE_MATCH", None)
        with lock:
            return list(served(environ, start_response))

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "only a test")
    server = make_server("127.0.0.1", 0, application, threaded=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    endpoint = f"http://127.0.0.1:{server.server_port}"
    client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
    client.create_bucket(Bucket=f"check-{int(forgets_conditions)}")
    client.close()
    try:
        yield f"s3://check-{int(forgets_conditions)}/p?endpoint={quote(endpoint)}&region=us-east-1"
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()


def test_the_command_finds_a_store_that_ignores_conditions(monkeypatch):
    with s3_over_the_wire(monkeypatch, forgets_conditions=True) as url:
        done = strata("tier", "check", url, "--size", "1MiB", "--json")
        assert done.returncode == 1
        rows = {row["check"]: row for row in json.loads(done.stdout)}
        assert not rows["put-if-absent"]["passed"]
        assert "writers received success for creating one object" in rows["put-if-absent"]["seen"]
        assert rows["ranges"]["passed"]
        assert "must not be used" in done.stderr
        assert list(open_store(url).list("")) == []
    with s3_over_the_wire(monkeypatch, forgets_conditions=False) as url:
        done = strata("tier", "check", url, "--size", "1MiB")
        assert (done.returncode, "no" in done.stdout.split()) == (0, False), done.stdout
        assert f"{RACERS} writers: one winner each" in done.stdout


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("memory://x",), "its own process only"),
        (("s3://bucket?colour=red",), "'colour'"),
        (("file:///tmp/x", "--size", "1kB"), "1MiB"),
        (("file:///tmp/x", "--size", "much"), "'much'"),
    ],
)
def test_a_malformed_store_url_is_one_line(words, named):
    done = strata("tier", "check", *words)
    assert done.returncode == 2
    assert named in done.stderr
    assert done.stderr.count("\n") == 1
