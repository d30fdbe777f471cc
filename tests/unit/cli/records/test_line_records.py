"""Lines of a chunk as records: values, keys by a pattern, JSON, and where each is in its file."""

import json
import os
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.cli.records.line_records import LineRules

PLAIN = LineRules(None, None, as_json=False, host="h")


def rules(begins: bytes | None = None, key: bytes | None = None, *, as_json: bool = False):
    patterns = [None if one is None else re.compile(one) for one in (begins, key)]
    return LineRules(*patterns, as_json=as_json, host='h"%')


@given(st.lists(st.binary().map(lambda one: one.replace(b"\n", b"")), min_size=1), st.booleans())
def test_each_line_is_a_record_at_its_place(lines: list[bytes], has_end: bool) -> None:
    has_end = has_end or not lines[-1]  # nothing behind the last end is no line
    data = b"\n".join(lines) + b"\n" * has_end
    found = PLAIN.records(data, "app.log", 100)
    assert (found.keys, found.values) == (None, lines)
    for at, value in zip(found.offsets, found.values, strict=True):
        assert data[at - 100 :].split(b"\n")[0] == value


def test_a_line_that_begins_no_record_goes_on_with_the_last() -> None:
    data = b" lost\n1 a\n b\n\n2\n3 c\n d"
    found = rules(rb"\d").records(data, "app.log", 7)
    assert found.values == [b" lost", b"1 a\n b\n", b"2", b"3 c\n d"]
    assert found.offsets == [7, 13, 21, 23]


def test_keys_are_a_patterns_first_group_or_its_match() -> None:
    data = b"a=1\nnone\na=\n"
    assert rules(key=rb"a=(\d)?").records(data, "", 0).keys == [b"1", None, None]
    assert rules(key=rb"a=\d?").records(data, "", 0).keys == [b"a=1", None, b"a="]


@pytest.mark.parametrize("path", ["app.log", '50%d"\n.log', os.fsdecode(b"\xff.log")])
def test_a_row_of_json_has_the_line_and_its_place(path: str) -> None:
    data = b'a "%d" \\ \x01 \xc3\xb6\n\xff\n'
    found = rules(as_json=True).records(data, path, 5)
    assert [json.loads(one) for one in found.values] == [
        {"line": line, "path": path.replace("\udcff", "\ufffd"), "offset": at, "host": 'h"%'}
        for line, at in (('a "%d" \\ \x01 ö', 5), ("\ufffd", 19))
    ]
