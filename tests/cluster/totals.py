"""`python -m tests.cluster.totals FILE --seeds 5000 --workers 2`: a campaign of runs, and what they prove together.

In: a file that has one line of JSON for each run that is done. Out: runs of the seeds that it lacks, each noted at
once, so that a campaign goes on after an interruption; then the totals beside the aims, and each run that broke. A run
counts only if it had elections, truncations, changes of ISRs, archived records and restarts.
"""

import argparse
import gc
import json
import logging
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import structlog
from tests.cluster.__main__ import described, outcome
from tests.cluster.schedule import KINDS, LATE_ARCHIVER

AIMS = {
    "seeds that count": 5_000,
    "messages": 10_000_000,
    "acknowledged records": 1_000_000,
    "faults": 100_000,
}
COUNTS_WITH = ("elections", "truncations", "ISR changes", "archived", "restarts")
ACKNOWLEDGED = ("acknowledged", "acknowledged once")
RUNS_A_PROCESS = 100
COLLECT_SELDOM = 100_000, 20, 100
"""Objects between two garbage collections, which took a quarter of a run's time."""
WHOLE_LOGS = 16
"""One of so many runs has no bucket and compares whole logs, byte for byte; without a bucket a run does not count."""


class Done(NamedTuple):
    """One run. `error` is empty unless the run broke."""

    seed: int
    counts: dict[str, int]
    error: str

    def counts_as_run(self) -> bool:
        return all(self.counts.get(one) for one in COUNTS_WITH)


def is_tiered(seed: int) -> bool:
    return seed % WHOLE_LOGS < WHOLE_LOGS - 1


def carry_out(seed: int) -> Done:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    found = outcome(seed, tiered=is_tiered(seed))
    if isinstance(found, Counter):
        return Done(seed, dict(found), "")
    return Done(seed, {}, described(found))


def collect_seldom() -> None:
    gc.freeze()
    gc.set_threshold(*COLLECT_SELDOM)


def read(path: Path) -> Iterator[Done]:
    for line in path.read_text().splitlines() if path.exists() else ():
        yield Done(**json.loads(line))


def run_missing(path: Path, seeds: Iterable[int], workers: int) -> None:
    """Run what the file lacks."""
    done = {one.seed for one in read(path)}
    missing = [seed for seed in seeds if seed not in done]
    # Not ProcessPoolExecutor: with max_tasks_per_child it stands still in Python 3.11 (CPython issue 115634).
    with (
        path.open("a") as file,
        get_context("spawn").Pool(workers, collect_seldom, (), RUNS_A_PROCESS) as pool,
    ):
        for one in pool.imap_unordered(carry_out, missing):
            print(json.dumps(one._asdict()), file=file, flush=True)


def totals(done: Iterable[Done]) -> Counter[str]:
    """Return what the runs that count had together, and how many broke or did not count."""
    found: Counter[str] = Counter()
    for one in done:
        found["seeds"] += 1
        found["seeds that broke"] += bool(one.error)
        if not one.counts_as_run():
            continue
        found["seeds that count"] += 1
        found["messages"] += one.counts["messages"]
        found["acknowledged records"] += sum(one.counts.get(kind, 0) for kind in ACKNOWLEDGED)
        found["faults of nodes and networks"] += sum(
            one.counts.get(kind, 0) for kind in (*KINDS, LATE_ARCHIVER)
        )
        found["faults of the bucket"] += one.counts.get("bucket faults", 0)
    found["faults"] = found["faults of nodes and networks"] + found["faults of the bucket"]
    return found


def show(done: list[Done]) -> Any:
    found = totals(done)
    for kind, number in found.items():
        aim = f" of {AIMS[kind]:,}" if kind in AIMS else ""
        print(f"{kind:32} {number:>12,}{aim}")
    for one in done:
        if one.error:
            print(f"seed {one.seed}{' --tiered' if is_tiered(one.seed) else ''}: {one.error}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.totals", description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--seeds", type=int, default=0, help="0: only print the totals")
    parser.add_argument("--from", type=int, default=0, dest="first")
    parser.add_argument("--workers", type=int, default=1)
    chosen = parser.parse_args()
    if chosen.seeds:
        seeds = range(chosen.first, chosen.first + chosen.seeds)
        run_missing(chosen.file, seeds, chosen.workers)
    found = show(list(read(chosen.file)))
    return 1 if found["seeds that broke"] else 0


if __name__ == "__main__":
    sys.exit(main())
