"""Bugs of a cleaning, each planted as a patch: the checkers of the simulation find it after some seed.

Method: `test_cleaning.lives` with the seeds in order, and for markers `CompactedTransactions`, until one fails.
`python -m tests.properties.test_cleaning_bugs` prints in how many of the seeds each bug is found.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import seed as seeded
from hypothesis.stateful import run_state_machine_as_test
from tests.planting import Patch, named, planting
from tests.properties.test_compacted_transactions import CompactedTransactions
from tests.sim.loop import run
from tests.sim.test_cleaning import lives

from stratalog.errors import Rejected
from stratalog.log import replacing
from stratalog.log.cleaning import cleaner
from stratalog.log.cleaning.filtering import BatchFilter
from stratalog.log.cleaning.transactions import Transactions
from stratalog.log.effects import Sync, SyncDirectory
from stratalog.wire.records import read_records

SEEDS = range(20)
LIVES = 6


def no_runs() -> Patch:
    """Batch by batch, so that `BatchFilter._sift` gets every one."""
    return BatchFilter, "keep_run", lambda _self, _data, position, *_: (position, False)


def tombstone_dropped_early() -> Iterator[Patch]:
    """Tombstones leave with the first cleaning."""
    real = BatchFilter._sift

    def sift(self: Any, view: Any, header: Any, *, keeps_tombstones: bool) -> Any:
        del keeps_tombstones
        return real(self, view, header, keeps_tombstones=False)

    yield BatchFilter, "_sift", sift
    yield no_runs()


def key_order_lost() -> Iterator[Patch]:
    """Of two batches with records of a key, the first one stays."""

    def sift(self: Any, view: Any, header: Any, **_: bool) -> Any:
        seen = self.__dict__.setdefault("_seen", set())
        keys = {one.key for one in read_records(view)}
        is_first = header.last_offset > self._last_noted or not keys & seen
        seen |= keys
        return view if is_first else None

    yield BatchFilter, "_sift", sift
    yield no_runs()


def marker_dropped() -> Iterator[Patch]:
    """A marker may leave while records of its transaction stay."""
    real = Transactions.may_go

    def may_go(self: Any, view: Any, header: Any) -> bool:
        real(self, view, header)
        return True

    yield Transactions, "may_go", may_go


def swap_not_synced() -> Iterator[Patch]:
    """Another directory is synced between the steps of a swap."""
    yield replacing, "SyncDirectory", lambda _path: SyncDirectory("")


def cleaned_files_not_synced() -> Iterator[Patch]:
    """A cleaned segment is swapped in before its bytes are durable."""
    real = cleaner._Rewriting.finish

    def finish(self: Any, aborted: Any) -> Any:
        for effect in real(self, aborted):
            if not isinstance(effect, Sync):
                yield effect

    yield cleaner._Rewriting, "finish", finish


BUGS = named(
    (
        tombstone_dropped_early,
        key_order_lost,
        marker_dropped,
        swap_not_synced,
        cleaned_files_not_synced,
    )
)


def planted(name: str) -> AbstractContextManager[None]:
    """Plant one bug in the node."""
    return planting(BUGS[name])


def is_found(name: str, seed: int) -> bool:
    """Return whether a run from this seed fails with the bug."""
    with planted(name):
        try:
            if name == "marker dropped":
                transactions(seed)
            else:
                run(lives(seed, LIVES))
        except (AssertionError, Rejected):  # a broken property, or records that are damaged
            return True
    return False


def transactions(seed: int) -> None:
    """One example of the property of cleaned transactions."""
    quick = settings(
        max_examples=10,
        stateful_step_count=40,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(seeded(seed)(CompactedTransactions), settings=quick)


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str) -> None:
    assert any(is_found(name, seed) for seed in SEEDS)


if __name__ == "__main__":
    for name in BUGS:
        found = sum(is_found(name, seed) for seed in SEEDS)
        print(f"{name}: found in {found} of {len(SEEDS)} seeds", flush=True)
