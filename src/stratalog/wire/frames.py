"""Length-prefixed frames out of a byte stream.

In: bytes as a socket delivers them, received into the memory that `get_buffer` names. Out: complete frames without
their four-byte length. It never touches a socket, and never looks inside a frame.

A frame is its own writable bytearray: the log patches offsets in it, writes it, and may keep it. Small frames are
copied out of a scratch buffer, many per read; the rest of a larger one is received straight into its bytearray. A
length is only a claim: memory follows what has arrived, not what was announced.
"""

from struct import Struct
from typing import Final

from stratalog.errors import ErrorCode, Rejected

__all__ = ["SCRATCH_BYTES", "FrameReader"]

SCRATCH_BYTES: Final = 64 << 10
_AT_ONCE_BYTES: Final = 2 << 20
_LEAST_BYTES: Final = 1 << 10
_LENGTH: Final = Struct(">i")
_EMPTY: Final = memoryview(b"")


class FrameReader:
    """The receiving half of an `asyncio.BufferedProtocol`: call `get_buffer`, fill it, call `buffer_updated`.

    Invariant: between two calls the scratch buffer holds nothing of this reader, so that readers whose two calls are
    never interleaved (those of one event loop) may share one.
    """

    __slots__ = (
        "_filled",
        "_frame",
        "_frame_bytes",
        "_max_frame_bytes",
        "_prefix",
        "_scratch",
        "_view",
        "bytes_held",
    )

    def __init__(self, max_frame_bytes: int, scratch: bytearray | None = None) -> None:
        """`scratch` has at least 8 bytes and a fixed size; without one the reader makes its own (64 KiB)."""
        self._max_frame_bytes = max_frame_bytes
        self._scratch = memoryview(bytearray(SCRATCH_BYTES) if scratch is None else scratch)
        self.bytes_held = 0
        """Memory of the frame of which only a part has arrived."""
        self._prefix = b""  # Fewer than four bytes of a length that is not whole yet.
        self._frame: bytearray | None = None  # The frame of which only the first part has arrived,
        self._frame_bytes = 0  # what it will measure,
        self._filled = 0  # and how much of it is there.
        self._view = _EMPTY

    def get_buffer(self, _hint: int) -> memoryview:
        """Where the next bytes go; never empty."""
        frame = self._frame
        if frame is None:
            prefix = self._prefix
            if not prefix:
                return self._scratch
            self._scratch[: len(prefix)] = prefix
            return self._scratch[len(prefix) :]
        if self._filled == self.bytes_held:
            self._grow()
        return self._view[self._filled :]

    def _grow(self) -> None:
        """Room for more of the frame: much more than has come where that is little, twice as much where it is not."""
        filled = self._filled
        size = min(
            self._frame_bytes, max(2 * filled, min(32 * filled, _AT_ONCE_BYTES), _LEAST_BYTES)
        )
        frame = bytearray(size)
        view = memoryview(frame)
        view[:filled] = self._view
        self._frame = frame
        self._view = view
        self.bytes_held = size

    def buffer_updated(self, count: int) -> list[memoryview]:
        """The frames that the `count` bytes just received complete, in order.

        Raises Rejected(INVALID_REQUEST) for a length that is negative or above the limit; the stream is lost then.
        """
        frame = self._frame
        if frame is None:
            start = len(self._prefix)
            self._prefix = b""
            return self._split(start + count)
        self._filled += count
        if self._filled < self._frame_bytes:
            return []
        whole = self._view
        self.bytes_held = 0
        self._frame = None
        self._view = _EMPTY
        return [whole]

    def _split(self, end: int) -> list[memoryview]:
        """Cut `scratch[:end]` into frames and begin the one that is not whole."""
        scratch = self._scratch
        frames: list[memoryview] = []
        position = 0
        while end - position >= 4:
            (length,) = _LENGTH.unpack_from(scratch, position)
            if length < 0 or length > self._max_frame_bytes:
                raise Rejected(
                    ErrorCode.invalid_request,
                    f"a frame of {length} bytes where 0 to {self._max_frame_bytes} are allowed",
                )
            position += 4
            if end - position < length:
                self._begin(length, scratch[position:end])
                return frames
            frames.append(memoryview(bytearray(scratch[position : position + length])))
            position += length
        self._prefix = bytes(scratch[position:end])
        return frames

    def _begin(self, length: int, first: memoryview) -> None:
        frame = bytearray(first)
        self._frame = frame
        self._frame_bytes = length
        self._filled = self.bytes_held = len(frame)
        self._view = memoryview(frame)
