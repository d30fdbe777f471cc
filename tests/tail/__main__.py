"""`python -m tests.tail --seeds 10000`: random histories of logs; `--bugs`: how soon each planted bug is found.

In: how many seeds, from which one. Out: counts of what happened; for each history that breaks a property, its seed.
"""

import argparse
import sys
from collections import Counter

from tests.tail.bugs import BUGS, planted
from tests.tail.model import Broken, run_seed


def runs(first: int, count: int) -> int:
    counts: Counter[str] = Counter()
    broken = 0
    for seed in range(first, first + count):
        try:
            counts += run_seed(seed, print if count == 1 else lambda _: None)
        except Broken as error:
            broken += 1
            print(f"seed {seed}: {error}", flush=True)
    shown = ", ".join(f"{name} {number}" for name, number in sorted(counts.items()))
    print(f"{count} seeds, {broken} broke; {shown}")
    return 1 if broken else 0


def found_after(name: str, first: int, count: int) -> tuple[int, str] | None:
    """Return after how many seeds a planted bug broke a property, and which; None where it never did."""
    with planted(name):
        for number, seed in enumerate(range(first, first + count), 1):
            try:
                run_seed(seed)
            except (Broken, UnicodeDecodeError) as broken:  # packed bytes are no text
                return number, str(broken).partition("\n")[0]
    return None


def bugs(first: int, count: int) -> int:
    missed = 0
    for name in BUGS:
        found = found_after(name, first, count)
        missed += found is None
        line = f"not within {count} seeds" if found is None else f"seed {found[0]}: {found[1][:90]}"
        print(f"{name:42} {line}", flush=True)
    print(f"{len(BUGS) - missed} of {len(BUGS)} planted bugs were found")
    return 1 if missed else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.tail", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--from", type=int, default=0, dest="first")
    parser.add_argument("--bugs", action="store_true", help="plant each bug in turn")
    chosen = parser.parse_args()
    return (bugs if chosen.bugs else runs)(chosen.first, chosen.seeds)


if __name__ == "__main__":
    sys.exit(main())
