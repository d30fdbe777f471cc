"""Nodes that lie: answers between the nodes of a cluster are damaged on their way into the asking node.

In: a lie. Out: a context in which the nodes of this process get damaged answers. Clients of a story, and a node that
asks itself, get sound ones. TCP has checksums, so a lie stands for a bad disk, bad memory or a faulty version of the
node that answers.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol
from unittest.mock import patch

from tests.sim.process import current

from stratalog.client import core
from stratalog.wire.envelope import decode_response

__all__ = ["Answer", "Lie", "lying"]


class Answer(NamedTuple):
    """An answer of the node on host `sender` for the node on host `asker`; `frame` has all of its bytes."""

    sender: str
    asker: str
    api_key: int
    version: int
    frame: memoryview


class Lie(Protocol):
    """Damages answers, each at most once."""

    def damaged(self, answer: Answer) -> memoryview:
        """Return the bytes that arrive."""

    def changed(self, answer: Answer, correlation_id: int, body: Any) -> tuple[int, Any]:
        """Return what is read from the bytes that arrive."""


@contextmanager
def lying(lie: Lie, *, to_itself: bool = False) -> Iterator[None]:
    """Let the lie have every answer between nodes; with `to_itself` also those of a node to itself."""
    real_answer = core.ClientConnection._answer
    asking: list[str] = []

    def answer(connection: core.ClientConnection, frame: memoryview) -> tuple[int, Any]:
        asking.append(connection.peer.rpartition(":")[0])
        try:
            return real_answer(connection, frame)
        finally:
            asking.pop()

    def decode(api_key: int, version: int, frame: memoryview) -> tuple[int, Any]:
        process = current()
        if process is None or not asking or (asking[-1] == process.host and not to_itself):
            return decode_response(api_key, version, frame)
        given = Answer(asking[-1], process.host, api_key, version, frame)
        arrived = lie.damaged(given)
        return lie.changed(given, *decode_response(api_key, version, arrived))

    with (
        patch.object(core.ClientConnection, "_answer", answer),
        patch.object(core, "decode_response", decode),
    ):
        yield
