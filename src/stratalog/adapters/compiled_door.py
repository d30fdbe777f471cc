"""`ports.Door` in compiled code: the crate in `door/`, called through ctypes.

In: connections' sockets, partitions, answers. Out: rows, once for each turn of the event loop in which any arrived. It
decides nothing, and no client's byte is looked at here: the crate does that. Linux alone has the library; where it is
missing, the broker serves every request by its handlers.

A bug in the crate ends its connections, and the door borrows no other: clients connect again, to the handlers.

The crate's check of records serves large batches, too, which the handlers append (`largest_timestamp`).
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

from stratalog.ports import Answers, Buffer, FetchRow, LargestTimestamp, RowGroup

__all__ = ["CompiledDoor", "largest_timestamp", "open_door"]

LIBRARY: Final = "stratalog_door.so"
_INTERFACE: Final = 2
"""The crate's `INTERFACE`: a library of another version would misread its arguments."""
_FAILED: Final = -2
_HEAD_BYTES: Final = 8
"""The part of an answer that each connection has of its own: length and correlation id."""
_ROWS_MAX: Final = 256
_ROW_FIELDS: Final = 21
_ANSWER_FIELDS: Final = 4
_GROUP_FIELDS: Final = 5
_RETURNED_MAX: Final = 1024
_BATCHES_BYTES: Final = 1 << 20
_FETCH_FIELDS: Final = 3
_FETCHES_BYTES: Final = _ROWS_MAX << 10
_MORE: Final = 1 << 32
_NOT_CERTAIN: Final = -3
_ROW: Final = Struct(f"={_ROW_FIELDS}q")
_Pointer = ctypes.c_void_p
_Number = ctypes.c_int64
_SIGNATURES: Final[dict[str, tuple[list[object], object]]] = {
    "door_interface": ([], _Number),
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
    "door_largest_timestamp": (
        [_Pointer, ctypes.c_size_t, _Number, _Number, ctypes.c_bool],
        _Number,
    ),
}


def open_door() -> "CompiledDoor | None":
    """Return a door of its own; None where this installation has no library, or the system no descriptor for it."""
    library = load(Path(__file__).with_name(LIBRARY))
    door = None if library is None else library.door_open()
    return None if library is None or door is None else CompiledDoor(library, door)


def largest_timestamp() -> LargestTimestamp:
    """Return the crate's check of records; without the library one that is certain of none."""
    library = load(Path(__file__).with_name(LIBRARY))
    if library is None:
        return lambda *_: None
    check = library.door_largest_timestamp
    start_of, address_of = ctypes.c_char.from_buffer, ctypes.addressof

    def checked(batch: memoryview, earliest: int, latest: int, is_keyed: bool) -> int | None:  # noqa: FBT001
        found = check(address_of(start_of(batch)), len(batch), earliest, latest, is_keyed)
        assert found != _FAILED, "the door has a bug: its message is on stderr"
        return None if found == _NOT_CERTAIN else int(found)

    return checked


def load(path: Path) -> ctypes.CDLL | None:
    """Return the library with its functions' types; None where it is missing, of another system or version."""
    try:
        library = ctypes.CDLL(str(path))
        for name, (arguments, result) in _SIGNATURES.items():
            function = getattr(library, name)
            function.argtypes, function.restype = arguments, result
    except (OSError, AttributeError):
        return None
    return library if library.door_interface() == _INTERFACE else None


class CompiledDoor:
    """See `ports.Door`. Use it on one event loop."""

    def __init__(self, library: ctypes.CDLL, door: int) -> None:
        self._call = library
        self._memory_of = door
        self._door: int | None = door
        """None once the door is closed, or met a bug."""
        self._fd = library.door_fd(door)
        self._rows = self._memory(0, 8 * _ROWS_MAX * _ROW_FIELDS)
        self._answers = self._memory(1, 8 * _ROWS_MAX * _ANSWER_FIELDS).cast("q")
        self._groups = self._memory(2, 8 * _ROWS_MAX * _GROUP_FIELDS).cast("q")
        self._returned = self._memory(3, 8 * _RETURNED_MAX).cast("q")
        self._counts = self._memory(4, 8 * 5).cast("q")
        self._batches = self._memory(5, _BATCHES_BYTES)
        self._fetch_rows = self._memory(6, 8 * _ROWS_MAX * _FETCH_FIELDS).cast("q")
        self._fetches = self._memory(7, _FETCHES_BYTES)
        self._transports: dict[int, asyncio.Transport] = {}
        self._unsent: dict[int, memoryview] = {}
        """The end of an answer to a fetch that a connection's socket did not take; other connections share it."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_due = False

    @property
    def bytes_held(self) -> int:
        """See `ports.Door`."""
        return 0 if self._door is None else self._counts[3]

    def _memory(self, part: int, size: int) -> memoryview:
        address = self._call.door_memory(self._memory_of, part)
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
        self._end()
        door, self._memory_of = self._memory_of, 0
        if door:
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

    def _end(self) -> None:
        self._door = None
        if self._loop is not None:
            self._loop.remove_reader(self._fd)
            self._loop = None

    def _checked(self, result: int) -> int:
        if result == _FAILED:
            self._give_up()
            raise AssertionError("the door has a bug: its message is on stderr")
        return result

    def _give_up(self) -> None:
        """Borrow nothing any more, and end all connections: their clients connect again."""
        self._end()
        for transport in list(self._transports.values()):
            transport.abort()

    def host(self, topic: str, topic_id: UUID, index: int) -> int:
        assert self._door is not None, "a connection was borrowed for it"
        name = topic.encode()
        return self._checked(
            self._call.door_host(self._door, name, len(name), topic_id.bytes, index)
        )

    def drop(self, handle: int) -> None:
        if self._door is not None:
            self._checked(self._call.door_drop(self._door, handle))

    def is_row(self, frame: memoryview) -> bool:
        return self._checked(self._call.door_is_row(frame.tobytes(), len(frame))) == 1

    def borrow(self, transport: asyncio.Transport, client_id: str) -> int:
        if self._door is None:
            return -1
        name = client_id.encode()
        fd = transport.get_extra_info("socket").fileno()
        found = self._checked(self._call.door_borrow(self._door, fd, name, len(name)))
        if found >= 0:
            transport.pause_reading()
            self._transports[found] = transport
        return found

    def give_back(self, connection: int) -> tuple[list[Buffer], bytes]:
        if self._door is None:
            return [], b""
        sizes = self._checked(self._call.door_give_back(self._door, connection))
        transport = self._transports.pop(connection)
        shared = self._unsent.pop(connection, None)
        unsent, rest = sizes >> 24, sizes & 0xFFFFFF
        if not transport.is_closing():
            transport.resume_reading()
        data = b""
        if sizes:
            data = ctypes.string_at(self._call.door_memory(self._door, 8), unsent + rest)
        pieces: list[Buffer] = [data[:unsent]] if unsent else []
        if shared is not None:
            pieces.append(shared)
        return pieces, data[unsent:]

    def answer(self, first: int, answers: Answers) -> None:
        flat = array("q", chain.from_iterable(answers))
        start = first * _ANSWER_FIELDS
        self._answers[start : start + len(flat)] = flat

    def refuse(self, place: int) -> None:
        if self._door is not None:
            self._checked(self._call.door_refuse(self._door, place))

    def deliver(self, connections: Sequence[int], frame: bytes) -> None:
        if self._door is None:
            return
        ids = array("q", connections)
        address, count = ids.buffer_info()
        done = self._checked(self._call.door_deliver(self._door, address, count, frame, len(frame)))
        numbers = self._returned[: 2 * (done & (_MORE - 1))].tolist()
        for connection, sent in zip(numbers[::2], numbers[1::2], strict=True):
            self._unsent[connection] = memoryview(frame)[max(sent, _HEAD_BYTES) :]
        for connection in numbers[::2]:
            if connection in self._transports:
                self._return(connection)
        if done & _MORE:
            self._go_on()

    def _turn(self) -> None:
        self._is_due = False
        if self._door is None:
            return
        try:
            self._serve(self._door)
        except BaseException:  # its state is unknown now: no connection stays in it
            self._give_up()
            raise

    def _serve(self, door: int) -> None:
        """Serve what has arrived: read, decide, answer, and return connections whose bytes are no rows."""
        counts = self._counts
        has_more = self._checked(self._call.door_read(door))
        returned = dict.fromkeys(self._returned[: counts[2]])
        if counts[0]:
            held = self._decide(self._read_groups(counts[1]))
            assert self._door is not None, "the door has a bug: its message is on stderr"
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
