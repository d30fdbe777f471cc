"""A record's bytes as text: what is not text becomes hex, and no character hides or reorders others."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.console.shown import shown


@pytest.mark.parametrize(
    ("data", "form", "text", "became"),
    [
        (b"plain", "text", "plain", "text"),
        ("zażółć 日本".encode(), "text", "zażółć 日本", "text"),
        (b"a\x07b\x1b[31m", "text", "a\\x07b\\x1b[31m", "text"),
        ("\u202eabc".encode(), "text", "\\u202eabc", "text"),
        (b'{"b":1}', "json", '{\n  "b": 1\n}', "json"),
        (b"{no", "json", "{no", "text"),
        (b'{"a":1.10,"b":1E400}', "json", '{\n  "a": 1.10,\n  "b": 1E400\n}', "json"),
        (
            b"[12345678901234567890.123456789,NaN]",
            "json",
            "[12345678901234567890.123456789,NaN]",
            "text",
        ),
        (b'{"a":1, "a":2}', "json", '{\n  "a": 1,\n  "a": 2\n}', "json"),
        (b"\xff\x00", "json", f"0000  {'ff 00':<47}  ..", "hex"),
        (b"ab", "hex", f"0000  {'61 62':<47}  ab", "hex"),
    ],
)
def test_bytes_are_shown_as_asked_where_they_can_be(
    data: bytes, form: str, text: str, became: str
) -> None:
    assert shown(data, form, 100) == {
        "text": text,
        "form": became,
        "bytes": len(data),
        "is_cut": False,
    }


@pytest.mark.parametrize(("size", "offset"), [(1 << 16, "fff0"), ((1 << 16) + 1, "00010000")])
def test_the_offsets_of_a_dump_have_one_width(size: int, offset: str) -> None:
    lines = str(shown(bytes(size), "hex", size)["text"]).splitlines()
    assert {line.index("  ") for line in lines} == {len(offset)}
    assert lines[-1].startswith(offset)


def test_no_bytes_and_none_differ() -> None:
    assert shown(None, "text", 10)["text"] is None
    assert shown(b"", "text", 10)["text"] == ""


def test_a_cut_through_a_character_leaves_text() -> None:
    data = ("a" + "日" * 10).encode()
    for bytes_max in range(1, len(data)):
        found = shown(data, "text", bytes_max)
        assert found["form"] == "text"
        assert found["is_cut"]
        assert found["text"] == ("a" + "日" * 10)[: 1 + (bytes_max - 1) // 3]


def test_deep_json_is_text() -> None:
    assert shown(b"[" * 100_000, "json", 1 << 20)["form"] == "text"


@given(st.binary(max_size=300), st.sampled_from(["text", "json", "hex"]), st.integers(1, 300))
def test_any_bytes_become_printable_text(data: bytes, form: str, bytes_max: int) -> None:
    found = shown(data, form, bytes_max)
    assert all(one in "\n\t" or one.isprintable() or one.isspace() for one in found["text"])
    assert found["bytes"] == len(data)
    assert found["is_cut"] == (len(data) > bytes_max)
