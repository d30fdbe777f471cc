"""Texts of pages: documentation becomes HTML without markup of its own, numbers get their units."""

import pytest

from stratalog.console.rendering import (
    NOTHING,
    _environment,
    broken,
    count,
    measure,
    price,
    prose,
    when,
)


def test_markdown_becomes_code_and_text_and_stays_escaped() -> None:
    shown = prose("Needs `acks=all` <b>; `<i>` ([stores.md](stores.md)).")
    assert shown == "Needs <code>acks=all</code> &lt;b&gt;; <code>&lt;i&gt;</code> (stores.md)."


def test_a_measured_number_of_twenty_digits_has_an_exponent() -> None:
    assert [count(2**64), count(float(2**64)), count(12.5)] == [f"{2**64:,}", "1.84e+19", "12.5"]


def test_a_long_name_breaks_behind_its_dots() -> None:
    assert broken("a.b<c") == "a.<wbr>b&lt;c"


def test_a_name_cannot_reorder_its_page_and_an_input_keeps_its_value() -> None:
    template = _environment().from_string("{{ name }}|{{ name|e }}|{{ number }}|{{ note|prose }}")
    shown = template.render(name="\u202ea\x07<\u200b", number=7, note="`x`")
    assert shown == "\\u202ea\\x07&lt;\\u200b|\u202ea\x07&lt;\u200b|7|<code>x</code>"


@pytest.mark.parametrize(
    ("number", "unit", "shown"),
    [
        (2048.0, "B/s", "2.0 KiB/s"),
        (1234.6, "rows/s", "1,235 rows/s"),
        (3.0, "", "3"),
        (0.0312, "cores", "0.03 cores"),
        (12.34, "ms", "12.3 ms"),
        (999_999_999_999.0, "rows/s", "999,999,999,999 rows/s"),
        (2.0**64, "rows/s", "1.84e+19 rows/s"),
        (2.0**64, "B/s", "16.0 EiB/s"),
    ],
)
def test_a_charts_number_has_its_unit(number: float, unit: str, shown: str) -> None:
    assert measure(number, unit) == shown


@pytest.mark.parametrize(
    ("amount", "shown"),
    [(0.00001, "0.00001"), (0.023, "0.023"), (2500.0, "2,500"), (1e16, "10,000,000,000,000,000")],
)
def test_a_price_has_no_exponent(amount: float, shown: str) -> None:
    assert price(amount) == shown


@pytest.mark.parametrize(
    ("ms", "shown"),
    [
        (None, NOTHING),
        (-1, NOTHING),
        (0, "1970-01-01 00:00:00 UTC"),
        (-86_400_000, "1969-12-31 00:00:00 UTC"),
        (-(1 << 60), f"{-(1 << 60)} ms"),
        (1 << 60, f"{1 << 60} ms"),
    ],
)
def test_a_time_of_any_record_is_shown(ms: int | None, shown: str) -> None:
    assert shown in str(when(ms))
