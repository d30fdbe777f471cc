"""`stratalog.read`: a topic as Arrow without Spark, bounded by times in several notations."""

import json
import re
import socket
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.transactional_log import ABORT, COMMIT, Step, transactional_log
from tests.unit.table.buckets import NOW_MS, Bucket, batch

from stratalog import BadOption, Corrupt, DataLoss, Error, Unavailable, read
from stratalog.adapters.object_store import open_store
from stratalog.kernels.columns import COLUMNS
from stratalog.wire.records import BatchBuilder

SECOND = datetime.fromtimestamp(NOW_MS / 1000 + 0.020, UTC)
"""The time of the record 20: records are one millisecond apart."""
YEAR = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def url(tmp_path: Path) -> str:
    bucket = Bucket(open_store(tmp_path.as_uri()))
    bucket.create("t", 2)
    bucket.archive("t", 0, [[batch(0, 30)]], first=0)
    bucket.archive("t", 1, [[batch(0, 10)]], first=0)
    return tmp_path.as_uri()


def offsets(url: str, **asked: Any) -> list[int]:
    return read("t", tier_url=url, **asked).read_all()["offset"].to_pylist()


def test_all_records_are_read_partition_by_partition(url: str) -> None:
    reader = read("t", tier_url=url)
    assert tuple(reader.schema.names) == COLUMNS
    table = reader.read_all()
    assert table["partition"].to_pylist() == [0] * 30 + [1] * 10
    assert table["offset"].to_pylist() == [*range(30), *range(10)]


@pytest.mark.parametrize(
    "since", [SECOND, SECOND.isoformat(), NOW_MS + 20, "2023-01-01T00:00:00Z", None]
)
def test_since_accepts_each_notation_of_a_time(url: str, since: Any) -> None:
    whole = since is None or since == "2023-01-01T00:00:00Z"
    expected = [*range(30), *range(10)] if whole else [*range(20, 30)]
    assert offsets(url, since=since) == expected


def test_until_is_exclusive(url: str) -> None:
    assert offsets(url, since=NOW_MS + 5, until=NOW_MS + 8) == [5, 6, 7, 5, 6, 7]


def test_partitions_and_offsets_choose_what_is_read(url: str) -> None:
    assert offsets(url, partitions=[1]) == list(range(10))
    assert offsets(url, partitions=range(2)) == [*range(30), *range(10)]
    assert offsets(url, offsets={0: (28, None), 1: (None, 2)}) == [28, 29, 0, 1]
    assert offsets(url, offsets={1: (3, 5)}) == [3, 4]
    assert offsets(url, offsets={1: (3, 3)}) == []
    assert offsets(url, offsets={0: (7, 20)}, since=NOW_MS + 5, until=NOW_MS + 9) == [7, 8]


def test_missing_offsets_are_data_loss_or_skipped(url: str) -> None:
    beyond = {0: (25, 40), 1: (0, 5)}
    with pytest.raises(DataLoss, match="t-0: offset 40 lies behind the log's end 30"):
        offsets(url, offsets=beyond)
    found = offsets(url, offsets=beyond, fail_on_data_loss=False)
    assert found == [*range(25, 30), *range(5)]


def test_a_duration_counts_back_from_now(url: str) -> None:
    assert offsets(url, since=timedelta(seconds=1)) == []
    assert len(offsets(url, since=timedelta(days=20_000))) == 40
    assert offsets(url, until=timedelta(days=20_000)) == []


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"since": "yesterday"}, "since is 'yesterday': write ISO 8601"),
        ({"since": "2026-01-31"}, "since is 2026-01-31T00:00:00, without a time zone"),
        ({"since": True}, "since is True: a datetime"),
        ({"since": 1.5}, "since is 1.5: a datetime"),
        ({"until": 10**30}, "until is 10+: milliseconds since 1970 have 63 bits"),
        ({"since": NOW_MS + 1, "until": NOW_MS}, "since .* is later than until"),
        ({"partitions": [2]}, "topic t has no partition 2"),
        ({"partitions": []}, "no partition is named"),
        ({"partitions": ["0"]}, "'0' is not a partition: a whole number"),
        ({"partitions": 0}, "partitions is 0: a list"),
        ({"partitions": [0], "offsets": {0: (1, 2)}}, "are both given"),
        ({"offsets": (1, 2)}, r"offsets is \(1, 2\): {partition: \(first, end\)} is needed"),
        ({"offsets": {0: 5}}, r"offsets of partition 0 are 5: \(first, end\) is needed"),
        ({"offsets": {0: (-1, 5)}}, "-1 is not an offset"),
        ({"offsets": {0: (9, 8)}}, "begin at offset 9 and end before it, at 8"),
        ({"columns": ["valeu"]}, "no column 'valeu'"),
        ({"columns": "key"}, r"columns is 'key': a list of names is needed"),
        ({"columns": [1]}, r"columns is \[1\]: a list of names"),
        ({"tier_url": None}, "^bootstrap_servers or tier_url .* must say where the log is"),
        ({"tier_url": Path("/b")}, r"tier_url is PosixPath\('/b'\): a text is needed"),
        (
            {"tier_url": "s3://u:p@b"},
            "tier_url is 's3://…@b': credentials belong in the environment",
        ),
        ({"tier_url": "file:///nowhere"}, "file:///nowhere holds no bucket of stratalog"),
        ({"tier_url": "http://b"}, "http://b.* is no bucket"),
        ({"bootstrap_servers": ["a:1"]}, r"bootstrap_servers is \['a:1'\]: a text is needed"),
        ({"bootstrap_servers": "a"}, "bootstrap_servers is 'a': 'a' is not host:port"),
        ({"isolation": True}, "isolation is True: a text is needed"),
        ({"fail_on_data_loss": "no"}, "fail_on_data_loss is 'no': True or False is needed"),
        ({"metrics": {}}, r"metrics is {}: a stratalog.ReadMetrics\(\) is needed"),
        ({"security": "SSL"}, "security is no mapping of texts"),
        ({"security": {"ssl.keystore.location": 1}}, "security is no mapping of texts"),
        ({"security": {"client.id": "x"}}, "security: 'client.id' is no property of security"),
        ({"key": 5}, "key is 5: bytes"),
        ({"key": [5]}, "key has 5: bytes or a text"),
    ],
)
def test_a_wrong_argument_is_one_line(url: str, asked: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        read("t", **({"tier_url": url} | asked))


@pytest.mark.parametrize("topic", [None, "", "t,u", ["t"], 5])
def test_one_topic_is_one_table(url: str, topic: Any) -> None:
    with pytest.raises(BadOption, match=r"topic is .*: the name of one topic is needed"):
        read(topic, tier_url=url)


def test_every_failure_is_of_one_family_and_without_a_cause(url: str) -> None:
    """Each documented kind is below `stratalog.Error`; a notebook shows one traceback, and no other before it."""
    damaged = Path(url.removeprefix("file://"))
    with socket.socket() as held:  # it does not listen
        held.bind(("127.0.0.1", 0))
        nowhere = f"127.0.0.1:{held.getsockname()[1]}"
        with pytest.raises(Unavailable, match="Connection refused"):
            read("t", bootstrap_servers=nowhere)
    asked: list[tuple[type[Error], dict[str, Any]]] = [
        (BadOption, {"tier_url": url, "since": "x"}),
        (BadOption, {"tier_url": "s3://bucket?credentials_file=/nowhere"}),
        (BadOption, {"tier_url": url, "security": {"security.protocol": "TLS"}}),
        (DataLoss, {"tier_url": url, "offsets": {0: (25, 40)}}),
        (Corrupt, {"tier_url": url}),
    ]
    for one in damaged.rglob("*.seg"):
        one.write_bytes(b"damaged")
    for kind, arguments in asked:
        with pytest.raises(kind) as failed:
            read("t", **arguments).read_all()
        assert isinstance(failed.value, Error)
        assert failed.value.__cause__ is None, kind
        assert failed.value.__suppress_context__ or failed.value.__context__ is None, kind
        assert "\n" not in str(failed.value)
        assert "failOnDataLoss" not in str(failed.value)


def test_neither_spark_nor_pandas_is_loaded(url: str) -> None:
    code = (
        "import sys, stratalog; assert 'pyarrow' not in sys.modules\n"
        f"assert stratalog.read('t', tier_url={url!r}).read_all().num_rows == 40\n"
        "assert not {'pyspark', 'pandas'} & sys.modules.keys()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stderr


def documented() -> list[str]:
    """Return the programs of the docs section on reading without Spark."""
    text = (Path(__file__).parents[3] / "docs/spark.md").read_text()
    section = text[text.index("## Without Spark") :]
    return re.findall(r"```python\n(.*?)```", section, re.DOTALL)


def test_json_values_are_read_as_the_page_says_in_duckdb_and_in_pandas(tmp_path: Path) -> None:
    users = ["ann", "bob", "ann"]
    builder = BatchBuilder("zstd")
    builder.add(b"", b"before the year, and no JSON", NOW_MS)
    for second, user in enumerate(users):
        value = json.dumps({"user": user, "page": "/"}).encode()
        builder.add(None, value, int(YEAR.timestamp() * 1000) + second)
    bucket = Bucket(open_store(tmp_path.as_uri()))
    bucket.create("events")
    bucket.archive("events", 0, [[bytes(builder.build(0, 0))]])
    in_duckdb, in_pandas, _ = (
        program.replace("s3://history", tmp_path.as_uri()).replace(
            'bootstrap_servers="localhost:9092"',
            f"tier_url={tmp_path.as_uri()!r}, since={YEAR.isoformat()!r}",
        )
        for program in documented()
    )
    known: dict[str, Any] = {}
    exec(in_duckdb.replace("duckdb.sql(", "counted = duckdb.sql("), known)
    assert sorted(known["counted"].fetchall()) == [("ann", 2), ("bob", 1)]
    exec(in_pandas, known)
    assert known["frame"]["user"].tolist() == users


def test_a_key_is_read_as_the_page_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bucket = Bucket(open_store(tmp_path.as_uri()))
    bucket.create("orders")
    segments = [[encoded(base, key)] for base, key in enumerate([b"k1", b"k2", b"k1", b"k3"])]
    bucket.archive("orders", 0, segments, key_filters=True)
    exec(documented()[2].replace("s3://history", tmp_path.as_uri()), {})
    said = capsys.readouterr().out
    assert said.startswith("b'value-2' 2 records; from the bucket ")
    assert "in 8 requests" in said, "a page of each segment, and two segments with their indexes"


def encoded(offset: int, key: bytes) -> bytes:
    builder = BatchBuilder()
    builder.add(key, b"value-%d" % offset, NOW_MS)
    return bytes(builder.build(offset, 0))


def test_records_of_aborted_transactions_are_hidden_for_read_committed(tmp_path: Path) -> None:
    log = transactional_log(
        [Step(1, 3), Step(2, 2), Step(1, 0, kind=ABORT), Step(2, 0, kind=COMMIT), Step(3, 4)]
    )
    bucket = Bucket(open_store(tmp_path.as_uri()))
    bucket.create("t")
    bucket.archive("t", 0, [log.batches[:2], log.batches[2:]], aborted=log.aborted)
    assert log.committed != log.uncommitted
    assert offsets(tmp_path.as_uri()) == log.uncommitted
    assert offsets(tmp_path.as_uri(), isolation="read_committed") == log.committed
    with pytest.raises(ValueError, match=r"^isolation is 'committed': 'read_uncommitted' or"):
        offsets(tmp_path.as_uri(), isolation="committed")
