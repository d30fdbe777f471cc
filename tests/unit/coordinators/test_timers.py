from hypothesis import given
from hypothesis import strategies as st

from stratalog.coordinators.timers import Timers

keys = st.sampled_from("abcde")
steps = st.one_of(
    st.tuples(st.just("set"), keys, st.integers(0, 50)),
    st.tuples(st.just("cancel"), keys, st.just(0)),
    st.tuples(st.just("due"), st.just(""), st.integers(0, 60)),
)


@given(st.lists(steps, max_size=80))
def test_timers_behave_as_a_plain_dictionary_of_deadlines(script):
    timers, model = Timers(), {}
    for verb, key, at in script:
        match verb:
            case "set":
                timers.set(key, at)
                model[key] = at
            case "cancel":
                timers.cancel(key)
                model.pop(key, None)
            case "due":
                due = list(timers.due(at))
                assert [model[one] for one in due] == sorted(model[one] for one in due)
                assert set(due) == {one for one, deadline in model.items() if deadline <= at}
                model = {one: deadline for one, deadline in model.items() if deadline > at}
        assert len(timers) == len(model)
        first = timers.next_ms()
        assert (first is None) == (not model)
        assert first is None or first <= min(model.values())


def test_a_postponed_timer_takes_no_more_memory():
    timers = Timers()
    for at in range(10_000):
        timers.set("member", 45_000 + at)
    assert len(timers._heap) == 1
    assert list(timers.due(54_998)) == []
    assert timers.next_ms() == 54_999
    assert list(timers.due(54_999)) == ["member"]


def test_removed_timers_leave_no_memory():
    timers = Timers()
    for number in range(10_000):
        timers.set(number, 1_000_000 - number)
        timers.cancel(number)
    assert len(timers._heap) <= 65


def test_a_caller_may_change_timers_while_they_expire():
    timers = Timers()
    for key in "abc":
        timers.set(key, 10)
    seen = []
    for key in timers.due(10):
        seen.append(key)
        timers.cancel("b")
        if len(seen) < 3:
            timers.set("a", 5)
    assert seen == ["a", "a", "a", "c"]
