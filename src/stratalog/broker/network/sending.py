"""Send answers, of which a part may be still in a file (decision 0047).

In: a transport, the pieces of answers in order. Out: their bytes, from files without a copy where the socket takes them
at once, and over TLS in small parts, each read just before its encryption. It sends nothing past bytes that the
transport still holds.
"""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Final

import structlog

from stratalog.log.reading import FILE_BYTES_MIN
from stratalog.ports import Buffer, FileRange

__all__ = ["send", "takes_files"]

_IN_MEMORY: Final = (bytes, bytearray, memoryview)
_PART_BYTES: Final = 63 << 10
"""Bytes of a file that are read and encrypted at a time: the core's cache keeps them from one copy to the next.
Encrypted, behind the head of an answer, they fit one segment of the loopback, 65,483 bytes."""
_log = structlog.get_logger()


def takes_files(transport: asyncio.BaseTransport) -> bool:
    """Return whether answers may name bytes of files: there is a socket."""
    return transport.get_extra_info("socket") is not None


def send(
    transport: asyncio.Transport,
    pieces: list[Buffer],
    size: int,
    peer: str,
    *,
    is_encrypted: bool,
) -> None:
    """Send pieces of `size` bytes together, of which large ones may be in files.

    Where the socket is broken, or a file shorter by now, the connection ends.
    """
    if len(pieces) == 1:
        transport.write(pieces[0])
    elif size < FILE_BYTES_MIN or all(isinstance(one, _IN_MEMORY) for one in pieces):
        transport.writelines(pieces)
    else:
        try:
            if is_encrypted:
                transport.writelines(_in_parts(pieces))
            else:
                _send_from_files(transport, pieces)
        except OSError as error:
            if not isinstance(error, ConnectionError):
                _log.warning("answer cut off", peer=peer, reason=str(error))
            transport.abort()


def _in_parts(pieces: Sequence[Buffer | FileRange]) -> Iterator[Buffer]:
    """Yield the bytes of the pieces. Raises OSError where a file is shorter by now."""
    for piece in pieces:
        if isinstance(piece, bytes | bytearray | memoryview):
            yield piece
            continue
        for start in range(0, len(piece), _PART_BYTES):
            yield piece.part(start, min(start + _PART_BYTES, len(piece))).read()


def _send_from_files(transport: asyncio.Transport, pieces: Sequence[Buffer | FileRange]) -> None:
    waiting: list[Buffer] = []
    socket = transport.get_extra_info("socket").fileno()
    for piece in pieces:
        if isinstance(piece, bytes | bytearray | memoryview):
            waiting.append(piece)
            continue
        head, count = b"".join(waiting), 0
        waiting = []
        if not transport.get_write_buffer_size():
            count = piece.send_behind(head, socket)
        # The transport takes what the socket does not, as a copy.
        if count < len(head):
            transport.write(head[count:])
        if count < len(head) + len(piece):
            transport.write(piece.read(max(count - len(head), 0)))
    if waiting:
        transport.writelines(waiting)
