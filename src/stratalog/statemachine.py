"""The interface of every replicated state machine: decide -> records -> apply, answer after the commit.

In: a request, the state and the time. Out: records for a log, and an answer that leaves only when the log has committed
every record that the decision saw. Nothing here appends, waits or reads a clock: `broker/coordination/runtime.py` does.

The contract (Kafka: `CoordinatorResult`, `CoordinatorShard.replay`, `CoordinatorRuntime`):

- deciding reads the state and returns a `Decision`; replicated state changes in `replay` only;
- a decision's records are applied at once, ahead of their commit, so the next decision sees them;
- decisions of one turn become one batch, and several batches may wait for their commit;
- an answer waits for the commit of all records decided before it, its own included; a decision without records waits
  for those that it may have read;
- where leadership is lost, or the log refuses a batch, everything ahead of the commit fails together: its callers get
  NOT_COORDINATOR or NOT_CONTROLLER, and the state is invalid. The next leader replays the log;
- `replay` is deterministic: an exception from it is a bug, and stops the machine.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

from msgspec import Struct, field

Record = TypeVar("Record")
Answer = TypeVar("Answer")
Waiter = Callable[[BaseException | None], None]
"""Receives None once everything that a decision saw is committed, or the decision's error."""


class Now(NamedTuple):
    """The time of a decision, in milliseconds: `steady_ms` for time-outs, `wall_ms` (epoch) for timestamps."""

    steady_ms: int
    wall_ms: int


class Decision(Struct, Generic[Record, Answer], frozen=True):
    """Records to append as one atomic part of a batch (none: a read), and the answer."""

    records: Sequence[Record]
    answer: Answer


class _Batch(Struct, Generic[Record]):
    records: list[Record] = field(default_factory=list)
    waiters: list[Waiter] = field(default_factory=list)


class Ahead(Generic[Record]):
    """The decisions of one leader that its log has not committed yet.

    `add` after each decision, `take` a batch and append it, `committed` for each batch in the order of `take`. Methods
    return waiters, and the caller calls them in order.
    """

    def __init__(self) -> None:
        self._open: _Batch[Record] = _Batch()
        self._appended: deque[_Batch[Record]] = deque()

    @property
    def open_records(self) -> int:
        """The number of applied records that are in no batch yet."""
        return len(self._open.records)

    @property
    def is_empty(self) -> bool:
        """Whether every decision is committed."""
        return not self._open.records and not self._appended

    def add(self, records: Sequence[Record], waiter: Waiter) -> bool:
        """Note a decision whose records are applied; return whether its answer may leave at once."""
        if records:
            self._open.records.extend(records)
            self._open.waiters.append(waiter)
        elif self._open.records:
            self._open.waiters.append(waiter)
        elif self._appended:
            self._appended[-1].waiters.append(waiter)
        else:
            return True
        return False

    def take(self) -> list[Record]:
        """Close the open batch and return its records, which the caller appends; none without an open batch."""
        batch = self._open
        if batch.records:
            self._appended.append(batch)
            self._open = _Batch()
        return batch.records

    def committed(self) -> list[Waiter]:
        """Return the waiters of the oldest appended batch, which is committed now."""
        return self._appended.popleft().waiters

    def fall(self) -> list[Waiter]:
        """Return every waiter, oldest first, and drop everything ahead of the commit."""
        batches = [*self._appended, self._open]
        self._appended.clear()
        self._open = _Batch()
        return [waiter for batch in batches for waiter in batch.waiters]
