"""`ports.Door` in compiled code: the crate in `door/`, called through ctypes.

In: connections' sockets, partitions, answers. Out: rows, once for each turn of the event loop in which any arrived. It
decides nothing, and no client's byte is looked at here: the crate does that. Linux alone has the library; where it is
missing, the broker serves every request by its handlers.
"""

import asyncio
import ctypes
from array import array
from collections.abc import Callable, Collection, Sequence
from itertools import chain
from pathlib import Path
from struct import Struct
from typing import Final
from uuid import UUID

from stratalog.ports import Answers, FetchRow, RowGroup

__all__ = ["CompiledDoor", "open_door"]

LIBRARY: Final = "stratalog_door.so"
_ROWS_MAX: Final = 256
_ROW_FIELDS: Final = 21
_ANSWER_FIELDS: Final = 4
_GROUP_FIELDS: Final = 5
_RETURNED_MAX: Final = 1024
_BATCHES_BYTES: Final = 1 << 20
_FETCH_FIELDS: Final = 3
_FETCHES_BYTES: Final = _ROWS_MAX << 10
_MORE: Final = 1 << 32
_ROW: Final = Struct(f"={_ROW_FIELDS}q")
_Pointer = ctypes.c_void_p
_Number = ctypes.c_int64
_SIGNATURES: Final[dict[str, tuple[list[object], object]]] = {
    "door_open": ([], _Pointer),
    "door_close": ([_Pointer], _Number),
    "door_fd": ([_Pointer], _Number),
    "door_memory": ([_Pointer, _Number], _Pointer),
    "door_host": (
        [_Pointer, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_int32],
        _Number,
    ),
    "door_drop": ([_Pointer, _Number], _Number),
    "door_borrow": ([_Pointer, ctypes.c_int32, ctypes.c_char_p, ctypes.c_size_t], _Number),
    "door_give_back": ([_Pointer, _Number], _Number),
    "door_deliver": (
        [_Pointer, _Pointer, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t],
        _Number,
    ),
    "door_read": ([_Pointer], _Number),
    "door_refuse": ([_Pointer, _Number], _Number),
    "door_send": ([_Pointer], _Number),
    "door_is_row": ([ctypes.c_char_p, ctypes.c_size_t], _Number),
}


def open_door() -> "CompiledDoor | None":
    """Return a door of its own, or None where this installation has no library."""
    library = load(Path(__file__).with_name(LIBRARY))
    return None if library is None else CompiledDoor(library)


def load(path: Path) -> ctypes.CDLL | None:
    """Return the library with its functions' types; None where it is missing or of another system."""
    try:
        library = ctypes.CDLL(str(path))
        for name, (arguments, result) in _SIGNATURES.items():
            function = getattr(library, name)
            function.argtypes, function.restype = arguments, result
    except (OSError, AttributeError):
        return None
    return library


class CompiledDoor:
    """See `ports.Door`. Use it on one event loop."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._call = library
        self._door = library.door_open()
        assert self._door, "the system has an epoll instance for each broker"
        self._fd = library.door_fd(self._door)
        self._rows = self._memory(0, 8 * _ROWS_MAX * _ROW_FIELDS)
        self._answers = self._memory(1, 8 * _ROWS_MAX * _ANSWER_FIELDS).cast("q")
        self._groups = self._memory(2, 8 * _ROWS_MAX * _GROUP_FIELDS).cast("q")
        self._returned = self._memory(3, 8 * _RETURNED_MAX).cast("q")
        self._counts = self._memory(4, 8 * 5).cast("q")
        self._batches = self._memory(5, _BATCHES_BYTES)
        self._fetch_rows = self._memory(6, 8 * _ROWS_MAX * _FETCH_FIELDS).cast("q")
        self._fetches = self._memory(7, _FETCHES_BYTES)
        self._transports: dict[int, asyncio.Transport] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_due = False

    @property
    def bytes_held(self) -> int:
        """See `ports.Door`."""
        return self._counts[3]

    def _memory(self, part: int, size: int) -> memoryview:
        address = self._call.door_memory(self._door, part)
        return memoryview((ctypes.c_ubyte * size).from_address(address)).cast("B")

    def open(
        self,
        decide: Callable[[Sequence[RowGroup]], Collection[int]],
        fetch: Callable[[Sequence[FetchRow]], None],
        returned: Callable[[int], None],
    ) -> None:
        self._decide, self._fetch, self._return = decide, fetch, returned
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._fd, self._turn)

    def close(self) -> None:
        if self._loop is not None:
            self._loop.remove_reader(self._fd)
            self._loop = None
        door, self._door = self._door, None
        if door is not None:
            for part in (
                self._rows,
                self._answers,
                self._groups,
                self._returned,
                self._counts,
                self._batches,
                self._fetch_rows,
                self._fetches,
            ):
                part.release()
            self._call.door_close(door)

    def host(self, topic: str, topic_id: UUID, index: int) -> int:
        name = topic.encode()
        return self._checked(
            self._call.door_host(self._door, name, len(name), topic_id.bytes, index)
        )

    def drop(self, handle: int) -> None:
        self._checked(self._call.door_drop(self._door, handle))

    def is_row(self, frame: memoryview) -> bool:
        return self._checked(self._call.door_is_row(frame.tobytes(), len(frame))) == 1

    def borrow(self, transport: asyncio.Transport, client_id: str) -> int:
        name = client_id.encode()
        fd = transport.get_extra_info("socket").fileno()
        found = self._checked(self._call.door_borrow(self._door, fd, name, len(name)))
        if found >= 0:
            transport.pause_reading()
            self._transports[found] = transport
        return found

    def give_back(self, connection: int) -> tuple[bytes, bytes]:
        transport = self._transports.pop(connection)
        sizes = self._checked(self._call.door_give_back(self._door, connection))
        unsent, rest = sizes >> 24, sizes & 0xFFFFFF
        if not transport.is_closing():
            transport.resume_reading()
        if not sizes:
            return b"", b""
        data = ctypes.string_at(self._call.door_memory(self._door, 8), unsent + rest)
        return data[:unsent], data[unsent:]

    def answer(self, first: int, answers: Answers) -> None:
        flat = array("q", chain.from_iterable(answers))
        start = first * _ANSWER_FIELDS
        self._answers[start : start + len(flat)] = flat

    def refuse(self, place: int) -> None:
        self._checked(self._call.door_refuse(self._door, place))

    def deliver(self, connections: Sequence[int], frame: bytes) -> None:
        ids = array("q", connections)
        address, count = ids.buffer_info()
        sent = self._checked(self._call.door_deliver(self._door, address, count, frame, len(frame)))
        for connection in list(self._returned[: sent & (_MORE - 1)]):
            self._return(connection)
        if sent & _MORE:
            self._go_on()

    def _turn(self) -> None:
        """Serve what has arrived: read, decide, answer, and return connections whose bytes are no rows."""
        self._is_due = False
        door, counts = self._door, self._counts
        if door is None:
            return
        has_more = self._checked(self._call.door_read(door))
        returned = dict.fromkeys(self._returned[: counts[2]])
        if counts[0]:
            held = self._decide(self._read_groups(counts[1]))
            sent = self._checked(self._call.door_send(door))
            returned |= dict.fromkeys((*held, *self._returned[:sent]))
        for connection in returned:
            if connection in self._transports:
                self._return(connection)
        if counts[4]:
            self._fetch(self._read_fetches(counts[4]))
        if has_more:
            self._go_on()

    def _go_on(self) -> None:
        if not self._is_due and self._loop is not None:
            self._is_due = True
            self._loop.call_soon(self._turn)

    def _read_fetches(self, count: int) -> list[FetchRow]:
        numbers, requests = self._fetch_rows, self._fetches
        return [
            (numbers[at], bytes(requests[numbers[at + 1] : numbers[at + 2]]))
            for at in range(0, count * _FETCH_FIELDS, _FETCH_FIELDS)
        ]

    def _read_groups(self, count: int) -> list[RowGroup]:
        groups = []
        fields = self._groups
        for at in range(0, count * _GROUP_FIELDS, _GROUP_FIELDS):
            handle, first, size, start, end = fields[at : at + _GROUP_FIELDS]
            rows = self._rows[first * _ROW.size : (first + size) * _ROW.size]
            batches = bytearray(self._batches[start:end])
            groups.append(RowGroup(handle, first, batches, list(_ROW.iter_unpack(rows))))
        return groups

    @staticmethod
    def _checked(result: int) -> int:
        assert result != -2, "the door has a bug: its message is on stderr"
        return result
