"""A hundred thousand hostile frames: no failure, no leftover, and other clients are served.

`python -m tests.fuzz --frames 10000000` is the long run; this one always uses the same seed.
"""

import pytest
from tests.fuzz.__main__ import rounds
from tests.fuzz.attack import FRAMES_PER_ROUND
from tests.fuzz.codec import play

from stratalog.broker.apis import APIS

SEED = 4
FRAMES = 100_000
PARTS = 4
ROUNDS = FRAMES // FRAMES_PER_ROUND // PARTS


@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", range(PARTS))
def test_hostile_frames_of_every_api_and_version_break_nothing(part):
    apis = rounds(SEED, part * ROUNDS, ROUNDS)
    assert apis.total() == FRAMES // PARTS
    assert set(apis) == set(APIS), "an API got no frame"


def test_damaged_messages_of_every_api_and_version_are_refused_or_read():
    """`python -m tests.fuzz.codec --frames 10000000` is the long run."""
    for number in range(5):
        play(SEED, number)
