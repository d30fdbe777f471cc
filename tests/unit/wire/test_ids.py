"""Topic ids as Kafka prints them, and the hash that places keys."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from stratalog.wire import murmur2 as imported
from stratalog.wire.ids import TopicPartition, topic_id_parse, topic_id_text
from stratalog.wire.murmur2 import murmur2, partition_of_key


def test_a_partition_is_printed_as_the_name_of_its_directory():
    assert str(TopicPartition("web-logs", 3)) == f"{TopicPartition('web-logs', 3)}" == "web-logs-3"


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "AAAAAAAAAAAAAAAAAAAAAA"),
        (1, "AAAAAAAAAAAAAAAAAAAAAQ"),  # Kafka's metadata topic
        ((1 << 128) - 1, "_____________________w"),
        (0x3EFF_BFEC_6F4D_4B5C_9A78_1D2E_3F40_5162, "Pv-_7G9NS1yaeB0uP0BRYg"),
    ],
)
def test_a_topic_id_is_printed_as_kafka_prints_it(number, text):
    assert topic_id_text(UUID(int=number)) == text
    assert topic_id_parse(text) == UUID(int=number)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "AAAA",
        "AAAAAAAAAAAAAAAAAAAAAA==",
        "AAAAAAAAAAAAAAAAAAAAAB",  # bits that sixteen bytes cannot hold
        "AAAAAAAAAAA AAAAAAAAAAA",
        "AAAAAAAAAA+AAAAAAAAAAA",
        "AAAAAAAAAAAAAAAAAAAAAAAAAAA",
        "ÄAAAAAAAAAAAAAAAAAAAAA",
    ],
)
def test_text_that_kafka_never_prints_is_not_a_topic_id(text):
    with pytest.raises(ValueError, match="not a topic id"):
        topic_id_parse(text)


# Kafka's own expectations (UtilsTest), as Java's signed integers.
@pytest.mark.parametrize(
    ("key", "java"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_agrees_with_java(key, java):
    assert murmur2(key) == java & 0x7FFFFFFF


def interpreted() -> Callable[[bytes], int]:
    """Return `murmur2` as its text has it, whether or not there is an extension."""
    text = Path(imported.__file__).with_name("murmur2.py").read_text()
    module: dict[str, Any] = {}
    exec(compile(text, "murmur2.py", "exec"), module)
    return module["murmur2"]


@pytest.mark.filterwarnings("ignore:.*Use files:DeprecationWarning")  # its import does
def test_keys_get_the_same_partition_as_in_kafka_python():
    from kafka.partitioner.default import murmur2 as theirs

    as_text = interpreted()
    for length in range(40):
        key = bytes((length * 37 + index * 91) & 0xFF for index in range(length))
        for same in (key, b"\xff" * length):  # the largest products of all
            assert murmur2(same) == as_text(same) == theirs(same) & 0x7FFFFFFF
        assert partition_of_key(key, 7) == (theirs(key) & 0x7FFFFFFF) % 7
