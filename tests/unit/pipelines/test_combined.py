# ruff: noqa: DTZ001 - hypothesis wants its bounds without a zone
"""The time that the loader reads from a line, and the matches of the line's pattern."""

import re
from datetime import UTC, datetime, timedelta, timezone

import pytest
from combined import LINE, REASONS, line_time_ms
from hypothesis import example, given, settings
from hypothesis import strategies as st

zones = st.integers(-17 * 60, 17 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))


@given(st.datetimes(datetime(1970, 1, 3), datetime(2200, 1, 1), timezones=zones))
def test_a_lines_time_accounts_for_its_zone(moment):
    moment = moment.replace(microsecond=0)
    line = f'1.2.3.4 - - [{moment:%d/%b/%Y:%H:%M:%S %z}] "GET / HTTP/1.1" 200 1'.encode()
    assert line_time_ms(line) == moment.astimezone(UTC).timestamp() * 1000


@pytest.mark.parametrize(
    "time",
    [
        "31/Feb/2020:00:00:00 +0000",
        "29/Feb/2021:00:00:00 +0000",
        "01/Jan/0000:00:00:00 +0000",
        "01/Jan/2020:24:00:00 +0000",
        "01/Jan/2020:00:60:00 +0000",
        "01/Jan/2020:00:00:60 +0000",
        "01/Jan/2020:00:00:00 +1801",
        "01/Jan/2020:00:00:00 +0060",
        "1/Jan/2020:00:00:00 +0000",
        "01/jan/2020:00:00:00 +0000",
        "01/Mai/2020:00:00:00 +0000",
        "01/Jan/2020 00:00:00 +0000",
        "01/Jan/2020:00:00:00",
        "",
    ],
)
def test_an_impossible_date_is_none(time):
    assert line_time_ms(f'1.2.3.4 - - [{time}] "GET / HTTP/1.1" 200 1'.encode()) is None


@given(st.binary(max_size=200))
def test_arbitrary_bytes_have_a_time_or_none(line):
    assert line_time_ms(line) is None or isinstance(line_time_ms(line), int)


def in_python(pattern):
    """Return a Java pattern in Python's syntax."""
    return re.compile(pattern.replace(r"\z", r"\Z"))


ATOMIC = [in_python(pattern) for pattern in (LINE, *(pattern for _, pattern in REASONS))]
BACKTRACKING = [re.compile(pattern.pattern.replace("(?>", "(?:")) for pattern in ATOMIC]
TIME = "[17/May/2015:10:05:03 +0000]"
PIECES = [
    "h - - ",
    TIME,
    ' "',
    '" ',
    '" 200',
    " 200 ",
    "\\",
    "\n",
    "x",
    " ",
]


@settings(max_examples=500)
@example(pieces=[TIME, ' "', '" 200'], begun=True)
@example(pieces=[' "', TIME, ' "', '" 200'], begun=True)
@given(pieces=st.lists(st.sampled_from(PIECES), max_size=16), begun=st.booleans())
def test_an_atomic_pattern_matches_the_same_as_a_backtracking_one(pieces, begun):
    line = (f"h - - {TIME}" if begun else "") + "".join(pieces)
    for atomic, backtracking in zip(ATOMIC, BACKTRACKING, strict=True):
        found, wanted = atomic.search(line), backtracking.search(line)
        assert (found and found.groups()) == (wanted and wanted.groups())
