"""What a frame becomes: an answer, or an answer to come.

In: nothing. Out: the types between the reader of a client's frames and the dispatcher. They know no connection: today
`Connection` reads frames from a transport, and a door (decision 0019) can pass frames that it read itself.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from stratalog.broker.network.session import Session
from stratalog.ports import Buffer
from stratalog.wire.apis import PRODUCE

Answer = list[Buffer] | None
"""An answer's buffers, None where the request wants none."""


class Awaited(asyncio.Future[Any]):
    """An answer to come without a task.

    As with a coroutine, the next request waits for it, and it is cancelled when the client goes away.
    """

    __slots__ = ()


@dataclass(slots=True)
class Later:
    """An answer to come: `work` gives what `encode` makes buffers of. `size` is what the request takes meanwhile."""

    work: "asyncio.Future[Any] | Coroutine[Any, Any, Any]"
    encode: Callable[[Any], Answer]
    size: int = 0


Serve = Callable[[Session, memoryview], Answer | Later]
"""Begin to answer one frame of a client. Raises `Rejected` where the connection must be closed."""


def is_produce(frame: memoryview) -> bool:
    """Return whether the frame is a Produce request: most of it is records then."""
    return frame[0] << 8 | frame[1] == PRODUCE if len(frame) > 1 else False


def as_it_is(answer: Answer) -> Answer:
    """Encode what is encoded already."""
    return answer
