"""Cut length-prefixed frames out of a byte stream.

In: bytes as a socket delivers them, received into the memory that `get_buffer` returns. Out: complete frames without
their four-byte length. It never touches a socket, and never looks inside a frame.

A frame is a separate writable bytearray: the log patches offsets in it, writes it, and may keep it. Small frames are
copied out of a scratch buffer, several per read. The rest of a larger frame is received straight into its bytearray.
Memory follows the bytes that have arrived, not the length that was announced.

One read may bring thousands of frames. A server cuts a few of them at a time (`frames_max`). The rest stays one copy
of the bytes read, and no more is received until `next_frames` has cut all of it.
"""

from collections.abc import Callable
from struct import Struct
from typing import Final

from stratalog.errors import ErrorCode, Rejected

__all__ = ["SCRATCH_BYTES", "FrameReader"]

SCRATCH_BYTES: Final = 64 << 10
_AT_ONCE_BYTES: Final = 2 << 20
_LEAST_BYTES: Final = 1 << 10
_LENGTH: Final = Struct(">i")
_EMPTY: Final = memoryview(b"")
_NO_LIMIT: Final = 1 << 30


class FrameReader:
    """The receiving half of an `asyncio.BufferedProtocol`: call `get_buffer`, fill it, call `buffer_updated`.

    While `has_more`, call `next_frames` instead.

    Invariant: between two calls the scratch buffer holds nothing of this reader, so that readers whose two calls are
    never interleaved (those of one event loop) may share one.
    """

    __slots__ = (
        "_buffer",
        "_filled",
        "_frame",
        "_frame_bytes",
        "_frames_max",
        "_max_frame_bytes",
        "_prefix",
        "_rest",
        "_scratch",
        "_view",
        "bytes_held",
        "has_more",
    )

    def __init__(
        self,
        max_frame_bytes: int,
        scratch: bytearray | None = None,
        buffer: Callable[[int], bytearray] = bytearray,
        *,
        frames_max: int = _NO_LIMIT,
    ) -> None:
        """`scratch` has at least 8 bytes and a fixed size; without one the reader makes its own (64 KiB).

        `frames_max`: the most frames that one call returns. `buffer` makes the buffer of a large frame, with any bytes.
        """
        self._max_frame_bytes = max_frame_bytes
        self._frames_max = frames_max
        self._buffer = buffer
        self._scratch = memoryview(bytearray(SCRATCH_BYTES) if scratch is None else scratch)
        self.bytes_held = 0
        """Memory of an incomplete frame, or of received bytes that are not cut into frames yet."""
        self.has_more = False
        """Whether received bytes wait to be cut."""
        self._prefix = b""  # Fewer than four bytes of an incomplete length.
        self._rest = _EMPTY  # Received bytes that are not cut yet.
        self._frame: bytearray | None = None  # The incomplete frame,
        self._frame_bytes = 0  # its final size,
        self._filled = 0  # and the number of its bytes received so far.
        self._view = _EMPTY

    def limit(self, max_frame_bytes: int) -> None:
        """Change the limit of later frames."""
        self._max_frame_bytes = max_frame_bytes

    def get_buffer(self, _hint: int) -> memoryview:
        """Return the buffer for the next bytes; never empty."""
        assert not self.has_more, "all that was read is cut before more is received"
        frame = self._frame
        if frame is None:
            prefix = self._prefix
            if not prefix:
                return self._scratch
            self._scratch[: len(prefix)] = prefix
            return self._scratch[len(prefix) :]
        if self._filled == self.bytes_held:
            # The frame grows once bytes have come: a thousand clients that disconnect at once would fill the memory.
            return self._scratch[: self._frame_bytes - self._filled]
        return self._view[self._filled :]

    def _grow(self, count: int) -> None:
        """Grow the frame's buffer by a fixed amount at first, later by doubling; put `count` bytes of scratch there."""
        filled = self._filled
        size = max(2 * filled, min(32 * filled, _AT_ONCE_BYTES), _LEAST_BYTES, filled + count)
        size = min(self._frame_bytes, size)
        frame = self._buffer(size)
        view = memoryview(frame)
        view[:filled] = self._view
        view[filled : filled + count] = self._scratch[:count]
        self._frame = frame
        self._view = view
        self.bytes_held = size

    def buffer_updated(self, count: int) -> list[memoryview]:
        """Return the frames that the `count` bytes just received complete, in order: the first `frames_max` of them.

        Raises Rejected(INVALID_REQUEST) for a length that is negative or above the limit; the stream is lost then.
        """
        frame = self._frame
        if frame is None:
            end = len(self._prefix) + count
            if (
                end >= 4
                and _LENGTH.unpack_from(self._scratch)[0] == end - 4 <= self._max_frame_bytes
            ):
                # Most reads bring one frame.
                self._prefix = b""
                return [memoryview(bytearray(self._scratch[4:end]))]
            self._prefix = b""
            frames, position = self._cut(self._scratch, end)
            if position < end:
                # A copy, because the next read of any connection uses the scratch buffer.
                self._keep(memoryview(bytes(self._scratch[position:end])))
            return frames
        if count and self._filled == self.bytes_held:
            self._grow(count)
        self._filled += count
        if self._filled < self._frame_bytes:
            return []
        whole = self._view
        self.bytes_held = 0
        self._frame = None
        self._view = _EMPTY
        return [whole]

    def next_frames(self) -> list[memoryview]:
        """Return up to `frames_max` more frames of what was read, in order; raises Rejected as `buffer_updated`."""
        rest = self._rest
        self._keep(_EMPTY)
        frames, position = self._cut(rest, len(rest))
        if position < len(rest):
            self._keep(rest[position:])
        return frames

    @property
    def missing(self) -> int:
        """Bytes of the incomplete frame that have not arrived; 0 where no frame is incomplete."""
        return self._frame_bytes - self._filled if self._frame is not None else 0

    @property
    def is_empty(self) -> bool:
        """Whether nothing is received that was not returned."""
        return not self.bytes_held and not self._prefix

    def put_back(self, data: bytes) -> None:
        """Take bytes that another reader of this stream received, and call `next_frames`. Nothing else may be here."""
        assert self.is_empty
        self._keep(memoryview(data))

    def drop_rest(self) -> None:
        """Drop received bytes that are not cut."""
        if self.has_more:
            self._keep(_EMPTY)

    def end(self) -> None:
        """Drop everything received, because the stream has ended."""
        self._frame = None
        self._view = _EMPTY
        self._keep(_EMPTY)

    def _keep(self, rest: memoryview) -> None:
        self._rest = rest
        self.bytes_held = len(rest)
        self.has_more = self.bytes_held > 0

    def _cut(self, data: memoryview, end: int) -> tuple[list[memoryview], int]:
        """Cut `data[:end]` into frames and begin the incomplete one; return the position where it stopped."""
        frames: list[memoryview] = []
        position = 0
        left = self._frames_max
        while left and end - position >= 4:
            (length,) = _LENGTH.unpack_from(data, position)
            if length < 0 or length > self._max_frame_bytes:
                raise Rejected(
                    ErrorCode.invalid_request,
                    f"a frame of {length} bytes where 0 to {self._max_frame_bytes} are allowed",
                )
            position += 4
            if end - position < length:
                self._begin(length, data[position:end])
                return frames, end
            frames.append(memoryview(bytearray(data[position : position + length])))
            position += length
            left -= 1
        if end - position < 4:
            self._prefix = bytes(data[position:end])
            position = end
        return frames, position

    def _begin(self, length: int, first: memoryview) -> None:
        frame = bytearray(first)
        self._frame = frame
        self._frame_bytes = length
        self._filled = self.bytes_held = len(frame)
        self._view = memoryview(frame)
