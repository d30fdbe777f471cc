"""The options of `format("stratalog_cassandra")`, and the CQL statements that they give."""

from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from stratalog.sinks.cassandra_options import Key, parse_cassandra_options
from stratalog.sinks.cql import columns_of, create_keyspace, create_table, insert, quoted, rows_of

NEEDED = {"hosts": "one", "keyspace": "logs", "table": "access_log"}
NAMES = [("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())]
RECORD = pa.schema(NAMES)


def parsed(**more):
    return parse_cassandra_options(NEEDED | {name.replace("__", "."): more[name] for name in more})


def test_options_have_defaults_and_accepted_spellings():
    found = parsed(CONSISTENCY="one", hosts="a:9043, [::1]:9043 ,c:9043", backoff__init="500ms")
    assert found.hosts == (("a", 9043), ("::1", 9043), ("c", 9043))
    assert (found.consistency, found.concurrency, found.create_table) == ("ONE", 64, False)
    assert (found.backoff_init_s, found.backoff_max_s, found.timeout_s) == (0.5, 60, 10)
    assert parsed().hosts == (("one", 9042),)
    assert parsed().consistency == "LOCAL_QUORUM"
    assert parsed().replication is None
    assert parsed().key == Key(("topic", "partition", "offset"), ())
    assert parsed(checkpointLocation="/somewhere") == parsed()


@pytest.mark.parametrize(
    ("option", "value", "reason"),
    [
        ("keyspce", "x", "unknown option 'keyspce' of a sink: did you mean 'keyspace'?"),
        ("zzz", "x", "see docs/cassandra.md"),
        ("hosts", " ", "option 'hosts' must say where to write"),
        ("hosts", ",", "option 'hosts' names none"),
        ("hosts", "http://one", "host or host:port is needed"),
        ("hosts", "one:0", "host or host:port is needed"),
        ("hosts", "one:99999", "host or host:port is needed"),
        ("hosts", "me:secret@one", "host or host:port is needed"),
        ("hosts", "a:1,b:2", "all have the same port"),
        ("table", "a-b", "a letter in front"),
        ("keyspace", "x" * 49, "at most 48"),
        ("create_table", "yes", "true or false is needed"),
        ("consistency", "SERIAL", "one of ANY, ONE"),
        ("concurrency", "0", "a whole number of at least 1"),
        ("max_retries", "-1", "a whole number is needed"),
        ("timeout", "fast", "a time like 500ms"),
        ("replication", "0", "how many copies"),
        ("replication", "[3]", "how many copies"),
        ("replication", '{"dc1": "3"}', "how many copies"),
        ("replication", '{"d\'c": 3}', "how many copies"),
        ("primary_key", "topic, partition, offset", "columns as in CQL"),
        ("primary_key", "((topic), offset", "columns as in CQL"),
        ("primary_key", "(topic, partition, topic, offset)", "columns as in CQL"),
        ("primary_key", "((host), time)", "without topic, partition, offset"),
        ("password", "x", "set CASSANDRA_PASSWORD in the environment"),
        ("UserName", "x", "set CASSANDRA_USERNAME in the environment"),
    ],
)
def test_an_error_is_one_line_that_names_the_option(option, value, reason):
    with pytest.raises(ValueError) as caught:
        parse_cassandra_options({**NEEDED, option: value})
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value).replace("me:secret@one", "")


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("(topic, partition, offset)", Key(("topic",), ("partition", "offset"))),
        ("((topic,partition),offset)", Key(("topic", "partition"), ("offset",))),
        (
            "( ( day , host ) , time, topic, partition, offset )",
            Key(("day", "host"), ("time", "topic", "partition", "offset")),
        ),
    ],
)
def test_a_key_is_written_as_in_cql(text, key):
    assert parsed(primary_key=text).key == key


def test_replication_is_a_number_or_a_number_in_each_data_centre():
    assert create_keyspace(parsed(replication="3")) == (
        'CREATE KEYSPACE IF NOT EXISTS "logs" WITH replication = '
        "{'class': 'SimpleStrategy', 'replication_factor': '3'}"
    )
    assert create_keyspace(parsed(replication='{"dc1": 3, "dc2": 2}')).endswith(
        "{'class': 'NetworkTopologyStrategy', 'dc1': '3', 'dc2': '2'}"
    )


def test_statements_quote_every_name():
    options = parsed(primary_key="((topic, partition), offset)")
    columns = columns_of(pa.schema([*NAMES, ("user", pa.string()), ("Bytes", pa.int64())]))
    assert create_table(options, columns) == (
        'CREATE TABLE IF NOT EXISTS "logs"."access_log" ("topic" text, "partition" int, "offset" bigint, '
        '"user" text, "Bytes" bigint, PRIMARY KEY (("topic", "partition"), "offset"))'
    )
    assert insert(options, columns) == (
        'INSERT INTO "logs"."access_log" ("topic", "partition", "offset", "user", "Bytes") VALUES (?, ?, ?, ?, ?)'
    )
    assert quoted('a"b') == '"a""b"'


def test_extra_and_missing_columns_are_named():
    with pytest.raises(ValueError, match="column 'offset' is needed"):
        columns_of(pa.schema(NAMES[:2]))
    with pytest.raises(ValueError, match=r"column 'headers' is list<.*write it with to_json"):
        columns_of(pa.schema([*NAMES, ("headers", pa.list_(pa.string()))]))
    with pytest.raises(ValueError, match="option 'primary_key' has 'day', which is no column"):
        create_table(parsed(primary_key="((day), topic, partition, offset)"), columns_of(RECORD))


def test_values_are_converted_to_the_drivers_types():
    """Goal: times at both sides of 1970, to the millisecond that Cassandra keeps; nulls as None."""
    moments = [
        datetime(2015, 5, 17, 10, 5, 3, 123999, tzinfo=UTC),
        datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
        None,
    ]
    batch = pa.record_batch(
        {
            "time": pa.array(moments, pa.timestamp("us", "UTC")),
            "local": pa.array([None, None, datetime(1970, 1, 1)], pa.timestamp("us")),  # noqa: DTZ001 - Spark's timestamp_ntz
            "day": pa.array([date(2015, 5, 17)] * 3),
            "price": pa.array([Decimal("1.50")] * 3),
            "data": pa.array([b"\xff", None, b""]),
        }
    )
    assert list(rows_of(batch)) == [
        (1431857103123, None, date(2015, 5, 17), Decimal("1.50"), b"\xff"),
        (-1, None, date(2015, 5, 17), Decimal("1.50"), None),
        (None, 0, date(2015, 5, 17), Decimal("1.50"), b""),
    ]
