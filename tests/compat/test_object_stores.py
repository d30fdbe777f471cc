"""Our stores against real S3 servers, MinIO and versitygw, and a directory: the contract of the tier, and failures.

`./test --all tests/compat/test_object_stores.py` runs it; the servers are built once with Go (some minutes).
"""

import json
import os
import subprocess
import sys
import threading
import time
from base64 import b64encode
from contextlib import closing, contextmanager, suppress

import pytest
from tests.compat.object_servers import (
    ENVIRONMENT,
    KEY,
    KMS_KEY,
    SECRET,
    TearingProxy,
    s3_server,
    write_certificates,
)
from tests.compat.tiering_broker import FINDINGS, tiers_what_it_is_given
from tests.integration.server_process import Server, strata
from tests.store_contract import comes_back_whole_and_in_ranges, exactly_one_wins, paths

from stratalog.adapters.bucket_url import parse_bucket_url
from stratalog.adapters.object_store import open_store
from stratalog.adapters.s3_bucket import S3Bucket
from stratalog.errors import Unavailable, UserError
from stratalog.ports import AlreadyExists
from stratalog.tier.bucket.identity import claim_bucket

pytestmark = [pytest.mark.big, pytest.mark.xdist_group("object_stores"), pytest.mark.timeout(300)]

MIB = 1 << 20


@pytest.fixture(scope="module", autouse=True)
def keys():
    with pytest.MonkeyPatch.context() as environment:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            environment.delenv(name)
        for name, value in ENVIRONMENT.items():
            environment.setenv(name, value)
        yield


@pytest.fixture(scope="module", params=["minio", "versitygw"])
def server(request, tmp_path_factory):
    with s3_server(request.param, tmp_path_factory.mktemp(request.param)) as started:
        create(started.url("tier"))
        yield started


@pytest.fixture(params=["minio", "versitygw", "file"])
def url(request, tmp_path):
    """Return the URL of the test's own prefix in each kind of store."""
    if request.param == "file":
        return tmp_path.as_uri() + "/bucket"
    return request.getfixturevalue(f"shared_{request.param}").url("tier", request.node.originalname)


@pytest.fixture(scope="module")
def shared_minio(tmp_path_factory):
    with s3_server("minio", tmp_path_factory.mktemp("shared")) as started:
        create(started.url("tier"))
        yield started


@pytest.fixture(scope="module")
def shared_versitygw(tmp_path_factory):
    with s3_server("versitygw", tmp_path_factory.mktemp("shared")) as started:
        create(started.url("tier"))
        yield started


@pytest.fixture
def store(url):
    return open_store(url)


def create(url):
    with closing(S3Bucket(parse_bucket_url(url))) as bucket:
        bucket.create()
        bucket.create()  # creating our own bucket again is not an error


def unfinished(url):
    with closing(S3Bucket(parse_bucket_url(url))) as bucket:
        return list(bucket.unfinished_uploads())


def test_objects_are_read_whole_and_in_ranges(store):
    comes_back_whole_and_in_ranges(store)


def test_missing_objects_are_named_and_absent_ones_put_once(store):
    for ask in (store.get, store.size, lambda path: store.get_range(path, 0, 1)):
        with pytest.raises(FileNotFoundError, match="no/such"):
            ask("no/such")
    store.put_if_absent("m/1", b"first")
    with pytest.raises(AlreadyExists, match="m/1"):
        store.put_if_absent("m/1", b"second")
    assert store.get("m/1") == b"first"
    store.delete(["m/1", "m/2"])
    store.put_if_absent("m/1", b"third")
    assert store.get("m/1") == b"third"


def test_more_objects_than_a_page_are_listed_at_once_and_deleted(store):
    wanted = [f"many/{number:04d}" for number in range(1100)]
    for path in wanted:
        store.put(path, [b"x"])
    assert paths(store, "many/") == wanted
    assert paths(store, "many/00") == wanted[:100]
    store.delete([*wanted, "many/never"])
    assert paths(store, "many/") == []


def test_a_large_object_is_uploaded_in_parts_and_leaves_none(store, url):
    pieces = [bytes([n]) * MIB for n in range(40)]
    store.put("big", iter(pieces))
    assert store.size("big") == 40 * MIB
    assert store.get("big") == b"".join(pieces)
    assert store.get_range("big", 8 * MIB - 1, 2) == b"\x07\x08"
    if url.startswith("s3:"):
        assert unfinished(url) == []


def test_a_put_whose_source_fails_leaves_nothing(store, url):
    def source():
        for _ in range(20):
            yield b"x" * MIB
        raise OSError("the drive of the log directory")

    with pytest.raises(OSError, match="log directory"):
        store.put("a/b", source())
    assert paths(store) == []
    if url.startswith("s3:"):
        assert unfinished(url) == []


def test_exactly_one_of_twenty_processes_puts_an_absent_object(url):
    exactly_one_wins(url, processes=20, rounds=25, timeout_s=200)


def test_a_missing_bucket_differs_from_a_missing_object(server):
    store = open_store(server.url("no-such-bucket"))
    for ask in (
        lambda: store.get("x"),
        lambda: store.put("x", [b"1"]),
        lambda: store.put_if_absent("x", b"1"),
        lambda: list(store.list("x")),
    ):
        with pytest.raises(Unavailable, match="no such bucket"):
            ask()


def test_a_bucket_is_created_if_the_url_asks_for_that(server):
    store = open_store(server.url("made-on-request", "below", create_bucket="true"))
    with pytest.raises(Unavailable, match="no such bucket"):
        store.get("x")  # a read creates no bucket
    store.put_if_absent("x", b"1")
    assert open_store(server.url("made-on-request")).get("below/x") == b"1"


def test_a_cut_answer_is_requested_again_and_never_half_an_object(server):
    data = os.urandom(4 * MIB)
    open_store(server.url("tier", "torn")).put("big", [data])
    with TearingProxy(server.port) as proxy:
        store = open_store(server.url("tier", "torn", endpoint=f"http://127.0.0.1:{proxy.port}"))
        for keep in (0, 10, 1000, 70_000, 2 * MIB):
            proxy.tear(times=1, keep=keep)
            try:
                assert store.get("big") == data
            except Unavailable:
                assert store.get("big") == data
            assert proxy.torn == 1
        proxy.tear(times=1, keep=500)
        try:
            assert store.get_range("big", MIB, MIB) == data[MIB : 2 * MIB]
        except Unavailable:
            assert store.get_range("big", MIB, MIB) == data[MIB : 2 * MIB]
        for keep in (0, 500, MIB + MIB // 2):
            proxy.tear(times=1, keep=keep)
            found = []
            with suppress(Unavailable):
                found.extend(store.get_ranges("big", 1000, [MIB] * 3))
            assert len(found) <= 3
            assert b"".join(found) == data[1000 : 1000 + MIB * len(found)]
            assert proxy.torn == 1


def test_a_put_without_an_answer_is_repeated_and_a_repeated_put_if_absent_is_recognised(server):
    with TearingProxy(server.port) as proxy:
        store = open_store(server.url("tier", "lost", endpoint=f"http://127.0.0.1:{proxy.port}"))
        proxy.tear(times=1, keep=0)
        store.put("again", [b"whole"])
        assert proxy.torn == 1
        assert store.get("again") == b"whole"
        pieces = [os.urandom(MIB) for _ in range(20)]
        proxy.tear(times=2, keep=0)
        store.put("parts", pieces)
        assert store.get("parts") == b"".join(pieces)
        # The put may have succeeded without an answer: a commit reads the object back and compares its write id.
        proxy.tear(times=1, keep=0)
        with pytest.raises((AlreadyExists, Unavailable)):
            store.put_if_absent("once", b"ours")
        assert store.get("once") == b"ours"


def test_a_short_outage_of_the_server_only_delays(tmp_path):
    with s3_server("minio", tmp_path) as server:
        create(server.url("tier"))
        store = open_store(server.url("tier"))
        store.put("before", [b"1"])
        server.kill()
        back = threading.Timer(1.5, server.start)
        back.start()
        try:
            for _ in range(20):  # the archiver retries, too
                try:
                    store.put("during", [b"2" * MIB] * 20)
                    break
                except Unavailable:
                    time.sleep(0.5)
        finally:
            back.join()  # else the thread would start the server later
        assert (store.get("before"), store.get("during")) == (b"1", b"2" * 20 * MIB)


@pytest.mark.parametrize("kind", ["minio", "versitygw"])
def test_any_region_and_tls_by_a_private_authority(kind, tmp_path):
    ca_file = write_certificates(tmp_path)
    trusted = os.environ.get("SSL_CERT_FILE")
    with s3_server(kind, tmp_path, ca_file=ca_file, region="cellar-2") as server:
        create(server.url("tier"))
        store = open_store(server.url("tier"))
        store.put("a", [b"1"])
        assert store.get("a") == b"1"
        assert os.environ.get("SSL_CERT_FILE") == trusted
        stranger = tmp_path / "stranger"
        other = write_certificates(stranger)
        for wrong in (str(other), ""):
            quick = open_store(server.url("tier", ca_file=wrong))
            began = time.monotonic()
            with pytest.raises(Unavailable):
                quick.get("a")
            assert time.monotonic() - began < 120
        assert store.get("a") == b"1"


def test_keys_are_read_from_a_file_again_and_wrong_ones_are_one_line(server, tmp_path):
    file = tmp_path / "keys"
    file.write_text(
        "[default]\naws_access_key_id = unknown\naws_secret_access_key = nothing\n\n"
        f"[tier]\naws_access_key_id = {KEY}\naws_secret_access_key = {SECRET}\n"
    )
    code = (
        "import sys\nfrom stratalog.adapters.object_store import open_store\n"
        "store = open_store(sys.argv[1])\nstore.put('a', [b'1'])\nprint(store.get('a'))\n"
    )
    bare = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}

    def run(url, **environment):
        return subprocess.run(
            [sys.executable, "-c", code, url],
            env=bare | environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    done = run(server.url("tier", "keys", credentials_file=str(file), profile="tier"))
    assert done.stdout == "b'1'\n", done.stderr
    done = run(
        server.url("tier", "keys"), AWS_SHARED_CREDENTIALS_FILE=str(file), AWS_PROFILE="tier"
    )
    assert done.stdout == "b'1'\n", done.stderr
    done = run(server.url("tier", "keys", credentials_file=str(file)))
    assert "Unavailable" in done.stderr
    assert "nothing" not in done.stderr
    for ask in ("get", "size"):
        # Revoked keys must never look like a missing object.
        with pytest.raises(Unavailable):
            getattr(open_store(server.url("tier", "keys", credentials_file=str(file))), ask)(
                "never"
            )
    with pytest.raises(UserError, match=r"no profile \[other\]"):
        open_store(server.url("tier", credentials_file=str(file), profile="other"))


def test_virtual_hosted_requests_name_the_bucket_in_the_host(tmp_path, monkeypatch):
    """The bucket's own host has no address here, so the server is used as a proxy, whose requests show the host."""
    with s3_server("minio", tmp_path, domain="s3.test") as server:
        create(server.url("tier"))
        open_store(server.url("tier")).put("a", [b"1"])
        monkeypatch.setenv("http_proxy", server.endpoint)
        url = server.url("tier", endpoint="http://s3.test", virtual_hosted_style_request="true")
        assert open_store(url).get("a") == b"1"
        create(url)
        assert unfinished(url) == []


def test_a_broker_tiers_to_the_store_and_the_commands_read_it(server, tmp_path):
    url = server.url("product", "cluster-a", create_bucket="true")
    lines = tiers_what_it_is_given(url, tmp_path)
    assert unfinished(url) == []
    taken = strata(
        "restore", url, "--takeover", "--data", str(tmp_path / "heir" / "data"), "--json"
    )
    assert taken.returncode == 0, taken.stderr
    (row,) = json.loads(taken.stdout)["topics"]
    with Server(tmp_path / "heir", [f"tier.url={url}"]) as heir:
        words = ("consume", "t", "--from", "beginning", "--until-end", "-b", heir.address)
        read = strata(*words)
        assert lines.startswith(read.stdout)
        assert len(read.stdout.splitlines()) == row["records"] > 3000


@pytest.fixture(scope="module")
def tls_minio(tmp_path_factory):
    place = tmp_path_factory.mktemp("encrypted")
    with s3_server("minio", place, ca_file=write_certificates(place)) as started:
        create(started.url("tier"))
        yield started


@pytest.fixture
def encryption(request, tmp_path):
    """Return the settings of the URL, and what the store must say of an object."""
    key = tmp_path / "customer.key"
    key.write_bytes(os.urandom(32))
    return {
        "AES256": ({"sse": "AES256"}, "AES256"),
        "aws:kms": ({"sse": "aws:kms", "sse_kms_key_id": KMS_KEY}, "aws:kms"),
        "customer": ({"customer_key_file": str(key)}, None),
    }[request.param]


@pytest.mark.parametrize("encryption", ["AES256", "aws:kms", "customer"], indirect=True)
def test_a_broker_tiers_to_a_store_that_encrypts(encryption, tls_minio, tmp_path, request):
    """The lines are read back through the store, and its drive holds none of them in the clear."""
    settings, algorithm = encryption
    prefix = request.node.callspec.id.replace(":", "-")
    url = tls_minio.url("tier", prefix, **settings)
    tiers_what_it_is_given(url, tmp_path)
    stored = [file for file in (tls_minio.place / "tier" / prefix).rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in stored) > 4 * MIB
    assert not [file for file in stored if b"x" * 100 in file.read_bytes()]
    large = max((i.size, i.path) for i in open_store(url).list(""))[1]
    with s3_client(tls_minio) as client:
        if algorithm is None:
            with pytest.raises(Exception, match=r"400|403"):
                client.head_object(Bucket="tier", Key=f"{prefix}/{large}")
        else:
            head = client.head_object(Bucket="tier", Key=f"{prefix}/{large}")
            assert head["ServerSideEncryption"] == algorithm
            assert ("SSEKMSKeyId" in head) == ("sse_kms_key_id" in settings)


def test_a_wrong_customers_key_reads_nothing_and_is_never_shown(tls_minio, tmp_path):
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    for file in (right, wrong):
        file.write_bytes(b64encode(os.urandom(32)))
    owner = open_store(tls_minio.url("tier", "keys", customer_key_file=str(right)))
    owner.put("a", [b"1"])
    owner.put("in parts", [bytes(MIB)] * 12)
    assert (owner.get("a"), owner.size("in parts")) == (b"1", 12 * MIB)
    assert list(owner.get_ranges("in parts", 11 * MIB, [MIB])) == [bytes(MIB)]
    for settings, reason in (
        ({"customer_key_file": str(wrong)}, f"and the customer's key from {wrong}"),
        ({}, "400 Bad Request"),
    ):
        store = open_store(tls_minio.url("tier", "keys", **settings))
        for ask in (store.get, store.size):
            with pytest.raises(Unavailable) as failure:
                ask("a")
            assert reason in str(failure.value)
            assert wrong.read_text() not in str(failure.value)


@contextmanager
def s3_client(server):
    import boto3

    with closing(
        boto3.client(
            "s3", endpoint_url=server.endpoint, verify=str(server.ca_file), region_name="us-east-1"
        )
    ) as client:
        yield client


def test_the_check_passes_every_store(url):
    done = strata("tier", "check", url, "--size", "16MiB", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert {row["check"] for row in json.loads(done.stdout) if row["passed"]} == FINDINGS
    assert paths(open_store(url)) == []


def test_the_check_fails_a_server_that_lets_two_writers_win(tmp_path):
    with s3_server("s3s-fs", tmp_path) as server:
        with closing(S3Bucket(parse_bucket_url(server.url("tier")))) as bucket:
            bucket.create()
        done = strata("tier", "check", server.url("tier"), "--size", "1MiB", "--json")
        assert done.returncode == 1, done.stderr
        rows = {row["check"]: row for row in json.loads(done.stdout)}
        assert not rows["put-if-absent"]["passed"]
        assert "writers received success for creating one object" in rows["put-if-absent"]["seen"]
        assert "must not be used" in done.stderr


def test_a_sweep_removes_unfinished_uploads(server):
    """MinIO lists an upload only by its object's whole name, and removes old ones by itself after a day."""
    import boto3

    url = server.url("tier", "swept")
    store = open_store(url)
    claim_bucket(store, "a-cluster-of-22-chars_", 1)
    with closing(
        boto3.Session().client("s3", endpoint_url=server.endpoint, region_name=server.region)
    ) as client:
        upload = client.create_multipart_upload(Bucket="tier", Key="swept/half.seg")
        client.upload_part(
            Bucket="tier",
            Key="swept/half.seg",
            UploadId=upload["UploadId"],
            PartNumber=1,
            Body=b"x" * MIB,
        )
        young = strata("tier", "sweep", url)
        assert (young.returncode, young.stdout) == (0, ""), young.stderr
        assert "no lifecycle rule" in young.stderr
        seen = strata("tier", "sweep", url, "--grace", "0s", "--no-broker", "--dry-run", "--json")
        left = [row["path"] for row in json.loads(seen.stdout)]
        assert left == ([] if server.kind == "minio" else ["swept/half.seg"])
        swept = strata("tier", "sweep", url, "--grace", "0s", "--no-broker", "--json")
        assert [row["path"] for row in json.loads(swept.stdout)] == left
        assert unfinished(url) == []
