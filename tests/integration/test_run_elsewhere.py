"""./run on the real log with a bucket and sinks of the user's or of its own: the same counts everywhere.

Real MinIO, Delta, OpenSearch, Cassandra; the tests count their rows without the code that wrote them.

`./test --all tests/integration/test_run_elsewhere.py` runs it; MinIO is built once with Go, the others come from Maven.
"""

import os
import re
from collections import Counter
from contextlib import closing

import pytest
from combined import FIELDS, LINE
from deltalake import DeltaTable
from sinks.opensearch_server import ask
from tests.compat.cassandra_tables import KEYSPACE, cassandra, rows, run
from tests.compat.object_servers import ENVIRONMENT, s3_server
from tests.compat.real_opensearch import opensearch
from tests.compat.tools import cannot_be_had
from tests.integration.run_job import answer, job, processes_that_name
from tests.integration.server_process import Server
from tests.known_log import LINES, STATUS

from stratalog import read
from stratalog.adapters.bucket_url import parse_bucket_url
from stratalog.adapters.object_store import open_store
from stratalog.adapters.s3_bucket import S3Bucket

BY_NAME = {str(status): count for status, count in STATUS.items()}
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


def counted(**where: str) -> Counter[int]:
    """Read all lines; return their counts by HTTP status, parsed in Python."""
    statuses: Counter[int] = Counter()
    for batch in read("access_log", columns=["value"], **where):
        for line in batch["value"].to_pylist():
            found = READ.match(line.decode())
            assert found is not None
            statuses[int(found[FIELDS.index("status") + 1])] += 1
    return statuses


def test_the_same_counts_through_bucket_seam_tail_and_lake(tmp_path, bucket_url):
    """Goal: every path gives the known counts of the real log, and a user's bucket and table stay."""
    kept, table = tmp_path / "kept", tmp_path / "lake"
    theirs = open_store(bucket_url)
    theirs.put("theirs", [b"not ours"])
    choices = ["--bucket", bucket_url, "--sink", "delta", "--sink-url", table]
    result = answer(job("--json", "--keep", kept, *choices))
    assert result["records_in"] == result["records_out"] == LINES
    assert result["from_bucket"] > LINES / 2 < LINES - result["from_broker"]
    assert result["status"] == result["sink"]["status"] == BY_NAME

    tier_url = result["bucket"]["url"]
    assert theirs.get("theirs") == b"not ours"
    assert sum(1 for _ in open_store(tier_url).list("")) == result["bucket"]["objects"]
    assert not (kept / "bucket").exists()
    alone = counted(tier_url=tier_url)
    assert alone.total() == result["bucket_only_records"] == result["from_bucket"]
    with Server(kept, [f"tier.url={tier_url}"]) as server:
        assert counted(bootstrap_servers=server.address) == STATUS
        assert counted(bootstrap_servers=server.address, tier_url=tier_url) == STATUS

    rows = DeltaTable(str(table)).to_pyarrow_table(columns=["offset", "status"])
    assert sorted(rows["offset"].to_pylist()) == list(range(LINES))
    assert Counter(rows["status"].to_pylist()) == STATUS

    again = job(*choices)
    assert again.returncode == 2
    assert "holds an earlier run's objects" in again.stderr
    again = job("--sink", "delta", "--sink-url", table)
    assert again.returncode == 2
    assert "name an empty directory" in again.stderr


@pytest.mark.parametrize("sink", ["delta", "opensearch", "cassandra"])
def test_a_runs_own_sink_has_the_known_counts_and_is_removed_afterwards(tmp_path, sink):
    done = job("--json", "--sink", sink, TMPDIR=str(tmp_path))
    if "could not be fetched" in done.stderr:
        cannot_be_had(sink, done.stderr)
    result = answer(done)
    assert result["sink"]["name"] == sink
    assert result["sink"]["status"] == result["status"] == BY_NAME
    assert not processes_that_name(tmp_path)
    assert not list(tmp_path.iterdir())


def test_an_index_of_the_users_has_each_line_once_and_stays(tmp_path):
    with opensearch(tmp_path / "opensearch") as server:
        choices = ["--sink", "opensearch", "--sink-url", f"{server.url}/lines"]
        assert answer(job("--json", *choices))["sink"]["status"] == BY_NAME
        wanted = {"size": LINES, "query": {"match_all": {}}, "_source": ["status"]}
        found = ask(server.url, "POST", "/lines/_search", wanted)["hits"]["hits"]
        assert {one["_id"] for one in found} == {f"access_log-0-{n}" for n in range(LINES)}
        assert Counter(one["_source"]["status"] for one in found) == STATUS
        again = job(*choices)
    assert again.returncode == 2
    assert again.stderr.endswith("there is something already; name an empty index\n")


def test_a_table_of_the_users_has_each_line_once_and_stays(tmp_path):
    with cassandra(tmp_path / "cassandra") as server:
        choices = [
            "--sink",
            "cassandra",
            "--sink-url",
            f"cassandra://{server.address}/{KEYSPACE}/lines",
        ]
        early = job(*choices)
        assert early.returncode == 2
        assert f"keyspace '{KEYSPACE}' is missing" in early.stderr
        run(
            server,
            f"CREATE KEYSPACE {KEYSPACE} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}",
        )
        assert answer(job("--json", *choices))["sink"]["status"] == BY_NAME
        found = rows(server, "lines", "offset", "status")
        again = job(*choices)
    assert [offset for offset, _ in found] == list(range(LINES))
    assert Counter(status for _, status in found) == STATUS
    assert again.returncode == 2
    assert again.stderr.endswith("there are rows already; name a table that is not there\n")
