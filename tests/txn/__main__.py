"""`python -m tests.txn --seeds 500`: runs of transactional producers; `--bugs`: how soon each planted bug is found.

In: how many seeds, from which one. Out: counts of what happened; for each run that breaks a property, its seed.
"""

import argparse
import logging
import sys
from collections import Counter

import structlog
from tests.txn.broken import Broken
from tests.txn.bugs import BUGS, planted
from tests.txn.run import check_counts, run_seed


def runs(first: int, count: int) -> int:
    counts: Counter[str] = Counter()
    broken = 0
    for seed in range(first, first + count):
        try:
            counts += run_seed(seed)
        except Exception as error:  # noqa: BLE001 - the seed is reported
            broken += 1
            print(f"seed {seed}: {type(error).__name__}: {error}", flush=True)
    if count > 1:
        check_counts(counts)
    print(
        f"{count} seeds, {broken} broke; {', '.join(f'{k} {n}' for k, n in sorted(counts.items()))}"
    )
    return 1 if broken else 0


def found_after(name: str, first: int, count: int) -> tuple[int, str] | None:
    """Return after how many seeds a planted bug broke a property, and which; None where it never did."""
    with planted(name):
        for number, seed in enumerate(range(first, first + count), 1):
            try:
                run_seed(seed)
            except Broken as broken:  # another error is an accident, and ends the command
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
        print(f"{name:32} {line}", flush=True)
    print(f"{len(BUGS) - missed} of {len(BUGS)} planted bugs were found")
    return 1 if missed else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.txn", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--from", type=int, default=0, dest="first")
    parser.add_argument("--bugs", action="store_true", help="plant each bug in turn")
    chosen = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    return (bugs if chosen.bugs else runs)(chosen.first, chosen.seeds)


if __name__ == "__main__":
    sys.exit(main())
