"""Moments as people write them, and words that are none."""

import pytest

from stratalog.cli.shared.moments import moment_ms

NOW_MS = 1_800_000_000_000


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("@0", 0),
        ("@1700000000123", 1_700_000_000_123),
        ("2026-11-24T10:00:00Z", 1_795_514_400_000),
        ("2026-11-24 10:00", 1_795_514_400_000),
        ("2026-11-24T11:00+01:00", 1_795_514_400_000),
        ("2026-11-24", 1_795_478_400_000),
        ("2 hours ago", NOW_MS - 7_200_000),
        ("1 hour ago", NOW_MS - 3_600_000),
        ("90s ago", NOW_MS - 90_000),
        ("15 min ago", NOW_MS - 900_000),
        ("3 Days ago", NOW_MS - 3 * 86_400_000),
        ("999999999 weeks ago", 0),
    ],
)
def test_a_moment_is_read(text: str, ms: int) -> None:
    assert moment_ms(text, NOW_MS) == ms


@pytest.mark.parametrize(
    "text",
    [
        "",
        "@",
        "@-1",
        "@1e3",
        f"@{1 << 63}",
        "soon",
        "2 moons ago",
        "ago",
        "20261124",
        "2026-13-01",
        "-5",
    ],
)
def test_other_words_are_no_moment(text: str) -> None:
    assert moment_ms(text, NOW_MS) is None
