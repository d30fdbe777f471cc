"""Stream offsets stay readable, and equal positions are equal texts."""

import json
from pathlib import Path
from uuid import UUID

import pytest

from stratalog.spark.offsets import Positions, TopicPosition, from_json, to_json

GOLDEN = Path(__file__).parents[2] / "golden" / "formats" / "stream-offsets.v1.json"
ACCESS, OTHER = UUID(int=100), UUID(hex="deadbeef" * 4)
POSITIONS = Positions(
    {
        OTHER: TopicPosition("other", {0: 1}),
        ACCESS: TopicPosition("access", {10: 0, 2: (1 << 63) - 1, 0: 17}),
    }
)


def test_the_golden_file_is_what_is_written() -> None:
    """Spark writes the dict's own order into its checkpoint: topics by name, partitions by number."""
    assert json.dumps(to_json(POSITIONS)) + "\n" == GOLDEN.read_text()


def test_the_golden_file_is_read() -> None:
    found = from_json(json.loads(GOLDEN.read_text()))
    assert found == POSITIONS
    assert found.of(ACCESS, 10) == 0
    assert found.of(ACCESS, 1) is None
    assert found.of(UUID(int=1), 0) is None


@pytest.mark.parametrize(
    ("kept", "says"),
    [
        ({"version": 2, "topics": {}}, "version 2: this release reads version 1"),
        ({"t": {"0": 1}}, "version None"),
        ({"version": 1}, "cannot be read"),
        ({"version": 1, "topics": {"short": {"name": "t", "partitions": {}}}}, "cannot be read"),
        ({"version": 1, "topics": []}, "cannot be read"),
        ({"version": 1, "topics": {"AAAAAAAAAAAAAAAAAAAAZA": {"name": "t"}}}, "cannot be read"),
    ],
)
def test_what_is_none_of_ours(kept: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        from_json(kept)
