"""Goal: tails that share a budget hold the same batches as a simple model, and never exceed the budget.

Method: random appends, cuts and reads over a few partitions, compared with lists of the batches each must have.
"""

from hypothesis import given
from hypothesis import strategies as st

from stratalog.log.tail import TailBudget, TailCache

BUDGET, SHARE = 6000, 4000
BATCH_COST = 250
PARTITIONS = 4

partitions = st.integers(0, PARTITIONS - 1)
appends = st.tuples(st.just("append"), partitions, st.integers(1, 4500))
several = st.tuples(
    st.just("several"), partitions, st.lists(st.integers(1, 1500), min_size=2, max_size=5)
)
cuts = st.tuples(st.just("cut"), partitions, st.sampled_from((0, 500, 2000)))


class Model:
    """Batches of each partition as (base offset, size, cost), oldest first.

    `order` ends with the partition appended to last.
    """

    def __init__(self):
        self.held = [[] for _ in range(PARTITIONS)]
        self.order = []

    def cost(self, at):
        return sum(cost for _, _, cost in self.held[at])

    def total(self):
        return sum(map(self.cost, range(PARTITIONS)))

    def append(self, at, base, sizes):
        """Add batches that have one buffer: the last one counts all of it."""
        costs = [BATCH_COST] * (len(sizes) - 1) + [BATCH_COST + sum(sizes)]
        bases = range(base, base + 2 * len(sizes), 2)
        self.held[at] += zip(bases, sizes, costs, strict=True)
        self.cut(at, SHARE)
        if at in self.order:
            self.order.remove(at)
        self.order.append(at)
        for oldest in self.order:
            while self.total() > BUDGET and self.held[oldest]:
                self.held[oldest].pop(0)

    def cut(self, at, size):
        while self.cost(at) > size:
            self.held[at].pop(0)


def found(tail, offset):
    read = tail.read(offset, 1 << 30, 1 << 30, minimum_one_batch=True)
    if read is None:
        return None
    views, first, following = read
    return [len(view) for view in views], first, following


def in_one_buffer(base, sizes):
    """Return (base offset, next offset, view) of batches of two records, one after another in a buffer."""
    buffer, batches, end = memoryview(bytearray(sum(sizes))), [], 0
    for at, size in enumerate(sizes):
        start, end = end, end + size
        batches.append((base + 2 * at, base + 2 * at + 2, buffer[start:end]))
    return batches


@given(st.lists(appends | several | cuts, max_size=60))
def test_the_tail_holds_the_batches_that_the_model_holds(steps):
    budget, model = TailBudget(BUDGET, SHARE), Model()
    tails = [TailCache(budget) for _ in range(PARTITIONS)]
    ends = [0] * PARTITIONS
    for step, at, size in steps:
        if step == "append":
            tails[at].add(ends[at], ends[at] + 2, memoryview(bytes(size)))
            model.append(at, ends[at], [size])
            ends[at] += 2
        elif step == "several":
            tails[at].extend(in_one_buffer(ends[at], size), sum(size))
            model.append(at, ends[at], size)
            ends[at] += 2 * len(size)
        else:
            tails[at].trim(size)
            model.cut(at, size)
        assert budget.bytes_held == model.total() <= BUDGET
        for index, tail in enumerate(tails):
            held = model.held[index]
            assert tail.bytes_held == model.cost(index) <= SHARE
            for base in range(0, ends[index], 2):
                newer = [one for one in held if one[0] >= base]
                whole = held and held[0][0] <= base
                wanted = ([size for _, size, _ in newer], base, ends[index]) if whole else None
                assert found(tail, base + 1) == wanted
    assert set(budget._tails) == {tail for tail in tails if tail.bytes_held}
