# ruff: noqa: DTZ001 - hours come from Parquet as UTC without saying so
"""The page is complete, requests nothing from a network, and is right for empty and very large inputs."""

import re
from datetime import datetime, timedelta
from itertools import pairwise
from xml.etree import ElementTree as ET

import pytest
from answers import Answers, Traffic
from page import COLUMNS_MAX, nice_ceiling, over_time, page, short

START = datetime(2020, 1, 1)


def answers(hours=(), paths=(), status=None, bad_reasons=None):
    reasons = bad_reasons or {}
    return Answers(
        origins={"bucket": 3},
        status=status or {},
        bad_lines=sum(reasons.values()),
        bad_reasons=reasons,
        late_lines=0,
        tiered={},
        hours=list(hours),
        paths=list(paths),
        path_count=len(paths),
        clients=list(paths),
        client_count=len(paths),
    )


def hour(number, requests=1, errors=0, size=10):
    return Traffic(START + timedelta(hours=number), requests, errors, size)


def parsed(text):
    """Parse the page as XML, which finds an element that is not closed."""
    return ET.fromstring(re.sub(r"<meta[^>]*>", "", text).removeprefix("<!doctype html>\n"))


@pytest.mark.parametrize("count", [0, 1, 2, 200, 5000])
def test_a_page_is_complete_and_requests_nothing(count):
    hours = [hour(number, number, number // 9) for number in range(count)]
    hostile = Traffic('/<script>alert("1")</script>&' + "x" * 500, 5, 1, 100)
    text = page(
        answers(hours, [hostile, Traffic(None, 1, 0, 0)], {200: 5, 404: 1}, {"empty": 2}), ["a<b"]
    )
    tree = parsed(text)
    assert tree.find(".//script") is None
    assert not re.search(r"(src|href)\s*=|@import|url\(", text)
    assert {svg.get("role") for svg in tree.iter("svg")} == {"img"}
    assert all(svg.get("aria-label") for svg in tree.iter("svg"))


def test_a_page_says_why_lines_are_bad():
    text = page(answers([hour(1)], bad_reasons={"no time": 1234, "empty": 2}), ["log"])
    chart = next(svg for svg in parsed(text).iter("svg") if svg[0].text == "Bad lines by reason")
    assert [part.text for part in chart.iter("title")][1:] == ["no time: 1,234", "empty: 2"]
    assert "Bad lines by reason" not in page(answers([hour(1)]), ["log"])


def test_columns_hold_every_request_of_a_log_of_any_length():
    hours = [hour(number, 2, 1, 7) for number in (0, 5, 40_000)]
    columns = over_time(hours)
    assert len(columns) <= COLUMNS_MAX
    assert sum(column.requests for column in columns) == 6
    assert sum(column.errors for column in columns) == 3
    assert sum(column.bytes for column in columns) == 21
    steps = {b.name - a.name for a, b in pairwise(columns)}
    assert len(steps) == 1


@pytest.mark.parametrize("number", [0, 1, 4, 5, 9, 10, 99, 100, 101, 12_345, 10**12])
def test_an_axis_ends_above_its_highest_value(number):
    assert number <= nice_ceiling(number) <= max(4, 2 * number)


def test_large_numbers_are_shortened():
    assert [short(n) for n in (0, 999, 1500, 2_000_000, 3e9)] == ["0", "999", "1.5k", "2M", "3G"]


def test_an_empty_log_has_words_and_no_empty_axes():
    text = page(answers(), ["log"])
    assert list(parsed(text).iter("svg")) == []
    assert text.count("No requests.") == 3


def test_bytes_have_their_unit():
    text = page(answers([hour(1, size=2_000_000), hour(2)]), ["log"])
    assert re.search(r"<dt>Answered</dt><dd>2MB", text)
    chart = next(
        svg for svg in parsed(text).iter("svg") if svg.get("aria-label").startswith("Bytes")
    )
    labels = [part.text for part in chart.iter("text") if part.get("text-anchor") == "end"]
    assert labels == ["0B", "500kB", "1MB", "1.5MB", "2MB"]


def test_the_largest_number_has_room_behind_its_bar():
    text = page(answers([hour(1)], status={200: 10**13, 404: 1}), ["log"])
    chart = next(svg for svg in parsed(text).iter("svg") if svg.get("aria-label") == "Statuses")
    number = next(one for one in chart.iter("text") if one.text == f"{10**13:,}")
    width = int(chart.get("viewBox").split()[2])
    assert float(number.get("x")) + 7.7 * len(number.text) <= width  # a digit of 12 px is 7.64 wide


def test_no_label_shrinks_below_twelve_pixels():
    hours = [hour(number) for number in range(200)]
    text = page(answers(hours, [Traffic("/", 5, 1, 100)], {200: 5}), ["log"])
    for svg in parsed(text).iter("svg"):
        width = int(svg.get("viewBox").split()[2])
        least = int(re.search(r"min-width:(\d+)px", svg.get("style"))[1])
        assert 12 * least / width >= 12
