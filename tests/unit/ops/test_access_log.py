"""The generated access log: the pipeline parses it, it resembles a real log, and a seed repeats it."""

import re
from collections import Counter
from itertools import islice, pairwise
from random import Random

import pytest
from combined import FIELDS, LINE, line_time_ms

from stratalog.ops.access_log import access_log

BEGIN_MS = 1_700_000_000_000
LINES = 20_000


@pytest.fixture(scope="module")
def log() -> list[tuple[int, str, str]]:
    return list(islice(access_log(Random(7), BEGIN_MS, 100), LINES))


def fields(line: str) -> dict[str, str]:
    found = re.match(LINE.replace(r"\z", r"\Z"), line)  # Python writes Java's end of text as \Z
    assert found is not None, line
    return dict(zip(FIELDS, found.groups(), strict=True))


def test_every_line_parses_and_has_its_visitor_and_time(log: list[tuple[int, str, str]]) -> None:
    for timestamp, visitor, line in log:
        assert fields(line)["host"] == visitor
        assert line_time_ms(line.encode()) == timestamp // 1000 * 1000


def test_times_increase_at_the_requested_rate(log: list[tuple[int, str, str]]) -> None:
    assert all(before[0] <= after[0] for before, after in pairwise(log))
    assert log[0][0] >= BEGIN_MS
    assert 0.95 < (log[-1][0] - BEGIN_MS) / 1000 * 100 / LINES < 1.05


def test_shares_are_those_of_a_real_log(log: list[tuple[int, str, str]]) -> None:
    read = [fields(line) for _, _, line in log]
    codes = Counter(one["status"] for one in read)
    assert 0.9 < codes["200"] / LINES < 0.92
    assert 0.04 < codes["304"] / LINES < 0.05
    assert 0.015 < codes["404"] / LINES < 0.03
    crawlers = sum("bot" in one["agent"] or "Feed" in one["agent"] for one in read) / LINES
    assert 0.08 < crawlers < 0.2
    paths = Counter(one["request"].split()[1] for one in read)
    assert len(paths) > 150
    assert sum(count for _, count in paths.most_common(10)) > LINES / 2


def test_visitors_have_sessions_of_several_requests(log: list[tuple[int, str, str]]) -> None:
    visits = Counter(visitor for _, visitor, _ in log)
    assert len(visits) > 1000
    assert 2 < LINES / len(visits) < 20
    spans: dict[str, list[int]] = {}
    for timestamp, visitor, _ in log:
        spans.setdefault(visitor, []).append(timestamp)
    assert sum(times[-1] - times[0] > 10_000 for times in spans.values()) > 500


def test_the_same_seed_gives_the_same_log() -> None:
    def first(seed: int) -> list[tuple[int, str, str]]:
        return list(islice(access_log(Random(seed), BEGIN_MS, 5), 300))

    assert first(1) == first(1) != first(2)
