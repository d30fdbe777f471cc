"""Goal: a producer's batches are in the log once and in order, for any repeats, delays and reorderings.

Method: random producers against a model that remembers everything that was ever accepted and decides by Kafka's rules
as KIP-98 and KIP-360 tell them, with snapshots, expiry and epochs between.
"""

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from stratalog.errors import ErrorCode, Rejected
from stratalog.log.producers import ProducerStates
from stratalog.wire.batch import BatchHeader

WRAP = 2**31
REMEMBERED = 5
EXPIRATION_MS = 1000
PRODUCERS = st.integers(1, 3)
STARTS = (0, 1, WRAP - 2, WRAP - 1)


@dataclass
class Known:
    """One producer: its epoch, and every batch of that epoch as (first, last, base offset)."""

    epoch: int
    touched_ms: int
    batches: list[tuple[int, int, int]] = field(default_factory=list)


class Partition(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.now_ms = 0
        self.end = 0
        self.states = ProducerStates()
        self.model: dict[int, Known] = {}

    def _expected(self, producer, epoch, first, last):
        """Return the error code, or the base offset of the repeated batch, or None if the batch is appended."""
        known = self.model.get(producer)
        if known is None:
            return None
        if epoch < known.epoch:
            return ErrorCode.invalid_producer_epoch
        if epoch > known.epoch:
            return None if first == 0 else ErrorCode.out_of_order_sequence_number
        for was_first, was_last, base in known.batches[-REMEMBERED:]:
            if (was_first, was_last) == (first, last):
                return base
        follows = (known.batches[-1][1] + 1) % WRAP if known.batches else 0
        return None if first == follows else ErrorCode.out_of_order_sequence_number

    @rule(
        producer=PRODUCERS,
        newer=st.sampled_from((0, 0, 0, 0, 1, -1)),
        from_last=st.integers(-6, 2),
        start=st.none() | st.sampled_from(STARTS),
        count=st.integers(1, 3),
    )
    def produce(self, producer, newer, from_last, start, count):
        known = self.model.get(producer)
        epoch = max(0, (known.epoch if known else 0) + newer)
        if start is not None or known is None or not known.batches:
            first = start or 0
        else:
            first = (known.batches[-1][1] + from_last) % WRAP
        self._send(producer, epoch, first, count)

    @rule(producer=PRODUCERS, count=st.integers(1, 3))
    def produce_in_turn(self, producer, count):
        known = self.model.get(producer)
        first = (known.batches[-1][1] + 1) % WRAP if known and known.batches else 0
        self._send(producer, known.epoch if known else 0, first, count)

    @rule(producer=PRODUCERS, back=st.integers(0, 7))
    def send_again(self, producer, back):
        known = self.model.get(producer)
        if known and back < len(known.batches):
            first, last, _base = known.batches[-1 - back]
            self._send(producer, known.epoch, first, (last - first) % WRAP + 1)

    def _send(self, producer, epoch, first, count):
        header = BatchHeader(
            0, 100, 0, 2, 0, 0, count - 1, 50, 50 + count, producer, epoch, first, count
        )
        last = (first + count - 1) % WRAP
        assert header.last_sequence == last
        expected = self._expected(producer, epoch, first, last)
        try:
            repeated = self.states.check(header)
        except Rejected as refused:
            assert refused.code == expected
            return
        assert (None if repeated is None else repeated[2]) == expected
        if repeated is not None:
            assert repeated[:2] == (first, last)
            return
        self.states.update(header, self.end, self.now_ms)
        known = self.model.get(producer)
        if known is None or epoch > known.epoch:
            known = self.model[producer] = Known(epoch, self.now_ms)
        known.touched_ms = self.now_ms
        known.batches.append((first, last, self.end))
        self.end += count

    @rule(ms=st.integers(0, EXPIRATION_MS))
    def wait(self, ms):
        self.now_ms += ms
        self.states.expire(self.now_ms, EXPIRATION_MS)
        self.model = {
            producer: known
            for producer, known in self.model.items()
            if self.now_ms - known.touched_ms < EXPIRATION_MS
        }

    @rule()
    def restart(self):
        self.states = ProducerStates.decode(self.states.encode(), self.now_ms)
        for known in self.model.values():
            del known.batches[:-REMEMBERED]
            known.touched_ms = self.now_ms

    @invariant()
    def the_same_producers_are_known(self):
        found = {
            producer: (state.epoch, [batch[:3] for batch in state.batches])
            for producer, state in self.states.items()
        }
        assert found == {
            producer: (known.epoch, known.batches[-REMEMBERED:])
            for producer, known in self.model.items()
        }


TestProducers = Partition.TestCase
TestProducers.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
