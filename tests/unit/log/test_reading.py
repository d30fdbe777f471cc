"""Reads never skip records behind a damaged header or index entry."""

from random import Random

import pytest
from tests.log_steps import DIRECTORY, Steps, batch
from tests.sim.disk import SimDisk

from stratalog.config import LogConfig
from stratalog.errors import Corrupt
from stratalog.log.reading import ReadPlan
from stratalog.ports import Buffer
from stratalog.wire.batch import parse_header, scan

COUNT = 8
LOG = f"{DIRECTORY}/{0:020}.log"
INDEX = f"{DIRECTORY}/{0:020}.index"


def steps(count: int = 1) -> Steps:
    """A closed segment of batches of `count` records, with an index entry for each batch but the first."""
    made = Steps(LogConfig(segment_bytes=100_000, index_interval_bytes=0))
    for _ in range(COUNT):
        made.append(batch(count))
    made.roll()
    made.perform_all()
    made.log.tail.clear()
    return made


def set_base_offset(disk: SimDisk, number: int, offset: int) -> None:
    """Write `offset` as the base offset into batch `number` of the log."""
    data = disk.read(LOG, 0, 1 << 20)
    positions = [position for position, _ in scan(data)]
    disk.append(LOG, positions[number], [offset.to_bytes(8, "big")])


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("wrong", [0, 1, 100, 1 << 62])
def test_a_batch_with_a_damaged_base_offset_is_corrupt_and_not_skipped(
    count: int, wrong: int
) -> None:
    for number in range(1, COUNT):
        made = steps(count)
        set_base_offset(made.disk, number, wrong if wrong != number * count else wrong + 1)
        for offset in range(number * count, number * count + count):
            with pytest.raises(Corrupt, match=LOG):
                made.read(offset, 1)
        for sound in range(COUNT):
            if sound not in (number, number - 1, number + 1):
                assert made.read(sound * count, 1).first_offset == sound * count


@pytest.mark.parametrize("bit", range(64))
def test_an_index_entry_that_contradicts_the_log_is_not_used(bit: int) -> None:
    made = steps()
    at = 3 * 8 + bit // 8
    value = made.disk.read(INDEX, at, 1)[0] ^ (1 << bit % 8)
    made.disk.append(INDEX, at, [bytes([value])])
    for offset in range(COUNT):
        assert made.read(offset, 1).first_offset == offset


def test_an_index_entry_of_an_append_with_several_batches_is_used() -> None:
    """Kafka before 4.0 wrote the last offset of the append, with the position of its first batch."""
    made = steps()
    entry = made.disk.read(INDEX, 2 * 8, 8)
    made.disk.append(INDEX, 2 * 8, [(int.from_bytes(entry[:4], "big") + 2).to_bytes(4, "big")])
    made.disk.truncate(INDEX, 3 * 8)
    made.log.segments[0].index_size = 3 * 8
    for offset in range(COUNT):
        found = made.read(offset, 1)
        assert found.first_offset == offset
        assert parse_header(found.buffers[0]).base_offset == offset


class InFile:
    """A `FileRange` over bytes."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def peek(self, start: int, size: int) -> bytes:
        return self.data[start : start + size]

    def part(self, start: int, end: int) -> "InFile":
        return InFile(self.data[start:end])

    def read(self, start: int = 0) -> bytes:
        return self.data[start:]

    def send_behind(self, head: Buffer, to: int) -> int:
        raise AssertionError("a read sends nothing")


def outcome(made: Steps, span: tuple[int, int, int], *, in_file: bool) -> tuple[object, ...]:
    """What a read finds: the batches and their offsets, or what is wrong."""
    offset, max_bytes, end_offset = span
    try:
        found = made.log.read(offset, max_bytes, end_offset=end_offset)
        while isinstance(found, ReadPlan):
            data = made.disk.read(found.path, found.position, found.size)
            stays = in_file and found.may_stay
            found = made.log.finish_read(found, InFile(data) if stays else data)
    except Corrupt as error:
        return (error.place,)
    pieces = [bytes(one) if isinstance(one, memoryview) else one.read() for one in found.pieces]
    return b"".join(pieces), found.first_offset, found.next_offset, found.size


@pytest.mark.parametrize("seed", range(30))
def test_a_read_that_leaves_batches_in_their_file_finds_the_same(seed: int) -> None:
    chance = Random(seed)
    made = Steps(LogConfig(segment_bytes=600_000, index_interval_bytes=0))
    for _ in range(COUNT):
        made.append(batch(chance.randint(1, 3), size=chance.choice((20, 9_000, 50_000, 70_000))))
    made.roll()
    made.perform_all()
    made.log.tail.clear()
    end = made.log.log_end_offset
    if chance.random() < 0.5:
        positions = [position for position, _ in scan(made.disk.read(LOG, 0, 1 << 20))]
        at = chance.choice(positions) + chance.randrange(27)
        made.disk.append(LOG, at, [bytes([chance.randrange(256)])])
    for offset in range(end):
        for max_bytes in (1, 30_000, 200_000, 1 << 20):
            span = offset, max_bytes, chance.choice((end, offset + 1, offset + 3))
            assert outcome(made, span, in_file=True) == outcome(made, span, in_file=False)
