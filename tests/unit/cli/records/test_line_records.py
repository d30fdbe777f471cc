"""Lines of a chunk as records: values, keys by a pattern, JSON, and where each is in its file."""

import json
import os
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.cli.records.line_records import LineRecords, LineRules

PLAIN = LineRules(None, None, as_json=False, host="h")


def rules(begins: bytes | None = None, key: bytes | None = None, *, as_json: bool = False):
    patterns = [None if one is None else re.compile(one) for one in (begins, key)]
    return LineRules(*patterns, as_json=as_json, host='h"%')


def records(
    rules: LineRules,
    data: bytes,
    path: str = "",
    offset: int = 0,
    bytes_max: int = 1 << 20,
    *,
    is_last: bool = True,
    is_full: bool = False,
) -> LineRecords:
    return rules.records(data, path, offset, bytes_max, is_last=is_last, is_full=is_full)


@given(st.lists(st.binary().map(lambda one: one.replace(b"\n", b"")), min_size=1), st.booleans())
def test_each_line_is_a_record_at_its_place(lines: list[bytes], has_end: bool) -> None:
    has_end = has_end or not lines[-1]  # nothing behind the last end is no line
    data = b"\n".join(lines) + b"\n" * has_end
    found = records(PLAIN, data, "app.log", 100)
    assert (found.keys, found.values) == (None, lines)
    for at, value in zip(found.offsets, found.values, strict=True):
        assert data[at - 100 :].split(b"\n")[0] == value


def test_a_line_that_begins_no_record_goes_on_with_the_last() -> None:
    data = b" lost\n1 a\n b\n\n2\n3 c\n d"
    found = records(rules(rb"\d"), data, "app.log", 7)
    assert found.values == [b" lost", b"1 a\n b\n", b"2", b"3 c\n d"]
    assert found.offsets == [7, 13, 21, 23]


def test_the_last_record_of_several_lines_waits_for_its_next_lines() -> None:
    several = rules(rb"^\d")
    data = b"1 a\n b\n2\n c\n"
    found = records(several, data, is_last=False)
    assert (found.values, found.size) == ([b"1 a\n b"], 7)
    assert records(several, data[7:], is_last=False).values == []
    assert records(several, data[7:]).values == [b"2\n c"]


def test_a_record_that_fills_a_chunk_goes_in_parts_between_lines() -> None:
    several = rules(rb"^\d")
    found = records(several, b"1\n bb\n cc\n dd\n", bytes_max=6, is_last=False, is_full=True)
    assert found.values == [b"1\n bb", b" cc", b" dd"]
    assert (found.offsets, found.size) == ([0, 6, 10], 14)


@given(
    st.lists(st.sampled_from([b"1", b" more", b""]), min_size=1),
    st.sampled_from([rb"\d", rb"^\d", rb"^\d$", rb"\A\d"]),
    st.integers(1, 9),
)
def test_records_of_several_lines_are_the_same_wherever_the_reads_end(
    lines: list[bytes], begins: bytes, step: int
) -> None:
    several = rules(begins)
    text = b"".join(line + b"\n" for line in lines)
    whole = records(several, text)
    at = end = 0
    values: list[bytes] = []
    offsets: list[int] = []
    while at < len(text):
        end = min(len(text), end + step)
        is_last = end == len(text)
        found = records(several, text[at : text.rfind(b"\n", 0, end) + 1], "", at, is_last=is_last)
        values += found.values
        offsets += found.offsets
        at += found.size
    assert (values, offsets) == (whole.values, whole.offsets)


def test_keys_are_a_patterns_first_group_or_its_match() -> None:
    data = b"a=1\nnone\na=\n"
    assert records(rules(key=rb"a=(\d)?"), data, "", 0).keys == [b"1", None, None]
    assert records(rules(key=rb"a=\d?"), data, "", 0).keys == [b"a=1", None, b"a="]


@pytest.mark.parametrize("path", ["app.log", '50%d"\n.log', os.fsdecode(b"\xff.log")])
def test_a_row_of_json_has_the_line_and_its_place(path: str) -> None:
    data = b'a "%d" \\ \x01 \xc3\xb6\n\xff\n'
    found = records(rules(as_json=True), data, path, 5)
    assert [json.loads(one) for one in found.values] == [
        {"line": line, "path": path.replace("\udcff", "\ufffd"), "offset": at, "host": 'h"%'}
        for line, at in (('a "%d" \\ \x01 ö', 5), ("\ufffd", 19))
    ]
