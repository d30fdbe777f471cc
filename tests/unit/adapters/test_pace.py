"""The pace of a thread, in time that the test sets."""

from itertools import pairwise

import pytest

from stratalog.adapters.threads import Pace


@pytest.mark.parametrize("cost_s", [0.0003, 0.001, 0.02])
def test_a_thousand_calls_at_once_leave_half_of_the_time_to_others(cost_s: float) -> None:
    pace, now = Pace(), 100.0
    calls = []
    for _ in range(1000):
        begun = now + pace.rest(now)
        now = begun + cost_s
        pace.ran(begun, now)
        calls.append((begun, now))
    rests = [later[0] - earlier[1] for earlier, later in pairwise(calls)]
    assert rests == pytest.approx([cost_s] * 999)
    assert now - 100 == pytest.approx(1999 * cost_s)


def test_a_call_that_was_held_up_costs_the_next_one_little() -> None:
    pace = Pace()
    pace.ran(100.0, 160.0)
    assert pace.rest(160.0) == pytest.approx(0.05)


def test_a_call_after_a_pause_waits_for_nothing() -> None:
    pace = Pace()
    assert pace.rest(100.0) == 0
    pace.ran(100.0, 100.01)
    assert pace.rest(100.015) == pytest.approx(0.005)
    assert pace.rest(100.03) == 0
