"""The one shape of everything replicated: decide -> records -> replay, answered after commit.

In: a request and the state. Out: records for a log, and an answer that leaves only when the log has committed
them. Nothing here appends, waits or talks to anyone: `broker/runtime.py` does.

The contract (Kafka: `CoordinatorResult`, `CoordinatorShard.replay`):

- deciding never changes replicated state; it reads it and returns a `Decision`;
- `replay` is the only mutator of replicated state, on the deciding node and after a restart alike;
- the runtime handles one decision at a time: append, commit, replay each record in order, then answer. So a
  decision always sees all earlier ones applied, and no timeline of states is needed;
- `replay` is deterministic: an exception from it is a bug, and stops the node.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Record = TypeVar("Record")
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Decision(Generic[Record, Answer]):
    """What deciding gives: records to append as one atomic batch (none: answer at once), and the answer."""

    records: Sequence[Record]
    answer: Answer
