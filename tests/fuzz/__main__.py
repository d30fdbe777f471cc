"""`python -m tests.fuzz --frames 10000000`: play hostile frames, round by round.

In: the number of frames, a seed, the first round. Out: progress, and at the first fault the command that
repeats it. After every round it checks the memory: leftovers of a round show as growth.
"""

import argparse
import os
import sys
import time
from collections import Counter
from pathlib import Path
from random import SystemRandom

from tests.fuzz.attack import FRAMES_PER_ROUND, Broken, play

from stratalog.broker.apis import APIS

WARM_ROUNDS = 5
GROWTH_BYTES_MAX = 128 << 20
PROGRESS_S = 10.0


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def rounds(seed: int, first: int, count: int) -> Counter[int]:
    """Play `count` rounds; return the frames of each API. Raise Broken at a fault, or if memory has grown."""
    apis: Counter[int] = Counter()
    warm = 0
    printed_s = start = time.monotonic()
    for number in range(first, first + count):
        found = play(seed, number)
        apis += found.apis
        held = resident_bytes()
        if number - first < WARM_ROUNDS:
            warm = held
        if held > warm + GROWTH_BYTES_MAX:
            raise Broken(f"seed {seed}, round {number}: {held >> 20} MiB after {warm >> 20} MiB")
        if time.monotonic() - printed_s > PROGRESS_S:
            printed_s = time.monotonic()
            frames = apis.total()
            print(
                f"{frames} frames, {frames / (printed_s - start):.0f}/s, round {number} done, "
                f"{held >> 20} MiB",
                flush=True,
            )
    return apis


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--frames", type=int, default=1_000_000, help="at least so many")
    parser.add_argument("--seed", type=int, default=None, help="by default a new one")
    parser.add_argument("--from-round", type=int, default=0, help="go on from there")
    chosen = parser.parse_args()
    seed = SystemRandom().randrange(1 << 32) if chosen.seed is None else chosen.seed
    count = -(-chosen.frames // FRAMES_PER_ROUND)
    print(f"seed {seed}: rounds {chosen.from_round} to {chosen.from_round + count - 1}", flush=True)
    try:
        apis = rounds(seed, chosen.from_round, count)
    except Broken as broken:
        print(f"\n{broken}\n\nagain: python -m tests.fuzz --seed S --from-round N --frames 1")
        return 1
    print(f"{apis.total()} frames, nothing broke; by API:")
    print(", ".join(f"{APIS[key].name} {times}" for key, times in sorted(apis.items())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
