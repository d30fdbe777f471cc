"""`python -m tests.cluster --seeds 500`: runs of a cluster under faults; `--bugs`: how soon each planted bug is found.

In: how many seeds, from which one. Out: counts of what happened; for each run that breaks a property its seed, and with
`--shrink` the fewest faults that still break one, and a trace. A planted bug counts as found where a property is broken
(`Broken`): a cluster that only stops, or an accident, is not enough.
"""

import argparse
import logging
import sys
from collections import Counter

import structlog
from tests.cluster.bugs import BUGS, OF_COMPACTION, OF_LIES, OF_THE_TIER, planted
from tests.cluster.checks import Broken
from tests.cluster.compacted_run import CompactedRun
from tests.cluster.lax import LaxCompactedRun, LaxRun
from tests.cluster.lying_run import LyingRun
from tests.cluster.run import Run, check_counts, run_seed
from tests.cluster.schedule import Fault, shorter

MANY = 20
"""So many runs together must have had every kind of event."""
KINDS = {
    (False, False, False): Run,
    (False, True, False): LaxRun,
    (True, False, False): CompactedRun,
    (True, True, False): LaxCompactedRun,
    (False, False, True): LyingRun,
}
"""By whether a run has a compacted topic, whether its disks are lax, and whether nodes lie."""


def outcome(
    seed: int, faults: list[Fault] | None = None, *, tiered: bool = False, kind: type[Run] = Run
) -> Counter[str] | Exception:
    """Return the counts of a run, or its error."""
    try:
        return run_seed(seed, faults, tiered=tiered, kind=kind)
    except Exception as error:  # noqa: BLE001 - the seed is reported
        return error


def runs(first: int, count: int, *, shrink: bool, tiered: bool, kind: type[Run]) -> int:
    counts: Counter[str] = Counter()
    broken = 0
    for seed in range(first, first + count):
        found = outcome(seed, tiered=tiered, kind=kind)
        if isinstance(found, Counter):
            counts += found
            continue
        broken += 1
        if shrink:
            found = shrunk(seed, found, tiered=tiered, kind=kind)
        print(f"seed {seed}: {described(found)}", flush=True)
    print(
        f"{count} seeds, {broken} broke; {', '.join(f'{k} {n}' for k, n in sorted(counts.items()))}"
    )
    if count >= MANY and kind in (Run, CompactedRun):
        check_counts(counts)
    return 1 if broken else 0


def shrunk(seed: int, error: Exception, *, tiered: bool, kind: type[Run]) -> Exception:
    """Return the error of the shortest list of faults that still ends in the same kind of error."""

    def fails(fewer: list[Fault]) -> bool:
        return type(outcome(seed, fewer, tiered=tiered, kind=kind)) is type(error)

    fewest = shorter(kind.faults_of(seed, tiered=tiered), fails)
    found = outcome(seed, fewest, tiered=tiered, kind=kind)
    assert isinstance(found, Exception), "it failed just before"
    return found


def described(error: Exception) -> str:
    return "\n".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())])


def found_after(name: str, first: int, count: int) -> tuple[int, str] | None:
    """Return after how many seeds a planted bug broke a property, and which; None where it never did."""
    with planted(name):
        for number, seed in enumerate(range(first, first + count), 1):
            kind = CompactedRun if name in OF_COMPACTION else Run
            if name in OF_LIES:
                kind = LyingRun
            found = outcome(seed, tiered=name in OF_THE_TIER, kind=kind)
            if isinstance(found, Broken):
                return number, str(found).partition("\n")[0]
    return None


def bugs(first: int, count: int, names: list[str]) -> int:
    missed = 0
    for name in names:
        found = found_after(name, first, count)
        missed += found is None
        line = (
            f"not within {count} seeds" if found is None else f"seed {found[0]}: {found[1][:110]}"
        )
        print(f"{name:32} {line}", flush=True)
    print(f"{len(names) - missed} of {len(names)} planted bugs were found")
    return 1 if missed else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--from", type=int, default=0, dest="first")
    parser.add_argument("--bugs", action="store_true", help="plant each bug in turn")
    parser.add_argument("--bug", choices=BUGS, help="plant this bug")
    parser.add_argument("--tiered", action="store_true", help="with a bucket, which fails too")
    parser.add_argument("--compacted", action="store_true", help="with a compacted topic too")
    parser.add_argument("--lax", action="store_true", help="with disks that keep no order")
    parser.add_argument("--lies", action="store_true", help="with nodes that send damaged answers")
    parser.add_argument("--shrink", action="store_true", help="leave out faults that do not matter")
    chosen = parser.parse_args()
    kind = KINDS.get((chosen.compacted, chosen.lax, chosen.lies))
    if kind is None:
        parser.error("--lies goes with neither --compacted nor --lax")
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    if chosen.bugs or chosen.bug:
        return bugs(chosen.first, chosen.seeds, [chosen.bug] if chosen.bug else list(BUGS))
    return runs(
        chosen.first,
        chosen.seeds,
        shrink=chosen.shrink,
        tiered=chosen.tiered,
        kind=kind,
    )


if __name__ == "__main__":
    sys.exit(main())
