"""Goal: every wait ends once, by what it waited for or by its time, and leaves nothing behind."""

from hypothesis import given
from hypothesis import strategies as st

from stratalog.replication.purgatory import FetchWaits, ProduceWaits

KEYS = "xyz"


def test_a_produce_waits_for_all_of_its_partitions():
    waits = ProduceWaits(10)
    assert waits.wait("one", {"x": 5, "y": 3}, 1_000)
    assert waits.wait("two", {"x": 7}, 1_000)
    assert waits.on_high_watermark("x", 5) == []
    assert waits.on_high_watermark("y", 9) == ["one"]
    assert waits.on_high_watermark("x", 100) == ["two"]
    assert len(waits) == 0


def test_what_timed_out_says_what_it_still_missed():
    waits = ProduceWaits(10)
    waits.wait("one", {"x": 5, "y": 3}, 1_000)
    waits.on_high_watermark("x", 5)
    assert waits.next_deadline_ms() == 1_000
    assert waits.expire(999) == []
    assert waits.expire(1_000) == [("one", frozenset("y"))]
    assert waits.on_high_watermark("y", 3) == []
    assert waits.next_deadline_ms() is None


def test_no_more_than_the_maximum_wait():
    produces, fetches = ProduceWaits(1), FetchWaits(1)
    assert produces.wait("one", {"x": 1}, 0)
    assert not produces.wait("two", {"x": 1}, 0)
    assert fetches.wait("one", "x", 1, 0)
    assert not fetches.wait("two", "x", 1, 0)
    assert produces.on_high_watermark("x", 1) == fetches.on_bytes("x", 1) == ["one"]
    assert produces.wait("two", {"x": 2}, 0)
    assert fetches.wait("two", "x", 1, 0)


def test_a_partition_that_goes_lets_its_waits_go():
    produces, fetches = ProduceWaits(9), FetchWaits(9)
    produces.wait("one", {"x": 1, "y": 1}, 10)
    produces.wait("two", {"y": 2}, 10)
    fetches.wait("one", "xy", 5, 10)
    fetches.wait("two", "y", 5, 10)
    assert produces.drop("x") == ["one"]
    assert fetches.drop("x") == ["one"]
    assert produces.on_high_watermark("y", 9) == fetches.on_bytes("y", 5) == ["two"]


def test_a_fetch_waits_for_bytes_of_all_its_partitions_together():
    waits = FetchWaits(9)
    waits.wait("small", "xx", 10, 1_000)
    waits.wait("large", "xy", 100, 500)
    assert waits.on_bytes("x", 9) == []
    assert waits.on_bytes("z", 1_000) == []
    assert waits.on_bytes("x", 1) == ["small"]
    assert waits.on_bytes("y", 89) == []
    assert waits.expire(500) == ["large"]
    assert not waits.end("large")


def test_nothing_stays_of_what_has_ended():
    produces, fetches = ProduceWaits(2), FetchWaits(2)
    assert produces.wait("old", {"x": 0}, 10**9)
    for number in range(5_000):
        assert produces.wait(number, {"x": number, "y": number}, number)
        assert fetches.wait(number, "xy", 1, 10**6 - number)
        if number % 2:
            assert [token for token, _ in produces.expire(number)] == [number]
        else:
            assert produces.end(number)
        assert fetches.end(number)
    assert sum(map(len, produces._watched.values())) == 1
    assert (fetches._watched, fetches._missing_bytes, fetches._keys) == ({}, {}, {})
    assert len(fetches._deadlines._heap) <= 65


produce_steps = st.lists(
    st.one_of(
        st.tuples(st.just("wait"), st.sets(st.sampled_from(KEYS), min_size=1), st.integers(0, 9)),
        st.tuples(st.just("move"), st.sampled_from(KEYS), st.integers(0, 12)),
        st.tuples(st.just("expire"), st.just(""), st.integers(0, 9)),
        st.tuples(st.just("end"), st.just(""), st.integers(0, 20)),
    ),
    max_size=60,
)


@given(produce_steps)
def test_produces_against_the_definition(script):
    waits, model, ends = ProduceWaits(10**9), {}, dict.fromkeys(KEYS, 0)
    for token, (verb, what, number) in enumerate(script):
        if verb == "wait":
            for key in what:
                ends[key] += 1
            model[token] = ({key: ends[key] for key in what}, number)
            waits.wait(token, *model[token])
        elif verb == "move":
            over = []
            for one, (needs, _) in list(model.items()):
                if needs.get(what, 99) <= number:
                    del needs[what]
                    if not needs:
                        over.append(one)
                        del model[one]
            assert waits.on_high_watermark(what, number) == over
        elif verb == "expire":
            due = {one: frozenset(needs) for one, (needs, at) in model.items() if at <= number}
            assert dict(waits.expire(number)) == due
            model = {one: wait for one, wait in model.items() if one not in due}
        else:
            assert waits.end(number) == (model.pop(number, None) is not None)
        assert len(waits) == len(model)
        assert waits.next_deadline_ms() == min((at for _, at in model.values()), default=None)
