"""Patterns of RE2: which names they match, what they refuse, and that none takes long."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratalog.coordinators.patterns import Pattern
from stratalog.errors import ErrorCode, Rejected


def matches(pattern, name):
    *_, found = Pattern(pattern).progress(name)
    return found


@pytest.mark.parametrize(
    ("pattern", "names", "others"),
    [
        ("billing-.*", ["billing-", "billing-1"], ["billing", "a billing-1", "billing-1\n"]),
        ("a|bc", ["a", "bc"], ["ac", "abc", ""]),
        ("(a|b)+c?", ["a", "abbac"], ["c", "", "acc"]),
        ("[a-c_]{2,3}", ["ab", "c_a"], ["a", "abcd", "ad"]),
        ("x{2}y{1,}", ["xxy", "xxyyy"], ["xy", "xx"]),
        ("x{,2}", ["x{,2}"], ["xx", ""]),
        ("^a$", ["a"], ["aa"]),
        ("a^b|$", [""], ["ab"]),
        (r"\Aq\d+\.\w\z", ["q12.x"], ["q12x", "q.x", "q12.-"]),
        (r"[^\d\-]+", ["abc"], ["a1", "a-b", ""]),
        ("[]a-]+", ["]a-"], ["b"]),
        ("[[:alpha:][:^ascii:]]+", ["aé"], ["1"]),
        ("(?i)AbC", ["abc", "ABC"], ["abx"]),
        ("(?i:a)b", ["ab", "Ab"], ["aB"]),
        ("a(?i)b|c", ["aB", "C"], ["Ab"]),
        ("(?s).", ["\n"], [""]),
        ("(?P<n>a)(?<m>b)(?:c)", ["abc"], ["ab"]),
        (r"\x41\x{1F600}\t", ["A😀\t"], ["A"]),
        ("a*?b??", ["", "aab"], ["abb"]),
        ("", [""], ["a"]),
    ],
)
def test_a_pattern_matches_whole_names(pattern, names, others):
    for name in names:
        assert matches(pattern, name), name
    for name in others:
        assert not matches(pattern, name), name


@pytest.mark.parametrize(
    "pattern",
    [
        *(
            "(",
            "a)",
            "[a",
            "*a",
            "a{1001}",
            "a{2,1}",
            "\\",
            r"\1",
            r"\b",
            r"\pL",
            "(?=a)",
            "(?<=a)b",
        ),
        *("[b-a]", "(?m)a", "[[:none:]]", r"\xZZ", r"\x{110000}", "(?P<>a)", "(?i", "a{999}a{999}"),
        *("(" * 51 + ")" * 51, "a" * 1001),
    ],
)
def test_what_re2_or_this_broker_lacks_is_refused(pattern):
    with pytest.raises(Rejected) as caught:
        Pattern(pattern)
    assert caught.value.code is ErrorCode.invalid_regular_expression


@pytest.mark.parametrize(
    "pattern", ["(a+)+b", "(a|a)*b", "(a*)*b", "((((){1000}){1000}){1000}){1000}", "(a?){90}a{90}"]
)
def test_patterns_that_explode_elsewhere_take_one_step_a_character(pattern):
    # A step works on at most every instruction once; a matcher that backtracks would not end.
    assert len(list(Pattern(pattern).progress("a" * 60))) <= 61


ATOMS = st.sampled_from(["a", "b", "c", ".", "[ab]", "[^b]", r"\w", r"\.", "^", "$", ""])
PATTERNS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda two: f"(?:{two[0]}|{two[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "{2,}"])).map(
            lambda two: f"(?:{two[0]}){two[1]}"
        ),
    ),
    max_leaves=6,
)


@settings(max_examples=400)
@given(PATTERNS, st.text("abc.", max_size=6))
def test_matches_are_those_of_pythons_expressions(pattern, name):
    assert matches(pattern, name) == (re.fullmatch(pattern, name) is not None)
