"""One byte of any file is flipped after a clean stop: the node names the file, or serves all acknowledged records. It
moves or deletes no intact file.

Method: one node of every kind of file is stopped, and started again on a copy of its disk for each flipped byte. Few
places of each file here; `FLIPS=all` takes every byte of every file, with a mask of chance.
"""

import os
from collections.abc import Iterator
from random import Random

import pytest
from tests.sim.flips import SERVED, Stopped, mask_of
from tests.sim.loop import run

FLIPS = os.environ.get("FLIPS", "3")
TIMEOUT_S = 3600 if FLIPS == "all" else 600
TIMES_FROM_AN_INDEX = ("plain-0/00000000000000000000.timeindex", (24, 25, 26, 27, 28, 29))


@pytest.fixture(scope="module")
def stopped() -> Stopped:
    return run(Stopped.make())


def chosen(stopped: Stopped, chance: Random) -> Iterator[tuple[str, list[int]]]:
    """Places in each file: the first byte, the last, some between."""
    for path in stopped.files():
        size = stopped.disk.size(path)
        if FLIPS == "all" or size <= int(FLIPS):
            yield path, list(range(size))
        else:
            between = chance.sample(range(1, size - 1), int(FLIPS) - 2)
            yield path, [0, size - 1, *between]


@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("seed", range(2))
def test_a_flipped_byte_is_named_or_harms_nothing(stopped: Stopped, seed: int) -> None:
    chance = Random(seed)
    for path, places in chosen(stopped, chance):
        for at in places:
            run(stopped.flip(path, at, mask_of(chance)))


def test_retention_does_not_delete_by_a_damaged_index(stopped: Stopped) -> None:
    """The largest timestamp of a closed segment is the end of its time index, which has no checksum."""
    path, places = TIMES_FROM_AN_INDEX
    for at in places:
        for mask in (1, 255):
            assert run(stopped.flip(path, at, mask)) == SERVED
