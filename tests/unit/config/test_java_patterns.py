r"""Patterns have Java's meaning, or are refused; `tests/compat/test_principal_names.py` compares with Java."""

import pytest

from stratalog.config.java_patterns import java_pattern
from stratalog.config.kinds import BadValue


@pytest.mark.parametrize(
    ("pattern", "text", "matches"),
    [
        (r"\d+", "12", True),
        (r"\d+", "\u0661", False),
        (r"\w+", "é", False),
        ("(?i)k", "K", True),
        ("(?i)k", "\u212a", False),
        ("a.b", "a\rb", False),
        (r"a$\s", "a\r", True),
        (r"a$\s", "a\n", True),
        (r"(?<name>a+)-\k<name>", "aa-aa", True),
        (r"\Qa.b\E+", "a.bb", True),
        (r"\Qa.b\E", "axb", False),
        (r"(a)\1", "aa", True),
        ("[-a.]+", "a-.", True),
        ("[^a-c]", "b", False),
        (r"[\w-]+", "a-b", True),
        (r"\/", "/", True),
        ("a{2}", "aa", True),
        ("a#b c", "a#b c", True),
    ],
)
def test_a_pattern_matches_as_in_java(pattern: str, text: str, matches: bool) -> None:
    assert (java_pattern(pattern).fullmatch(text) is not None) == matches


@pytest.mark.parametrize(
    "pattern",
    [
        r"\p{L}",
        r"\P{L}",
        r"\h",
        r"\R",
        r"\X",
        r"\G",
        r"\0101",
        r"\x{41}",
        r"\cA",
        r"\e",
        r"\v",
        r"\uD83D",
        r"\N{DIGIT ONE}",
        r"\12",
        "(?P<n>a)",
        "(?#x)a",
        "(?(1)a|b)",
        "a(?i)b",
        "(?s)a",
        "(?x)a",
        "(?u)a",
        "(?U)a",
        "(?a)a",
        "[a[b]]",
        "[a-z&&b]",
        "[]a]",
        "[]",
        "[a",
        r"[\Qa\E]",
        r"[\b]",
        r"[a-\d]",
        r"[\d-a]",
        "a{,2}",
        "{",
        "a{x}",
        "*a",
        "a**",
        "(a",
        "a)",
        "(?<=a|bc)d",
        "\\",
        r"[\p{L}]",
        "[b-a]",
    ],
)
def test_what_has_another_meaning_or_none_is_refused_by_name(pattern: str) -> None:
    with pytest.raises(BadValue, match=r"^the pattern '"):
        java_pattern(pattern)
