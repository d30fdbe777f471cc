"""Stream offsets: every release reads them, and equal positions have equal texts."""

import json
from pathlib import Path
from uuid import UUID

import pytest

from stratalog.errors import BadOption, Corrupt
from stratalog.table.offsets import Positions, TopicPosition, from_json, to_json

GOLDEN = Path(__file__).parents[2] / "golden" / "formats" / "stream-offsets.v1.json"
ACCESS, OTHER = UUID(int=100), UUID(hex="deadbeef" * 4)
POSITIONS = Positions(
    {
        OTHER: TopicPosition("other", {0: 1}),
        ACCESS: TopicPosition("access", {10: 0, 2: (1 << 63) - 1, 0: 17}),
    }
)


def test_offsets_are_written_as_in_the_golden_file() -> None:
    """Spark writes the dict's own order into its checkpoint: topics by name, partitions by number."""
    assert json.dumps(to_json(POSITIONS)) + "\n" == GOLDEN.read_text()


def test_the_first_batchs_offsets_are_written_and_read_as_in_their_golden_file() -> None:
    first = Positions(POSITIONS.topics, {ACCESS: TopicPosition("access", {0: 16})})
    golden = GOLDEN.with_name("stream-offsets-first.v1.json").read_text()
    assert json.dumps(to_json(first)) + "\n" == golden
    assert from_json(json.loads(golden), {}) == first


def test_offsets_are_read_from_the_golden_file() -> None:
    found = from_json(json.loads(GOLDEN.read_text()), {})
    assert found == POSITIONS
    assert found.of(ACCESS, 10) == 0
    assert found.of(ACCESS, 1) is None
    assert found.of(UUID(int=1), 0) is None


def test_offsets_of_spark_s_kafka_source_are_read() -> None:
    found = from_json({"version": {"0": 3}, "gone": {"1": 4}}, {"version": ACCESS, "x": OTHER})
    assert found.of(ACCESS, 0) == 3
    assert found.of(OTHER, 0) is None
    assert [topic.name for topic in found.topics.values()] == ["version", "gone"]
    assert from_json({}, {}) == Positions({})


@pytest.mark.parametrize(
    ("kept", "says"),
    [
        ({"version": 2, "topics": {}}, "version 2: this release reads version 1"),
        ({"t": 1}, "version None"),
        ({"t": {"x": 1}}, "cannot be read"),
        ({"t": {"0": None}}, "cannot be read"),
        ({"version": 1}, "cannot be read"),
        ({"version": 1, "topics": {"short": {"name": "t", "partitions": {}}}}, "cannot be read"),
        ({"version": 1, "topics": []}, "cannot be read"),
        ({"version": 1, "topics": {}, "begins": {"t": 1}}, "cannot be read"),
        ({"version": 1, "topics": {"AAAAAAAAAAAAAAAAAAAAZA": {"name": "t"}}}, "cannot be read"),
    ],
)
def test_unknown_formats_are_refused(kept: dict[str, object], says: str) -> None:
    with pytest.raises((BadOption, Corrupt), match=says):
        from_json(kept, {})
