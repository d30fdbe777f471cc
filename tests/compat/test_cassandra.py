"""Rows into a real Cassandra: types, rows written again, tables that do not fit, users, a server killed in between.

Method: every row contains its own offset. The driver reads the rows, not the code that wrote them.
"""

import json
import subprocess
import sys
from collections import Counter
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from threading import Thread

import pyarrow as pa
import pytest
from tests.compat.cassandra_tables import cassandra, options, rows
from tests.integration.log_topic import append
from tests.integration.server_process import Server
from tests.known_log import STATUS, log_lines
from tests.spark_scratch import scratch

from stratalog.cli.pipeline import spark_environment
from stratalog.errors import Unavailable, UserError
from stratalog.sinks.cassandra import prepare, write_rows
from stratalog.sinks.cassandra_options import parse_cassandra_options

pytestmark = [pytest.mark.big, pytest.mark.serial, pytest.mark.timeout(1800)]

PIPELINE = Path(__file__).parents[2] / "pipelines" / "access_log"
PROGRAM = Path(__file__).parent / "cassandra_stream.py"
RECORD = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("status", pa.int32()),
        ("agent", pa.string()),
    ]
)


def batch(first: int, count: int) -> pa.RecordBatch:
    offsets = range(first, first + count)
    return pa.RecordBatch.from_pylist(
        [
            {"topic": "t", "partition": 0, "offset": n, "status": 200 + n, "agent": f"agent {n}"}
            for n in offsets
        ],
        schema=RECORD,
    )


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with cassandra(tmp_path_factory.mktemp("cassandra")) as running:
        yield running


def written(server, table, batches, **more):
    parsed = parse_cassandra_options(options(server, table, **more))
    prepare(parsed, RECORD)
    return write_rows(batches, parsed)


def test_rows_are_stored_unchanged_and_once_after_repeated_writes(server):
    for _ in range(3):
        assert written(server, "again", [batch(0, 3000), batch(3000, 10)]) == 3010
    found = rows(server, "again", "topic", "partition", "offset", "status", "agent")
    assert found == [("t", 0, n, 200 + n, f"agent {n}") for n in range(3010)]


def test_values_of_every_type_are_read_as_they_were_written(server):
    moment = datetime(1969, 12, 31, 23, 59, 59, 999000, tzinfo=UTC)
    values = {
        "topic": ("t", pa.string(), "t"),
        "partition": (0, pa.int32(), 0),
        "offset": (1 << 40, pa.int64(), 1 << 40),
        "data": (b"\xff\x00", pa.binary(), b"\xff\x00"),
        "flag": (True, pa.bool_(), True),
        "tiny": (-128, pa.int8(), -128),
        "small": (-32768, pa.int16(), -32768),
        "real": (0.5, pa.float32(), 0.5),
        "double": (0.1, pa.float64(), 0.1),
        "price": (Decimal("1.50"), pa.decimal128(10, 2), Decimal("1.50")),
        "moment": (moment, pa.timestamp("us", "UTC"), moment.replace(tzinfo=None)),
        "local": (moment.replace(tzinfo=None), pa.timestamp("us"), moment.replace(tzinfo=None)),
        "day": (date(2015, 5, 17), pa.date32(), date(2015, 5, 17)),
        "nothing": (None, pa.string(), None),
    }
    schema = pa.schema([(name, kind) for name, (_, kind, _) in values.items()])
    row = {name: value for name, (value, _, _) in values.items()}
    parsed = parse_cassandra_options(options(server, "types"))
    prepare(parsed, schema)
    assert write_rows([pa.RecordBatch.from_pylist([row], schema=schema)], parsed) == 1
    [found] = rows(server, "types", *values)
    day = found[list(values).index("day")]
    assert day.date() == date(2015, 5, 17)
    assert [one for one in found if one is not day] == [
        value for name, (_, _, value) in values.items() if name != "day"
    ]


def test_a_key_option_orders_the_rows(server):
    key = "((topic, partition), status, offset)"
    assert written(server, "ordered", [batch(0, 10)], primary_key=key) == 10
    assert len(rows(server, "ordered", "offset")) == 10
    # A second writer needs no key options: it uses the existing table.
    assert written(server, "ordered", [batch(10, 10)], create_table="false") == 10
    assert len(rows(server, "ordered", "offset")) == 20


@pytest.mark.parametrize(
    ("more", "schema", "reason"),
    [
        ({"table": "nowhere", "create_table": "false"}, RECORD, "table 'logs.nowhere' is missing"),
        ({"keyspace": "nowhere", "replication": ""}, RECORD, "keyspace 'nowhere' is missing"),
        ({}, RECORD.append(pa.field("extra", pa.string())), "has no column 'extra'"),
        (
            {},
            RECORD.set(3, pa.field("status", pa.string())),
            "column 'status' is text, in table 'logs.fits' it is int",
        ),
    ],
)
def test_a_table_that_does_not_fit_is_one_line(server, more, schema, reason):
    written(server, "fits", [batch(0, 1)])
    with pytest.raises(ValueError, match=reason) as caught:
        prepare(
            parse_cassandra_options(options(server, "fits", create_table="false") | more), schema
        )
    assert "\n" not in str(caught.value)


def test_a_value_that_cassandra_refuses_fails_at_once(server):
    """Goal: the sink does not retry a refused value; the limit is Cassandra's key length."""
    parsed = parse_cassandra_options(
        options(server, "refused", primary_key="((topic, partition, offset), agent)")
    )
    prepare(parsed, RECORD)
    row = batch(0, 1).to_pylist()[0] | {"agent": "x" * 70_000}
    with pytest.raises(
        UserError, match=r"table logs.refused refuses a row: InvalidRequest"
    ) as caught:
        write_rows([pa.RecordBatch.from_pylist([row], schema=RECORD)], parsed)
    assert "\n" not in str(caught.value)


def test_without_a_server_the_error_is_one_line():
    given = {"hosts": "127.0.0.1:1", "keyspace": "k", "table": "t"}
    quick = {"max_retries": "2", "backoff.init": "10ms", "timeout": "1s"}
    with pytest.raises(
        Unavailable, match=r"table k.t: Cassandra: no host answers.*after 2 retries"
    ) as caught:
        write_rows([batch(0, 1)], parse_cassandra_options(given | quick))
    assert "\n" not in str(caught.value)


def test_a_server_killed_during_a_write_loses_and_repeats_no_row(tmp_path):
    """Goal: SIGKILL between two requests of a task, and a restart on the same port while the task retries."""
    again = []

    def come_back(port: int) -> None:
        with cassandra(tmp_path / "data", port=port):
            again.append(port)
            finished.join()

    def batches(server):
        for number in range(20):
            if number == 7:
                server.process.kill()
                server.process.wait()
                returning.start()
            yield batch(number * 500, 500)

    def work(server) -> None:
        counts.append(written(server, "killed", batches(server)))

    counts: list[int] = []
    with cassandra(tmp_path / "data") as server:
        returning = Thread(target=come_back, args=(server.port,))
        finished = Thread(target=work, args=(server,))
        finished.start()
        finished.join()
        returning.join()
    assert counts == [10_000]
    assert again
    with cassandra(tmp_path / "data", port=server.port) as server:
        found = rows(server, "killed", "offset", "status")
    assert found == [(n, 200 + n) for n in range(10_000)]


def test_a_stream_continues_after_a_killed_server_restarts(tmp_path):
    """Goal: SIGKILL between two micro-batches or in one; the log's known answers, each line once."""
    data, table = tmp_path / "data", "streamed"

    def count() -> int:
        try:
            return len(rows(server, table, "offset"))
        except (UserError, Unavailable):  # the table does not exist yet
            return 0

    with Server(tmp_path, [f"tier.url={(tmp_path / 'bucket').as_uri()}"]) as broker:
        append(broker, tmp_path / "log", log_lines(), create=True)
        with cassandra(data) as server:
            program = streaming(broker, options(server, table, concurrency="8"), tmp_path)
            try:
                while not (some := count()):
                    assert program.poll() is None, (tmp_path / "spark.log").read_text()[-3000:]
                assert some < len(log_lines()), (
                    "the server must be killed in the middle of the stream"
                )
                server.process.kill()
                server.process.wait()
                with cassandra(data, port=server.port):
                    assert program.wait(600) == 0, (tmp_path / "spark.log").read_text()[-3000:]
                    found = rows(server, table, "offset", "status")
            finally:
                program.kill()
                program.wait()
    assert [offset for offset, _ in found] == list(range(len(log_lines())))
    assert Counter(status for _, status in found) == STATUS


def streaming(broker: Server, given: dict[str, str], place: Path) -> "subprocess.Popen[bytes]":
    environment = spark_environment(place / "spark", master="local[2]", modules=[PIPELINE])
    del environment["SPARK_REMOTE"]
    command = [sys.executable, str(PROGRAM), broker.address, json.dumps(given)]
    with (place / "spark.log").open("wb") as log:
        return subprocess.Popen(
            [*command, str(place / "checkpoint")],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**environment, **scratch(place)},
            cwd=place,
        )


def test_user_and_password_come_from_the_environment(tmp_path, monkeypatch):
    guarded = {"authenticator": "PasswordAuthenticator", "authorizer": "CassandraAuthorizer"}
    with cassandra(tmp_path, guarded) as server:
        parsed = parse_cassandra_options(options(server, "guarded", max_retries="3"))
        for user, password, reason in (
            (None, None, "AuthenticationFailed|authentication"),
            ("cassandra", "wrong", "AuthenticationFailed"),
        ):
            for name, value in (("CASSANDRA_USERNAME", user), ("CASSANDRA_PASSWORD", password)):
                if value is not None:
                    monkeypatch.setenv(name, value)
            with pytest.raises(UserError, match=reason) as caught:
                prepare(parsed, RECORD)
            assert "wrong" not in str(caught.value)
            assert "\n" not in str(caught.value)
        monkeypatch.setenv("CASSANDRA_PASSWORD", "cassandra")
        prepare(parsed, RECORD)
        assert write_rows([batch(0, 5)], parsed) == 5
    monkeypatch.delenv("CASSANDRA_PASSWORD")
    with pytest.raises(
        UserError, match="CASSANDRA_USERNAME is set in the environment, CASSANDRA_PASSWORD is not"
    ):
        prepare(parsed, RECORD)
