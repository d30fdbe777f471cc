"""When a connection is lent to the door: after some small produces that were answered at once, or fetches that waited.

In: a connection's requests. Out: whether to lend it now. A connection that comes back is lent later and later: the way
there and back costs more than a few requests. It lends nothing itself.
"""

import asyncio
from typing import Final, Protocol

from stratalog.broker.network.answers import Answer, Awaited, Later, is_fetch, is_produce
from stratalog.broker.network.session import Session
from stratalog.ports import Buffer

NOT_LENT: Final = -1
SOON: Final = -2
"""In the place of a loan's id, from when the connection stops reading until it is lent."""
_FRAME_BYTES_MAX: Final = 16 << 10
_FIRST: Final = 2
_LAST: Final = 64


class Lent(Protocol):
    """A connection that may be lent."""

    session: Session
    active_s: float
    """When the last bytes arrived, in the loop's time."""

    def take_back(
        self, unsent: list[Buffer], results: list[tuple[Answer | Later, int]], rest: bytes
    ) -> None:
        """Go on after a loan: with answers that the door could not send, later answers in order, each with its
        request's size, and then received bytes.
        """


class Lender(Protocol):
    """Lends connections to the door."""

    def lend(self, connection: Lent, transport: asyncio.Transport, frame: memoryview) -> int:
        """Lend a connection whose latest request was `frame`; return the loan's id, or `NOT_LENT`."""

    def reclaim(self, loan: int) -> list[Buffer]:
        """End a loan, because the connection ends; return answers that were not sent."""

    def is_waiting(self, loan: int) -> bool:
        """Return whether a request of the connection waits for its answer."""

    def recall(self, loan: int) -> None:
        """End a loan: the connection goes on by itself."""

    def return_all(self) -> None:
        """End all loans: the connections go on by themselves."""


class HasLender(Protocol):
    """What all connections share."""

    lender: Lender | None


class Loans:
    """The loans of one connection; `id` is the present one's."""

    __slots__ = ("_needed", "_seen", "_shared", "due", "id")

    def __init__(self, shared: HasLender) -> None:
        self._shared = shared
        self.id = NOT_LENT
        self.due: memoryview | None = None
        """The request in work, where the connection is to be lent after its answer."""
        self._seen = 0
        self._needed = _FIRST

    @property
    def is_waiting(self) -> bool:
        """Whether a request waits at the door for its answer."""
        lender = self._shared.lender
        return lender is not None and self.id >= 0 and lender.is_waiting(self.id)

    def recall_waiting(self) -> None:
        """Let the connection go on by itself, if a request waits at the door."""
        if self._shared.lender is not None and self.is_waiting:
            self._shared.lender.recall(self.id)

    def is_due(self, frame: memoryview, result: Answer | Later) -> bool:
        """Note a request and its result; return whether enough small produces were answered at once.

        Fetches that wait at the tail count, too: after the last of them the connection is `due`.
        """
        if self.id != NOT_LENT or len(frame) > _FRAME_BYTES_MAX:
            return False
        waits = isinstance(result, Later)
        if isinstance(result, Later):
            suits = isinstance(result.work, Awaited) and is_fetch(frame)
        else:
            suits = result is not None and is_produce(frame)
        if not suits:
            return False
        self._seen += 1
        if self._seen < self._needed:
            return False
        self._seen = 0
        if waits:
            self.due = frame
        return not waits

    def ended(self, *, was_useful: bool) -> None:
        """Note that the present loan has ended; after one that was of no use, the next one begins later."""
        self.id = NOT_LENT
        if not was_useful:
            self._needed = min(2 * self._needed, _LAST)
