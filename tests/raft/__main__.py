"""`python -m tests.raft --seeds 5000`: runs of the quorum; `--bugs`: how soon each planted bug is found.

In: how many seeds, from which one. Out: counts of what happened; at the first run that breaks a property its trace and
the command that repeats it.
"""

import argparse
import sys
from collections import Counter

from tests.raft.bugs import BUGS, OF_LIES, planted
from tests.raft.checks import Broken
from tests.raft.world import World, check_counts

from stratalog.errors import Corrupt

PROGRESS_SEEDS = 250


def runs(first: int, count: int, *, lies: bool) -> int:
    counts: Counter[str] = Counter()
    for seed in range(first, first + count):
        try:
            counts += World(seed, lies=lies).run()
        except Broken as broken:
            mode = " --lies" if lies else ""
            print(f"{broken}\n\nagain: python -m tests.raft --from {seed} --seeds 1{mode}")
            return 1
        if (seed + 1 - first) % PROGRESS_SEEDS == 0:
            print(f"{seed + 1 - first} seeds, {counts['messages']} messages", flush=True)
    if count > 1:
        check_counts(counts, lies=lies)
    print(
        f"{count} seeds, nothing broke; {', '.join(f'{k} {n}' for k, n in sorted(counts.items()))}"
    )
    return 0


def found_after(name: str, first: int, count: int) -> tuple[int, str] | None:
    """The number of seeds until a planted bug broke a property, and which; None where it never did."""
    with planted(name):
        for number, seed in enumerate(range(first, first + count), 1):
            try:
                World(seed, lies=name in OF_LIES).run()
            except (Broken, Corrupt, AssertionError) as broken:
                return number, str(broken).partition("\n")[0]
    return None


def bugs(first: int, count: int) -> int:
    missed = 0
    for name in BUGS:
        found = found_after(name, first, count)
        missed += found is None
        line = (
            f"not within {count} seeds" if found is None else f"seed {found[0]}: {found[1][:110]}"
        )
        print(f"{name:40} {line}", flush=True)
    print(f"{len(BUGS) - missed} of {len(BUGS)} planted bugs were found")
    return 1 if missed else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.raft", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--from", type=int, default=0, dest="first")
    parser.add_argument("--bugs", action="store_true", help="plant each bug in turn")
    parser.add_argument("--lies", action="store_true", help="with nodes that send damaged answers")
    chosen = parser.parse_args()
    if chosen.bugs:
        return bugs(chosen.first, chosen.seeds)
    return runs(chosen.first, chosen.seeds, lies=chosen.lies)


if __name__ == "__main__":
    sys.exit(main())
