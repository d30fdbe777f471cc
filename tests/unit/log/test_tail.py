"""The newest batches in memory: reads find them, and the budget counts their real size."""

from stratalog.log.tail import TailBudget, TailCache


def cache(bytes_max=10_000, batches=10, size=100):
    tail = TailCache(TailBudget(tail_bytes_max=bytes_max))
    for at in range(batches):
        tail.add(at * 5, at * 5 + 5, memoryview(bytes([at % 256]) * size))
    return tail


def read(tail, offset, max_bytes=10_000, end=10_000, *, one=True):
    found = tail.read(offset, max_bytes, end, minimum_one_batch=one)
    return found and ([bytes(view)[0] for view in found[0]], *found[1:])


def test_a_read_begins_with_the_batch_that_holds_the_offset():
    assert read(cache(), 12, 250) == ([2, 3], 10, 20)
    assert read(cache(), 49) == ([9], 45, 50)


def test_a_read_ends_below_the_end_offset_and_within_its_bytes():
    assert read(cache(), 0, end=14) == ([0, 1], 0, 10)
    assert read(cache(), 0, end=4) is None
    assert read(cache(), 0, 10) == ([0], 0, 5)
    assert read(cache(), 0, 10, one=False) is None


def test_batches_outside_the_cache_are_not_found():
    tail = cache(batches=3)
    assert read(tail, 15) is None
    assert read(TailCache(100), 0) is None
    tail.trim(400)
    assert read(tail, 4) is None
    assert read(tail, 10) == ([2], 10, 15)


def test_the_tail_never_holds_more_than_the_budget():
    tail = cache(bytes_max=3000, batches=2000)
    assert tail.bytes_held <= 3000
    assert len(tail._views) < 600
    assert read(tail, 1999 * 5) == ([1999 % 256], 9995, 10_000)


def test_a_small_part_of_a_buffer_is_copied_and_a_large_part_counts_as_the_whole():
    tail = TailCache(TailBudget())
    request = bytearray(100_000)
    tail.add(0, 1, memoryview(request)[:100])
    assert tail.bytes_held < 1000
    tail.add(1, 2, memoryview(request)[:60_000])
    assert tail.bytes_held > 100_000
    assert tail._views[0].obj is not request
    assert tail._views[1].obj is request


def test_small_batches_share_a_small_buffer_and_copy_their_part_of_a_large_one():
    for size, shares in ((1000, True), (3000, False)):
        tail = TailCache(TailBudget())
        buffer = memoryview(bytearray(40 * size))
        batches = [(at, at + 1, buffer[at * size : (at + 1) * size]) for at in range(40)]
        tail.extend(batches, 40 * size)
        assert {view.obj is buffer.obj for view in tail._views} == {shares}
        assert 40 * size < tail.bytes_held < 40 * size + 20_000
        few = TailCache(TailBudget())
        few.extend(batches[:2], 2 * size)
        assert few.bytes_held < 3 * size, "two batches keep no buffer of forty"


def test_a_follower_copies_batches_of_a_small_answer_and_none_of_a_large_one():
    tail = TailCache(TailBudget())
    answer = memoryview(bytearray(60_000))
    for at in range(2):
        tail.add(at, at + 1, answer[at * 1000 : at * 1000 + 1000], is_fetched=True)
    assert read(tail, 0) == ([0, 0], 0, 2)
    tail.add(2, 3, memoryview(bytearray(100_000))[:1000], is_fetched=True)
    assert (read(tail, 0), read(tail, 2), tail.bytes_held) == (None, None, 0)
    tail.add(3, 4, memoryview(bytearray(100_000)), is_fetched=True)
    assert read(tail, 3, 200_000) == ([0], 3, 4)


def test_a_batch_above_the_budget_is_not_held():
    tail = TailCache(TailBudget(tail_bytes_max=1000))
    tail.add(0, 5, memoryview(bytes(5000)))
    assert tail.bytes_held == 0
    assert read(tail, 0) is None


def test_clear_frees_all_memory():
    tail = cache()
    tail.clear()
    assert tail.bytes_held == 0
    assert read(tail, 45) is None


def test_at_the_budget_the_tail_with_the_oldest_append_frees_memory():
    budget = TailBudget(bytes_max=4000, tail_bytes_max=3000)
    quiet, busy = (TailCache(budget) for _ in range(2))
    for tail, at in ((quiet, 0), (quiet, 1), (busy, 0), (quiet, 2), (busy, 1), (busy, 2)):
        tail.add(at, at + 1, memoryview(bytes(600)))
    assert (quiet.bytes_held, busy.bytes_held) == (850, 2550)
    assert read(quiet, 1) is None
    assert read(quiet, 2) == ([0], 2, 3)
    busy.clear()
    assert budget.bytes_held == quiet.bytes_held


def test_batches_that_a_cleaning_replaced_are_forgotten():
    tail = cache(batches=4)
    tail.forget_before(12)
    assert read(tail, 9) is None
    assert read(tail, 10) == ([2, 3], 10, 20)
    tail.forget_before(10)
    assert read(tail, 12) == ([2, 3], 10, 20)
    tail.forget_before(20)
    assert (read(tail, 19), tail.bytes_held) == (None, 0)
