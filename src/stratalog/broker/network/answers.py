"""The result of a frame: an answer, or a pending answer.

In: nothing. Out: the types between the reader of a client's frames and the dispatcher. They know no connection: today
`Connection` reads frames from a transport, and a compiled door (decision 0019) can pass its own frames.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from msgspec import Struct

from stratalog.broker.network.session import Session
from stratalog.ports import Buffer
from stratalog.wire.apis import FETCH, PRODUCE

_IN_FLIGHT_MAX: Final = 32
_IN_FLIGHT_BYTES_MAX: Final = 4 << 20
"""Keeps drives and followers busy. With more, batches leave the processor's cache before followers have them."""

Answer = list[Buffer] | None
"""An answer's buffers; None for a request without an answer."""


class Awaited(asyncio.Future[Any]):
    """A pending answer without a task.

    As with a coroutine, the next request waits for this answer, and a closed connection cancels it.
    """

    __slots__ = ()


class Later(Struct):
    """A pending answer: `encode` turns the result of `work` into buffers. `size` is the request's memory meanwhile.

    `goes_on`: `work` is not cancelled where the connection is closed.
    """

    work: "asyncio.Future[Any] | Coroutine[Any, Any, Any]"
    encode: Callable[[Any], Answer]
    size: int = 0
    goes_on: bool = False

    def drop(self) -> None:
        """End work that has not begun to be awaited: its client is gone. A plain future's work goes on."""
        if isinstance(self.work, Awaited):
            self.work.cancel()
        elif not isinstance(self.work, asyncio.Future):
            self.work.close()


Serve = Callable[[Session, memoryview], Answer | Later]
"""Begin to answer one frame of a client. Raises `Rejected` where the connection must be closed."""


def is_produce(frame: memoryview) -> bool:
    """Return whether the frame is a Produce request: most of its bytes are records."""
    return frame[0] << 8 | frame[1] == PRODUCE if len(frame) > 1 else False


def may_overlap(frame: memoryview, requests: int, size: int) -> bool:
    """Return whether a request may start before the answers to `requests` earlier ones, of `size` bytes together."""
    return requests < _IN_FLIGHT_MAX and size < _IN_FLIGHT_BYTES_MAX and is_produce(frame)


def is_fetch(frame: memoryview) -> bool:
    """Return whether the frame is a Fetch request."""
    return frame[0] << 8 | frame[1] == FETCH if len(frame) > 1 else False


def as_it_is(answer: Answer) -> Answer:
    """Return the buffers of an encoded answer."""
    return answer
