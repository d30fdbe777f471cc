"""JSON laid out again has the digits, the strings and the fields of the original."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.client.json_text import indented, on_one_line

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20
)


@given(VALUES, st.sampled_from([None, 1, "\t"]), st.booleans())
def test_the_layout_is_that_of_pythons_json(value: Any, indent: Any, ascii_alone: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_alone)
    assert on_one_line(text) == json.dumps(value, ensure_ascii=ascii_alone)
    assert indented(text) == json.dumps(value, indent=2, ensure_ascii=ascii_alone)


@pytest.mark.parametrize(
    "text",
    [
        "1.10",
        "12345678901234567890.123456789",
        "1E400",
        "-0",
        "1e-9",
        "1" * 5000,
        r'"\u00e9\/\ud800"',
        '{"a": 1, "a": 2}',
    ],
)
def test_every_character_but_blanks_stays(text: str) -> None:
    wide = f' [ {text} ,\n{{"x":{text}}} ] '
    for laid_out in (on_one_line(wide), indented(wide)):
        assert re.sub(r"\s", "", laid_out) == re.sub(r"\s", "", wide)


@pytest.mark.parametrize(
    "text", ["", "{", "NaN", "[Infinity]", "-Infinity", "01", "1.", "[1,]", "{a: 1}", "[" * 100_000]
)
def test_text_that_is_no_json_is_refused(text: str) -> None:
    for lay_out in (on_one_line, indented):
        with pytest.raises(ValueError, match=r".+"):
            lay_out(text)


def test_deep_json_does_not_grow_without_bound() -> None:
    text = "[" * 900 + ",".join("1" * 10_000) + "]" * 900
    assert len(indented(text)) < 100 * len(text)
