"""./run on the real log with a bucket and a table of the user's, real MinIO and real Delta: the same counts everywhere.

`./test --all tests/integration/test_run_elsewhere.py` runs it; MinIO is built once with Go, Delta comes from Maven.
"""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest
from combined import FIELDS, LINE
from deltalake import DeltaTable
from tests.compat.object_servers import ENVIRONMENT, s3_server
from tests.integration.server_process import Server

from stratalog import read
from stratalog.adapters.bucket_url import parse_bucket_url
from stratalog.adapters.object_store import open_store
from stratalog.adapters.s3_bucket import S3Bucket

PIPELINE = Path(__file__).parent.parent.parent / "pipelines" / "access_log"
JOB = [sys.executable, str(PIPELINE / "job.py")]
# What is known of the log: counted by the publisher's own tools, not by ours.
LINES = 10_000
KNOWN = {200: 9126, 304: 445, 404: 213, 301: 164, 206: 45, 500: 3, 416: 2, 403: 2}
READ = re.compile(LINE.replace(r"\z", r"\Z"))

pytestmark = [pytest.mark.big, pytest.mark.xdist_group("spark"), pytest.mark.timeout(1800)]


@pytest.fixture
def bucket_url(tmp_path, monkeypatch):
    """A bucket on a MinIO of the test's own, its keys in the environment."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    with s3_server("minio", tmp_path / "server") as server:
        url = server.url("mine", "some/prefix")
        with closing(S3Bucket(parse_bucket_url(url))) as bucket:
            bucket.create()
        yield url


def job(*arguments: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*JOB, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=1500,
        stdin=subprocess.DEVNULL,
        check=False,
    )


def counted(**where: str) -> Counter[int]:
    """Lines by HTTP status of all that can be read there, parsed in Python."""
    statuses: Counter[int] = Counter()
    for batch in read("access_log", columns=["value"], **where):
        for line in batch["value"].to_pylist():
            found = READ.match(line.decode())
            assert found is not None
            statuses[int(found[FIELDS.index("status") + 1])] += 1
    return statuses


def test_the_same_counts_through_bucket_seam_tail_and_lake(tmp_path, bucket_url):
    """Goal: what is known of the real log comes out of every path to it, and a user's bucket and table stay."""
    kept, table = tmp_path / "kept", tmp_path / "lake"
    theirs = open_store(bucket_url)
    theirs.put("theirs", [b"not ours"])
    choices = ["--bucket", bucket_url, "--sink", "delta", "--sink-url", table]
    done = job("--json", "--keep", kept, *choices)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    known = {str(status): count for status, count in KNOWN.items()}
    assert result["records_in"] == result["records_out"] == LINES
    assert result["from_bucket"] > LINES / 2 < LINES - result["from_broker"]
    assert result["status"] == result["sink"]["status"] == known

    tier_url = result["bucket"]["url"]
    assert theirs.get("theirs") == b"not ours"
    assert sum(1 for _ in open_store(tier_url).list("")) == result["bucket"]["objects"]
    assert not (kept / "bucket").exists()
    alone = counted(tier_url=tier_url)
    assert alone.total() == result["bucket_only_records"] == result["from_bucket"]
    with Server(kept, [f"tier.url={tier_url}"]) as server:
        assert counted(bootstrap_servers=server.address) == KNOWN
        assert counted(bootstrap_servers=server.address, tier_url=tier_url) == KNOWN

    rows = DeltaTable(str(table)).to_pyarrow_table(columns=["offset", "status"])
    assert sorted(rows["offset"].to_pylist()) == list(range(LINES))
    assert Counter(rows["status"].to_pylist()) == KNOWN

    again = job(*choices)
    assert again.returncode == 2
    assert "holds an earlier run's objects" in again.stderr
    again = job("--sink", "delta", "--sink-url", table)
    assert again.returncode == 2
    assert "name an empty directory" in again.stderr
