"""A bucket behind S3's protocol (a mock server): the same contract as a directory, and the whole tier over it."""

from urllib.parse import quote

import boto3
import pytest
from moto.server import ThreadedMotoServer
from tests.store_contract import comes_back_whole_and_in_ranges, paths
from tests.unit.tier.segments import CountingEntropy, closed, log_bytes

from stratalog.adapters.object_store import open_store
from stratalog.errors import Corrupt, Unavailable, UserError
from stratalog.ports import AlreadyExists
from stratalog.tier.bucket.commit import Writer
from stratalog.tier.bucket.identity import claim_bucket, register_topic
from stratalog.tier.checking.verify import verify
from stratalog.tier.reading.fetcher import Fetcher
from stratalog.tier.writing.archiver import PartitionFolder
from stratalog.tier.writing.tier_writer import TierWriter, WriterContext

BUCKET = "stratalog-test"


@pytest.fixture(scope="module")
def endpoint():
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("AWS_ACCESS_KEY_ID", "test")
        environment.setenv("AWS_SECRET_ACCESS_KEY", "only a test")
        server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        server.start()
        host, port = server.get_host_and_port()
        url = f"http://{host}:{port}"
        client = boto3.Session().client("s3", endpoint_url=url, region_name="us-east-1")
        client.create_bucket(Bucket=BUCKET)
        client.close()
        yield url
        server.stop()


def open_at(endpoint, prefix, bucket=BUCKET):
    return open_store(f"s3://{bucket}/{prefix}?endpoint={quote(endpoint)}&region=us-east-1")


@pytest.fixture
def store(endpoint, request):
    return open_at(endpoint, request.node.name)


def test_objects_come_back_whole_and_in_ranges(store):
    comes_back_whole_and_in_ranges(store)
    store.put("empty", [])
    assert store.size("empty") == 0


def test_a_large_object_is_uploaded_in_parts(store):
    pieces = [bytes([n]) * (1 << 20) for n in range(20)]
    store.put("big", iter(pieces))
    assert store.get("big") == b"".join(pieces)


def test_missing_objects_are_named_and_absent_ones_put_once(store):
    for ask in (store.get, store.size, lambda path: store.get_range(path, 0, 1)):
        with pytest.raises(FileNotFoundError, match="no/such"):
            ask("no/such")
    store.put_if_absent("m/1", b"first")
    with pytest.raises(AlreadyExists, match="m/1"):
        store.put_if_absent("m/1", b"second")
    assert store.get("m/1") == b"first"
    store.delete(["m/1", "m/2"])
    assert paths(store) == []


def test_list_returns_the_objects_below_a_prefix(store):
    for path in ("a/b/1", "a/b/2", "a/bc/1", "a/c", "b"):
        store.put(path, [path.encode()])
    assert paths(store) == ["a/b/1", "a/b/2", "a/bc/1", "a/c", "b"]
    assert paths(store, "a/b") == ["a/b/1", "a/b/2", "a/bc/1"]
    assert paths(store, "a/b/") == ["a/b/1", "a/b/2"]


def test_a_put_whose_source_fails_leaves_nothing_and_raises_the_sources_error(store):
    def source():
        yield b"x" * (9 << 20)
        raise Corrupt("a bad batch")

    with pytest.raises(Corrupt, match="a bad batch"):
        store.put("a", source())
    assert paths(store) == []


def test_a_missing_bucket_differs_from_a_missing_object(endpoint):
    store = open_at(endpoint, "", bucket="no-such-bucket")
    for ask in (
        lambda: store.get("x"),
        lambda: store.put("x", [b"1"]),
        lambda: store.put_if_absent("x", b"1"),
        lambda: list(store.list("x")),
    ):
        with pytest.raises(Unavailable, match="no such bucket"):
            ask()


def test_an_unknown_setting_of_a_url_is_one_line():
    with pytest.raises(UserError, match="'secret_access_key' is none of"):
        open_store("s3://bucket?secret_access_key=oops")


def test_the_endpoint_in_the_url_beats_the_environment(endpoint, monkeypatch):
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    store = open_at(endpoint, "beats")
    store.put("x", [b"1"])
    assert store.get("x") == b"1"


def test_a_tier_over_s3_archives_reads_and_expires(store):
    topic_id = CountingEntropy().uuid()
    claim_bucket(store, "cluster", 1)
    register_topic(store, "cluster", topic_id, "t", 1, {}, 1)
    context = WriterContext(store, CountingEntropy(50))
    folder = PartitionFolder("cluster", topic_id, 0)
    tier = TierWriter.activate(context, folder, "t", Writer(1, 1), now_ms=1)
    data, end = log_bytes(0, [10] * 50)
    tier.archive([closed(data, 0, end)], last_stable_offset=end, log_start_offset=0, now_ms=2)
    fetcher = Fetcher(store)
    read = b""
    offset = 0
    while (segment := tier.lookup.at(offset)) is not None:
        piece = fetcher.read(segment, offset, 5000)
        read += b"".join(piece.buffers)
        offset = piece.next_offset
    assert read == data
    assert verify(store, now_ms=1 << 50, grace_ms=0) == []
    path = tier.lookup.at(0).path
    store.put(path, [store.get(path)[:100]])
    assert [problem.path for problem in verify(store, now_ms=1 << 50)] == [path]
    with pytest.raises(Corrupt, match=path):
        Fetcher(store).read(tier.lookup.at(0), 0, 1)
