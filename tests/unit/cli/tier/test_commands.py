"""`strata tier`: it lists a bucket's contents, finds and removes orphans, and exports history as files."""

import json
import os
import subprocess
import time
from pathlib import Path

import pytest
from msgspec import UNSET
from msgspec.structs import replace
from tests.integration.server_process import on_a_terminal, strata
from tests.unit.tier.segments import CountingEntropy, closed, log_bytes

from stratalog.adapters.object_store import open_store
from stratalog.tier.bucket.commit import Writer
from stratalog.tier.bucket.identity import claim_bucket, register_topic
from stratalog.tier.bucket.leases import LEASE_MS, Lease, put_lease
from stratalog.tier.writing.archiver import PartitionFolder
from stratalog.tier.writing.tier_writer import TierWriter, WriterContext
from stratalog.wire.ids import topic_id_text

CLUSTER = "a-cluster-of-22-chars_"


@pytest.fixture
def bucket(tmp_path):
    """A bucket with two segments in each of two partitions: its URL, store and the bytes of each partition."""
    url = (tmp_path / "bucket").as_uri()
    store = open_store(url)
    topic_id = CountingEntropy().uuid()
    claim_bucket(store, CLUSTER, 1)
    register_topic(store, CLUSTER, topic_id, "events", 2, {}, 1)
    written = {}
    for partition in range(2):
        context = WriterContext(store, CountingEntropy(100 * partition))
        folder = PartitionFolder(CLUSTER, topic_id, partition)
        tier = TierWriter.activate(context, folder, "events", Writer(1, 1), now_ms=1)
        first, middle = log_bytes(0, [10] * 20)
        second, end = log_bytes(middle, [5] * 10, codec="zstd")
        segments = [closed(first, 0, middle), closed(second, middle, end)]
        tier.archive(segments, last_stable_offset=end, log_start_offset=0, now_ms=2)
        written[partition] = [first, second]
    return url, store, written


def test_history_is_exported_as_kafkas_segment_files(bucket, tmp_path):
    url, _, written = bucket
    done = strata("tier", "export", url, "events", str(tmp_path / "out"), "--json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert [row["records"] for row in rows] == [200, 50, 200, 50]
    for partition, segments in written.items():
        files = sorted((tmp_path / f"out/events-{partition}").iterdir())
        assert [file.name for file in files] == [f"{0:020d}.log", f"{200:020d}.log"]
        assert [file.read_bytes() for file in files] == segments
    dumped = strata("log", "verify", rows[0]["file"])
    assert dumped.returncode == 0, dumped.stderr


def test_a_topic_that_a_bucket_lacks_is_one_line_with_the_remedy(bucket):
    url, _, _ = bucket
    done = strata("tier", "describe", url, "nothere")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"strata: topic nothere is not in {url}; list topics: strata tier list {url}\n"
    )


def test_history_is_exported_as_json_lines_that_produce_reads(bucket, tmp_path):
    url, _, _ = bucket
    done = strata(
        "tier", "export", url, "events", str(tmp_path), "--format", "json", "--partition", "1"
    )
    assert done.returncode == 0, done.stderr
    assert "250 record(s) in 2 file(s)" in done.stderr
    assert not (tmp_path / "events-0").exists()
    lines = []
    for file in sorted((tmp_path / "events-1").iterdir()):
        lines += [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["offset"] for line in lines] == list(range(250))
    assert lines[249]["key"] == "key 249"
    assert lines[0]["timestamp"] == 1000


def test_an_export_overwrites_no_file_and_leaves_no_partial_one(bucket, tmp_path):
    url, store, _ = bucket
    target = tmp_path / "out" / "events-0"
    assert strata("tier", "export", url, "events", str(tmp_path / "out")).returncode == 0
    again = strata("tier", "export", url, "events", str(tmp_path / "out"))
    assert again.returncode == 2
    assert "is there already" in again.stderr
    path = next(info.path for info in store.list(CLUSTER) if info.path.endswith(".seg"))
    altered = bytearray(store.get(path))
    altered[100] ^= 1
    store.put(path, [altered])
    broken = strata("tier", "export", url, "events", str(tmp_path / "other"))
    assert broken.returncode == 1
    assert path in broken.stderr
    assert not [f for f in (tmp_path / "other").rglob("*") if f.suffix == ".tmp"]
    assert len(list(target.iterdir())) == 2


def test_orphans_are_removed_only_after_their_grace(bucket, tmp_path):
    url, store, _ = bucket
    folder = next(i.path for i in store.list(CLUSTER) if i.path.endswith(".seg")).rpartition("/")[0]
    before = {info.path for info in store.list("")}
    stray = f"{folder}/{0:020d}-{9:020d}-0-AAAAAAAAAAAAAAAAAAAAAA.seg"
    store.put(stray, [b"left by a crash"])
    young = strata("tier", "sweep", url, "--json")
    assert (young.returncode, json.loads(young.stdout)) == (0, [])
    file = Path(store.root) / stray
    old = time.time() - 7200
    os.utime(file, (old, old))
    tried = strata("tier", "sweep", url, "--dry-run", "--json")
    assert [row["path"] for row in json.loads(tried.stdout)] == [stray]
    assert file.exists()
    kept = strata("tier", "sweep", url, "--grace", "3h")
    assert kept.stdout == ""
    swept = strata("tier", "sweep", url)
    assert swept.stdout == f"{stray}: no manifest names it\n"
    assert "1 object(s) removed" in swept.stderr
    assert {info.path for info in store.list("")} == before
    assert strata("tier", "verify", url).returncode == 0


def test_verify_reports_the_bytes_that_it_read(bucket, tmp_path):
    url, store, _ = bucket
    objects = list(store.list(CLUSTER))
    done = strata("tier", "verify", url, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "sound": True,
        "objects": len(objects),
        "bytes": sum(info.size for info in objects),
        "topics": 1,
        "segments": 4,
        "records": 500,
        "problems": [],
    }
    said = strata("tier", "verify", url).stderr
    assert "is sound: 1 topic(s), 4 segment(s), 500 record(s)" in said
    segment = next(info.path for info in objects if info.path.endswith(".seg"))
    store.delete([segment])
    damaged = strata("tier", "verify", url, "--json")
    report = json.loads(damaged.stdout)
    assert (damaged.returncode, report["sound"], report["segments"]) == (1, False, 4)
    assert report["problems"] == [{"path": segment, "what": f"{segment}: missing", "orphan": False}]


def test_verify_says_that_an_empty_bucket_is_empty(tmp_path):
    url = (tmp_path / "empty").as_uri()
    claim_bucket(open_store(url), CLUSTER, 1)
    done = strata("tier", "verify", url)
    assert (done.returncode, done.stderr) == (
        0,
        f"{url} is sound and empty: no segment is archived there (0 topic(s))\n",
    )


def test_leases_shows_each_query_its_pinned_segments_and_its_end(bucket):
    url, store, _ = bucket
    none = strata("tier", "leases", url)
    assert (none.returncode, none.stderr) == (0, f"no query holds a lease in {url}\n")
    topic_id = topic_id_text(CountingEntropy().uuid())
    lease = Lease(
        cluster_id=CLUSTER,
        id="a-query",
        holder="spark on host 7",
        versions={topic_id: {"0": 3, "1": 4}, "a-deleted-topic": {"0": 1}},
        lasts_ms=7200_000,
    )
    put_lease(store, lease)
    put_lease(store, replace(lease, id="an-old-query", holder="spark on host 8", lasts_ms=UNSET))
    for path, age_s in ((lease.path, 100), (f"{CLUSTER}/cluster/leases/an-old-query", 4000)):
        renewed = 1_790_000_000 - age_s
        os.utime(Path(store.root) / path, (renewed, renewed))
    done = strata("tier", "leases", url, "--json")
    assert done.returncode == 0, done.stderr
    young, old = sorted(json.loads(done.stdout), key=lambda row: row["path"])
    assert young == {
        "path": lease.path,
        "holder": "spark on host 7",
        "renewed_ms": 1_789_999_900_000,
        "until_ms": 1_789_999_900_000 + 7200_000,
        "versions": lease.versions,
    }
    assert old["until_ms"] - old["renewed_ms"] == LEASE_MS
    table = strata("tier", "leases", url).stdout
    assert "events-0@3 events-1@4 a-deleted-topic-0@1" in table
    assert "2026-09-21T16:11:40Z" in table
    store.put(lease.path, [b"damaged"])
    warned = strata("tier", "leases", url)
    assert "(damaged)" in warned.stdout
    assert f"{lease.path} cannot be read" in warned.stderr


def test_a_takeover_prints_the_servers_command_quoted_for_a_shell(bucket, tmp_path):
    _, store, _ = bucket
    (tmp_path / "r&d").symlink_to(Path(store.root))
    odd = f"file://{tmp_path}/r&d"
    data = tmp_path / "a directory"
    done = strata("restore", odd, "--takeover", "--data", str(data))
    assert done.returncode == 0, done.stderr
    command = done.stderr.splitlines()[-1].partition("start it: ")[2]
    echoed = subprocess.run(
        ["sh", "-c", f"printf '%s\\n' {command}"], capture_output=True, text=True, check=True
    )
    assert echoed.stdout.splitlines() == [
        "strata",
        "server",
        "--override",
        "node.id=1",
        "--override",
        f"log.dirs={data}",
        "--override",
        f"tier.url={odd}",
    ]


@pytest.mark.parametrize("command", ["list", "verify", "sweep", "check", "export"])
def test_a_terminal_shows_a_progress_bar_for_a_url_of_any_length(bucket, tmp_path, command):
    link = tmp_path / ("a-very-long-name-" * 5)
    link.symlink_to(Path(bucket[1].root))
    more = {"export": ("events", str(tmp_path / "out")), "check": ("--size", "1MiB")}
    shown = on_a_terminal("tier", command, link.as_uri(), *more.get(command, ()))
    assert "━" in shown
    assert "100%" in shown


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("sweep", "BUCKET", "--grace", "1m"), "--no-broker"),
        (("sweep", "BUCKET", "--grace", "soon"), "'soon'"),
        (("export", "BUCKET", "nothing", "out"), "topic nothing is not in"),
        (("export", "BUCKET", "events", "out", "--partition", "7"), "no partition 7"),
        (("list", "file:///no/such/bucket"), "holds no bucket"),
    ],
)
def test_a_failed_command_prints_one_line(bucket, tmp_path, words, named):
    done = strata(
        "tier", *(bucket[0] if word == "BUCKET" else word for word in words), cwd=tmp_path
    )
    assert done.returncode == 2, done.stdout
    assert named in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()
