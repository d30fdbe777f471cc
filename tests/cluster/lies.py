"""Nodes whose answers to other nodes are damaged for a while, in every way that a sound node can notice.

In: hosts that lie, and how often; a source of chance. Out: damaged answers, counted by kind. TCP has checksums, so this
is a node with a bad disk, bad memory or a faulty version. Some damage is left out, because no reader can tell it from
the truth: another high watermark, log start or offset that may be, and another epoch of a batch that may be.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from random import Random
from typing import Any, Final
from uuid import UUID

from msgspec import Struct
from msgspec.structs import fields, replace
from tests.sim.lies import Answer

from stratalog.errors import Corrupt
from stratalog.quorum.metadata_batches import METADATA_TOPIC_ID
from stratalog.wire.apis import APIS
from stratalog.wire.batch import scan
from stratalog.wire.messages.fetch import EpochEndOffset

UNKNOWN_CODES = (-2, 134, 9999, 32767)
API_VERSIONS, FETCH, FETCH_SNAPSHOT = 18, 1, 59
HUGE = (1 << 31) - 1
_EPOCHS_FROM: Final = 16
"""Where the bytes of a batch begin whose damage the follower of a partition must notice: offset, length, epoch lie
before, of which only the length must fit."""
_LENGTH: Final = range(8, 12)
_INDEXES = ("partition_index", "index", "partition")
_NAMES = ("topic_name", "name", "topic", "transactional_id")
_LEADERS = ("leader_id", "leader_epoch")
_NONSENSE: Final[dict[str, Sequence[Any]]] = {
    "producer_id_start": (-1, -(1 << 40)),
    "producer_id_len": (0, -1, -HUGE),
    "broker_epoch": (-1, -5, 0, 1, 1 << 40),
    "isr": ((), (99,), (-1,)),
    "partition_epoch": (-1, 0),
    "high_watermark": (-2, -(1 << 40)),
    "response_data": (None, b"", b"\xff" * 40),
    "diverging_epoch": (
        EpochEndOffset(epoch=HUGE, end_offset=1 << 40),
        EpochEndOffset(epoch=0, end_offset=-5),
    ),
    "should_shut_down": (True, False),
    "is_fenced": (True, False),
    "is_caught_up": (True, False),
    "session_id": (0, -1, HUGE),
    "offset": (-2, -7, -(1 << 40)),
    "size": (-1, 0, 1, 1 << 40),
    "position": (-1, 1 << 40),
}
"""Values of fields that a sound node does not send, or that do no harm."""
_LEADERS_NONSENSE: Final[dict[str, Sequence[Any]]] = {
    "leader_id": (-7, 99, HUGE, 1, 2, 3),
    "leader_epoch": (HUGE, HUGE - 1, -1, 0),
}
Kind = tuple[str, Callable[[Any], Any]]


class Liars:
    """The hosts that lie now; see the module."""

    def __init__(self, chance: Random, counts: Counter[str]) -> None:
        self.rates: dict[str, float] = {}
        self.apis: Collection[int] | None = None
        """The APIs whose answers are damaged; None for all."""
        self._chance = chance
        self._counts = counts
        self._changes = False

    def damaged(self, answer: Answer) -> memoryview:
        """Damage the bytes of an answer, or note that its content is to be changed."""
        chance = self._chance
        self._changes = False
        if self.apis is not None and answer.api_key not in self.apis:
            return answer.frame
        if chance.random() >= self.rates.get(answer.sender, 0.0):
            return answer.frame
        if answer.api_key != API_VERSIONS and chance.random() < 0.75:
            self._changes = True
            return answer.frame
        size = len(answer.frame)
        if chance.random() < 0.5:
            self._note(answer, "cut off")
            return answer.frame[: chance.randint(0, size - 1)]
        self._note(answer, "noise")
        return memoryview(bytearray(answer.frame[:4]) + bytearray(b"\xff" * (size - 4)))

    def changed(self, answer: Answer, correlation_id: int, body: Any) -> tuple[int, Any]:
        """Change the content of an answer."""
        if not self._changes:
            return correlation_id, body
        if self._chance.random() < 0.05:
            self._note(answer, "correlation id")
            return correlation_id + self._chance.choice((-1, 1, 1 << 20)), body
        kinds = list(self._kinds(answer, body))
        if not kinds:
            return correlation_id, body
        name, change = self._chance.choice(kinds)
        self._note(answer, name)
        return correlation_id, change(body)

    def _note(self, answer: Answer, kind: str) -> None:
        self._counts[f"lie: {kind}"] += 1
        self._counts[f"lies of {APIS[answer.api_key].name}"] += 1

    def _kinds(self, answer: Answer, body: Any) -> Iterator[Kind]:
        """Yield each change that one field of the body, or of a row in it, may have."""
        for path, row in _structs(body):
            for field in fields(row):
                for name, value in self._values(answer, field.name, getattr(row, field.name), row):
                    yield name, _setting(path, field.name, value)

    def _values(self, answer: Answer, name: str, value: Any, row: Any) -> Iterator[tuple[str, Any]]:
        chance = self._chance
        if name.endswith("error_code"):
            yield "unknown error", chance.choice(UNKNOWN_CODES)
        if name in _INDEXES:
            yield "other partition", chance.choice((-1, 7, HUGE))
        if name in _NAMES and isinstance(value, str):
            yield "other name", "another"
        if name == "topic_id":
            yield "other topic", UUID(int=chance.getrandbits(128))
        if name == "end_offset" and answer.api_key == FETCH_SNAPSHOT:
            yield "other snapshot", value + 1
        if name in _NONSENSE and not (name == "offset" and answer.api_key == FETCH):
            yield name, chance.choice(_NONSENSE[name])
        if name in _LEADERS and answer.api_key in (FETCH, FETCH_SNAPSHOT, 52, 53, 54):
            yield name, chance.choice(_LEADERS_NONSENSE[name])
        if isinstance(value, list | tuple) and value and isinstance(value[0], Struct):
            at = chance.randrange(len(value))
            yield "row left out", [*value[:at], *value[at + 1 :]]
            yield "row twice", [*value, value[at]]
        if name in ("records", "unaligned_records") and isinstance(value, memoryview):
            is_metadata = answer.api_key == FETCH_SNAPSHOT or _is_metadata(answer, row)
            for _ in range(6 if len(value) else 0):
                yield "damaged bytes", self._bytes(value, is_whole=is_metadata)

    def _bytes(self, data: memoryview, *, is_whole: bool) -> memoryview:
        chance = self._chance
        if chance.random() < 0.2:
            return memoryview(bytearray(data[: chance.randint(1, len(data))]))
        damaged = bytearray(data)
        at = chance.choice(list(_places(data)) or [0]) if not is_whole else None
        if at is None:
            at = chance.choice(list(_metadata_places(data)) or [0])
        damaged[at] ^= 1 << chance.randint(0, 7)
        return memoryview(damaged)


def _is_metadata(answer: Answer, row: Any) -> bool:
    """Return whether the answer to a Fetch is of the metadata log, which observers and voters alone fetch."""
    return (
        answer.api_key == FETCH
        and getattr(row, "current_leader", None) is not None
        and (METADATA_TOPIC_ID.bytes in bytes(answer.frame[:200]))
    )


def _batches(data: memoryview) -> list[tuple[int, Any]]:
    try:
        return list(scan(data))
    except Corrupt:
        return []  # a part of a snapshot begins anywhere


def _places(data: memoryview) -> Iterator[int]:
    """Yield the bytes of batches whose damage the follower of a partition notices."""
    for position, header in _batches(data):
        yield from (position + one for one in _LENGTH)
        yield from range(position + _EPOCHS_FROM, position + header.size)


def _metadata_places(data: memoryview) -> Iterator[int]:
    """Yield the bytes whose damage a member of the quorum notices: all but the epoch of a batch that opens one."""
    batches = _batches(data)
    if not batches:
        yield from range(len(data))
    before = -1
    for position, header in batches:
        opens = header.leader_epoch != before
        before = header.leader_epoch
        epoch = range(position + 12, position + 16)
        for at in range(position, position + header.size):
            if not (opens and at in epoch):
                yield at


def _structs(body: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield the struct and all structs in it, each with the fields and places that lead there."""
    yield path, body
    for field in fields(body):
        value = getattr(body, field.name)
        if isinstance(value, Struct):
            yield from _structs(value, (*path, field.name))
        elif isinstance(value, list | tuple):
            for at, one in enumerate(value):
                if isinstance(one, Struct):
                    yield from _structs(one, (*path, field.name, at))


def _setting(path: tuple[Any, ...], name: str, value: Any) -> Callable[[Any], Any]:
    """Return a function that returns a body with one field set."""

    def change(body: Any, left: tuple[Any, ...] = path) -> Any:
        if not left:
            return replace(body, **{name: value})
        step, *rest = left
        inner = getattr(body, step)
        if isinstance(inner, Struct):
            return replace(body, **{step: change(inner, tuple(rest))})
        rows = list(inner)
        rows[rest[0]] = change(rows[rest[0]], tuple(rest[1:]))
        return replace(body, **{step: rows})

    return change
