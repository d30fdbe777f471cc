"""Spark parses lines into columns: compared with columns written by hand, and with the loader's times."""

import random
from datetime import UTC, datetime

import pytest
from combined import line_time_ms
from tests.spark_scratch import scratch

from stratalog.cli.pipeline import spark_environment
from stratalog.errors import UserError

TIME = "17/May/2015:10:05:03 +0000"
HEAD = f"1.2.3.4 - - [{TIME}]"

# line -> its important columns, or the reason why the line is bad
LINES = {
    f'{HEAD} "GET / HTTP/1.1" 200 1 "-" "a" 0.250': {"agent": "a", "took_ms": 250.0},
    f'{HEAD} "GET / HTTP/1.1" 200 1 "-" "a" 1250': {"agent": "a", "took_ms": 1.25},
    f'{HEAD} "GET / HTTP/1.1" 200 1 "-" "a" 0 more': {"agent": "a", "took_ms": 0.0},
    f'{HEAD} "GET / HTTP/1.1" 200 1 "-" "a" 12x': {"agent": "a", "took_ms": None},
    f'{HEAD} "GET / HTTP/1.1" 200 1 "-" "a" -': {"agent": "a", "took_ms": None},
    f'{HEAD} "GET / HTTP/1.1" 200 1 "-" "odd "x" 7" 0.5': {"agent": 'odd "x" 7', "took_ms": 500.0},
    f'{HEAD} "GET / HTTP/1.1" 200 1 "-" "curl/8.0" "-"': {"agent": "curl/8.0", "took_ms": None},
    f'{HEAD} "GET / HTTP/1.1" 200 1 "-" "curl/8.0" "203.0.113.9"': {"agent": "curl/8.0"},
    f'{HEAD} "GET / HTTP/1.1" 200 1 "-" "curl/8.0" "203.0.113.9, 198.51.100.2" 0.004': {
        "agent": "curl/8.0",
        "took_ms": 4.0,
    },
    f'{HEAD} "GET / HTTP/1.1" 200 1 "-" "a" "-" 0.25 0.24 .': {"agent": "a", "took_ms": 250.0},
    f'{HEAD} "GET / HTTP/1.1" 200 1 "-" "a" 0.25 "203.0.113.9"': {"agent": "a", "took_ms": 250.0},
    f'{HEAD} "GET / HTTP/1.1" 200 1 "-" "-" "203.0.113.9"': {"agent": None},
    f'{HEAD} "GET / HTTP/1.1" 200 1 "-" "a \\"b\\" c" "203.0.113.9"': {"agent": 'a \\"b\\" c'},
    f'{HEAD} "GET / HTTP/1.1" 200 1 "-" "odd "x" 7" "203.0.113.9"': {"agent": 'odd "x" 7'},
    f'{HEAD} "GET / HTTP/1.1" 000 0 "-" "curl/8.0"': {"status": 0, "agent": "curl/8.0"},
    f'{HEAD} "" 000 0 "-" "-" "-"': {"request": "", "status": 0, "agent": None},
    f'example.org:443 192.0.2.1 - ann [{TIME}] "GET / HTTP/1.1" 200 1 "-" "a" 12': {
        "host": "192.0.2.1",
        "user": "ann",
        "took_ms": 0.012,
    },
    f'example.org:80 client.example.net - - [{TIME}] "GET / HTTP/1.1" 200 1': {
        "host": "client.example.net",
        "user": None,
    },
    f'example.org 2001:db8::1 - - [{TIME}] "GET / HTTP/1.1" 200 1': {
        "host": "2001:db8::1",
        "user": None,
    },
    f'203.0.113.9, 198.51.100.2 - ann [{TIME}] "GET / HTTP/1.1" 200 1': {
        "host": "203.0.113.9",
        "user": "ann",
    },
    f'203.0.113.9, 198.51.100.2, 10.0.0.1 - - [{TIME}] "GET / HTTP/1.1" 200 1': {
        "host": "203.0.113.9",
        "user": None,
    },
    f'h bob - x [{TIME}] "GET / HTTP/1.1" 200 1': {"host": "h", "user": "- x"},
    f'{HEAD} "GET /a/b?q=1 HTTP/1.1" 200 12 "http://r/" "Mozilla/5.0 (X11)"': {
        "host": "1.2.3.4",
        "user": None,
        "time": datetime(2015, 5, 17, 10, 5, 3, tzinfo=UTC),
        "request": "GET /a/b?q=1 HTTP/1.1",
        "method": "GET",
        "path": "/a/b",
        "status": 200,
        "bytes": 12,
        "referer": "http://r/",
        "agent": "Mozilla/5.0 (X11)",
    },
    f'::1 - frank [{TIME}] "POST / HTTP/2.0" 304 - "-" "-"': {
        "host": "::1",
        "user": "frank",
        "status": 304,
        "bytes": None,
        "referer": None,
        "agent": None,
    },
    f'h - a b [{TIME}] "GET /x y HTTP/1.0" 404 0': {"user": "a b", "path": "/x y", "agent": None},
    f'{HEAD} "GET /" 200 1': {"method": "GET", "path": "/", "bytes": 1},
    f'{HEAD} "GET /p HTTP/1.1" 200': {"status": 200, "bytes": None},
    f'{HEAD} "-" 408 -': {"request": "-", "method": None, "path": None, "status": 408},
    f'{HEAD} "" 400 0 "-" "-"': {"request": "", "method": None, "status": 400},
    f'{HEAD} "\\x16\\x03\\x01" 400 226': {"request": "\\x16\\x03\\x01", "path": None},
    f'{HEAD} "GET /\\"a\\" HTTP/1.1" 200 1 "\\"r\\"" "x"': {
        "path": '/\\"a\\"',
        "referer": '\\"r\\"',
        "agent": "x",
    },
    f'{HEAD} "GET /a"b" HTTP/1.1" 200 1 "-" "x"': {"path": '/a"b"', "status": 200, "agent": "x"},
    f'{HEAD} "GET /\\\\" 200 1': {"path": "/\\\\", "status": 200},
    f'{HEAD} "GET /e HTTP/1.1" 200 1 "-" "odd "quoted" agent"': {"agent": 'odd "quoted" agent'},
    f'{HEAD} "GET /e HTTP/1.1" 200 1 "-" "agent é 中文"': {"agent": "agent é 中文"},
    f'{HEAD} "GET /e HTTP/1.1" 200 1 "-" "{"x" * 2000}"': {"agent": "x" * 2000},
    f'{HEAD} "GET /e HTTP/1.1" 200 1 "-" "{chr(92)}"': {"status": 200},
    f'{HEAD} "GET /{"é" * 100_000} HTTP/1.1" 200 1': {"path": "/" + "é" * 100_000},
    f'{HEAD} "GET /{chr(92) * 20_000} HTTP/1.1" 200 1': {"path": "/" + "\\" * 20_000},
    f'{HEAD} "GET /\x1f\x00\x01 HTTP/1.1" 200 1 "-" "a\x1fb"': {
        "path": "/ \x00\x01",
        "agent": "a b",
    },
    f'{HEAD} "GET / HTTP/1.1" 200 99999999999999999999': {"bytes": None, "status": 200},
    f'{HEAD} "GET / HTTP/1.1" 200 12 more words "a" b': {"bytes": 12, "referer": None},
    'h - - [17/May/2015:23:30:00 -0130] "GET / HTTP/1.1" 200 1': {
        "time": datetime(2015, 5, 18, 1, 0, tzinfo=UTC)
    },
    b'\xff\xfe - - [17/May/2015:10:05:03 +0000] "GET /\xc3\x28 HTTP/1.1" 200 1 "-" "\xf0\x9f"': {
        "host": "��",
        "path": "/�(",
        "agent": "�",
    },
    "": "empty",
    "\x00\x01 garbage": "no time",
    "GET / no host no time": "no time",
    '"' * 40: "no time",
    '"' * 100_000: "no time",
    f'[{TIME}] "GET / HTTP/1.1" 200 1': "no host",
    f' - - [{TIME}] "GET / HTTP/1.1" 200 1': "no host",
    f'{HEAD} "GET / HTTP/1.1" 2000 1': "no status",
    f'{HEAD} "GET / HTTP/1.1" abc 1': "no status",
    f'{HEAD} "GET / HTTP/1.1" 09 1': "no status",
    f'{HEAD} "GET / HTTP/1.1"': "no status",
    f"{HEAD} GET / HTTP/1.1 200 1": "no request",
    f'{HEAD} "GET / HTTP/1.1 200 1': "no request",
    f"{HEAD} {chr(34) * 100_000}": "no status",
    'h - - [31/Feb/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 1': "no such time",
    'h - - [17/May/2015:10:05:60 +0000] "GET / HTTP/1.1" 200 1': "no such time",
    'h - - [-] "GET / HTTP/1.1" 200 1': "no time",
}


def odd_times():
    """Times near the limits of a calendar, from a fixed seed."""
    chance = random.Random(3)
    for _ in range(3000):
        day, hour, minute, second = (chance.choice(at) for at in EDGES)
        month = chance.choice("Jan Feb Apr Sep Dec".split())
        year = chance.choice([0, 1, 1900, 1969, 1970, 2000, 2023, 2024, 9999])
        zone = chance.choice("+0000 -0000 +0530 -1200 +1800 -1800 +1801 +1900 +0060 -0059".split())
        yield f"{day:02}/{month}/{year:04}:{hour:02}:{minute:02}:{second:02} {zone}"


EDGES = ([0, 1, 28, 29, 30, 31, 32], [0, 12, 23, 24], [0, 59, 60], [0, 59, 60, 61])


@pytest.fixture(scope="module")
def read(tmp_path_factory):
    """Parse lines into rows, in a Spark session of this process."""
    state = tmp_path_factory.mktemp("spark")
    try:
        environment = spark_environment(state, master="local[1]")
    except UserError as error:
        pytest.skip(str(error))
    del environment["SPARK_REMOTE"], environment["SPARK_CONF_DIR"]
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**environment, **scratch(state)}.items():
            patch.setenv(name, value)
        import pyarrow as pa
        from parse import COLUMNS, with_columns
        from pyarrow.parquet import write_table
        from pyspark import SparkContext
        from pyspark.sql import SparkSession
        from pyspark.sql import functions as F  # noqa: N812

        spark = (
            SparkSession.builder.master("local[1]")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1")
            .config("spark.sql.warehouse.dir", str(state))
            .getOrCreate()
        )

        texts = [name for name in COLUMNS if name != "time"]

        def rows(lines):
            path = state / f"{len(lines)}.parquet"
            write_table(pa.table({"value": pa.array(lines, pa.binary())}), path)
            parsed = with_columns(spark.read.parquet(str(path)))
            return parsed.select(
                "value", "bad", "reason", F.unix_millis("time").alias("ms"), *texts
            ).collect()

        yield rows
        gateway = spark.sparkContext._gateway
        spark.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(30)
        SparkContext._gateway = SparkContext._jvm = None


def test_lines_have_the_columns_written_by_hand(read):
    lines = [line if isinstance(line, bytes) else line.encode() for line in LINES]
    rows = read(lines)
    for line, row, wanted in zip(lines, rows, LINES.values(), strict=True):
        assert bytes(row.value) == line
        if isinstance(wanted, str):
            assert row.bad, line[:200]
            assert row.reason == wanted, line[:200]
            assert (row.host, row.ms, row.request, row.status, row.path) == (None,) * 5
            continue
        assert not row.bad, line[:200]
        assert row.reason is None
        for column, value in wanted.items():
            seen = row["ms"] if column == "time" else row[column]
            assert seen == (value.timestamp() * 1000 if column == "time" else value), (
                column,
                line[:200],
            )


def test_spark_and_the_loader_read_the_same_time(read):
    times = list(odd_times())
    lines = [f'h - - [{time}] "GET / HTTP/1.1" 200 1'.encode() for time in times]
    for time, line, row in zip(times, lines, read(lines), strict=True):
        loaded = line_time_ms(line)
        assert row.ms == loaded, time
        assert row.bad == (loaded is None), time
