"""Answers of a node with a bad disk or bad memory: damaged in every way that a sound member can notice.

In: a sound response, a source of chance. Out: another one, and the kind of damage. A high watermark that is too high, a
wrong vote, and a diverging epoch that is only almost right are left out: no member can tell them from the truth.
"""

from collections.abc import Callable
from random import Random
from typing import Any

from msgspec.structs import replace

from stratalog.errors import ErrorCode
from stratalog.metadata.snapshot import SnapshotId
from stratalog.quorum.messages import (
    FetchResponse,
    FetchSnapshotResponse,
    Response,
)
from stratalog.wire.batch import LEADER_EPOCH, scan

_EPOCH_PLACE = range(12, 16)
"""A batch that opens an epoch may have another epoch there, and the member cannot know."""
HUGE = (1 << 31) - 1


def damaged(response: Response, chance: Random) -> tuple[Response, str]:
    """Return a response that a sound node would not send."""
    kinds: list[Callable[[Any, Random], Response]] = [_other_leader, _huge_epoch, _earlier_epoch]
    kinds += [_later_epoch, _strange_leader, _error]
    if isinstance(response, FetchResponse) and response.error is ErrorCode.none:
        kinds += [_negative_watermark, _diverging, _snapshot]
        if len(response.records):
            kinds += [_flipped, _flipped, _cut_off, _gap, _repeated, _noise]
    if isinstance(response, FetchSnapshotResponse) and response.error is ErrorCode.none:
        kinds = [*kinds, *(_part_flipped,) * 6, _part_empty, _other_size, _other_position]
    kind = chance.choice(kinds)
    return kind(response, chance), kind.__name__.strip("_").replace("_", " ")


def _other_leader(response: Any, chance: Random) -> Response:
    return replace(response, leader_id=chance.randint(1, 5))


def _strange_leader(response: Any, chance: Random) -> Response:
    return replace(response, leader_id=chance.choice([-7, 99, HUGE]))


def _huge_epoch(response: Any, chance: Random) -> Response:
    return replace(response, leader_epoch=HUGE - chance.choice([0, 1, 1000]))


def _later_epoch(response: Any, chance: Random) -> Response:
    return replace(response, leader_epoch=response.leader_epoch + chance.randint(1, 3))


def _earlier_epoch(response: Any, chance: Random) -> Response:
    return replace(response, leader_epoch=response.leader_epoch - chance.randint(1, 3))


def _error(response: Any, chance: Random) -> Response:
    return replace(response, error=chance.choice(list(ErrorCode)[2:]))


def _negative_watermark(response: Any, chance: Random) -> Response:
    return replace(response, high_watermark=-chance.randint(2, 1 << 40))


def _diverging(response: Any, chance: Random) -> Response:
    nonsense = [(HUGE, 1 << 40), (response.leader_epoch, 1 << 40), (0, -5), (HUGE, -1)]
    return replace(response, diverging=chance.choice(nonsense))


def _snapshot(response: Any, chance: Random) -> Response:
    nonsense = [SnapshotId(1, 1), SnapshotId(-1, 0), SnapshotId(5, HUGE), SnapshotId(1 << 40, 1)]
    return replace(response, snapshot=chance.choice(nonsense))


def _flipped(response: Any, chance: Random) -> Response:
    data = bytearray(response.records)
    batches = list(scan(data))
    epochs = [header[LEADER_EPOCH] for _, header in batches]
    opening = {
        position + byte
        for (position, header), before in zip(batches, [-1, *epochs], strict=False)
        for byte in _EPOCH_PLACE
        if header[LEADER_EPOCH] != before
    }
    at = chance.choice([one for one in range(len(data)) if one not in opening])
    data[at] ^= 1 << chance.randint(0, 7)
    return replace(response, records=bytes(data))


def _cut_off(response: Any, chance: Random) -> Response:
    return replace(response, records=response.records[: chance.randint(1, len(response.records))])


def _gap(response: Any, _chance: Random) -> Response:
    """Leave the first batch out."""
    first = next(scan(response.records))[1].size
    return replace(response, records=response.records[first:])


def _repeated(response: Any, _chance: Random) -> Response:
    return replace(response, records=bytes(response.records) * 2)


def _noise(response: Any, chance: Random) -> Response:
    return replace(response, records=chance.randbytes(len(response.records)))


def _part_flipped(response: Any, chance: Random) -> Response:
    data = bytearray(response.data)
    data[chance.randrange(len(data))] ^= 1 << chance.randint(0, 7)
    return replace(response, data=bytes(data))


def _part_empty(response: Any, _chance: Random) -> Response:
    return replace(response, data=b"")


def _other_size(response: Any, chance: Random) -> Response:
    size = chance.choice([-1, 0, len(response.data) - 1, 1 << 40])
    return replace(response, size=size)


def _other_position(response: Any, chance: Random) -> Response:
    return replace(response, position=response.position + chance.choice([-1, 1, 1 << 40]))
