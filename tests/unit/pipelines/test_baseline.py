"""The baseline of each hour and the flags of unusual hours, without Spark."""

from dataclasses import replace

import pytest
from baseline import Baseline, Rule, fold
from command import parse_arguments, rule
from hypothesis import given
from hypothesis import strategies as st

RULE = Rule()

hours = st.dictionaries(
    st.integers(0, 400),
    st.tuples(st.integers(1, 500), st.integers(0, 500)).map(lambda two: (two[0], min(two))),
    min_size=1,
    max_size=60,
)


def run(counted, baseline=None, rule=RULE):
    flags = []
    for hour, (requests, errors) in counted:
        baseline, found = fold(baseline, hour, requests, errors, rule)
        flags += [(hour, flag) for flag in found]
    return baseline, flags


def steady(requests, errors, count):
    return [(hour, (requests, errors)) for hour in range(count)]


@given(hours, st.integers(0, 60))
def test_the_cut_of_hours_into_batches_does_not_matter(counted, cut):
    """Goal: a baseline that is stored between batches gives the same floats and flags as an uninterrupted one."""
    counted = sorted(counted.items())
    whole, flags = run(counted)
    kept, before = run(counted[:cut])
    after, more = run(counted[cut:], kept)
    assert after == whole
    assert before + more == flags


@given(hours)
def test_an_hour_is_compared_with_earlier_hours_only(counted):
    """Goal: later hours change no earlier flag."""
    counted = sorted(counted.items())
    _, flags = run(counted)
    for end in range(len(counted)):
        _, earlier = run(counted[:end])
        assert earlier == flags[: len(earlier)]


@given(hours, st.integers(1, 1000))
def test_shifted_hours_give_the_same_shifted_flags(counted, later):
    counted = sorted(counted.items())
    _, flags = run(counted)
    _, moved = run([(hour + later, counts) for hour, counts in counted])
    assert moved == [(hour + later, flag) for hour, flag in flags]


def test_many_more_requests_than_usual_get_the_rate_flag():
    _, flags = run([*steady(20, 0, 24), (24, (60, 0))])
    [(hour, flag)] = flags
    assert (hour, flag.what) == (24, "rate")
    assert flag.expected == pytest.approx(20)
    assert flag.score == pytest.approx(40 / 20**0.5)


def test_a_larger_share_of_errors_gets_a_flag_at_the_usual_rate():
    _, flags = run([*steady(50, 1, 48), (48, (50, 25))])
    [(hour, flag)] = flags
    assert (hour, flag.what) == (48, "errors")
    assert 0.9 < flag.expected < 1.1


def test_small_counts_and_short_histories_get_no_flag():
    assert run([*steady(1, 0, 24), (24, (9, 4))])[1] == []
    assert run([*steady(1, 0, 5), (5, (500, 500))])[1] == []
    assert [flag.what for _, flag in run([*steady(1, 0, 6), (6, (500, 500))])[1]] == [
        "rate",
        "errors",
    ]


def test_hours_without_requests_count_as_zero():
    counted = [(0, (30, 0)), (50, (30, 0))]
    zeros = [(hour, (0, 0)) for hour in range(1, 50)]
    assert run(counted) == run([counted[0], *zeros, counted[1]])
    assert [flag.what for _, flag in run(counted)[1]] == ["rate"]


def test_after_a_long_silence_a_key_starts_a_new_baseline():
    known, _ = run(steady(5, 0, 100))
    last = known.hour
    assert run([(last + RULE.forget_hours, (500, 0))], known)[1]
    fresh, flags = run([(last + RULE.forget_hours + 1, (500, 0))], known)
    assert flags == []
    assert fresh == Baseline(last + RULE.forget_hours + 1, 1, 500.0, 0.0, 500.0, 0.0)


def test_the_command_sets_the_rule():
    words = "--tier-url x --deviations 2.5 --hours-min 3 --forget-hours 24".split()
    asked = rule(parse_arguments(words))
    assert asked == replace(RULE, deviations=2.5, hours_min=3, forget_hours=24)
    with pytest.raises(SystemExit) as ended:
        parse_arguments(["--topic", "t"])
    assert ended.value.code == 2
