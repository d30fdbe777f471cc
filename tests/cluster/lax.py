"""Runs on disks that lose any of a directory's unsynced changes, as a file system without an ordered journal may.

In: as `run.py`. Out: as `run.py`. Each fault of the seed is a loss of power, but for the late archiver's story.
"""

from tests.cluster.compacted_run import CompactedRun
from tests.cluster.run import Run
from tests.cluster.schedule import LATE_ARCHIVER, Fault

_APART = 3
"""Faults are so many times as far apart, because a second loss of power waits until all replicas are in sync."""
_LONGEST_S = 2.0


class LaxRun(Run):
    """See the module."""

    disks_keep_order = False

    @classmethod
    def faults_of(cls, seed: int, *, tiered: bool = False) -> list[Fault]:
        return [_lax(one) for one in super().faults_of(seed, tiered=tiered)]


class LaxCompactedRun(LaxRun, CompactedRun):
    """A run with a compacted topic too."""


def _lax(fault: Fault) -> Fault:
    kind = fault.kind if fault.kind == LATE_ARCHIVER else "loss of power"
    return fault._replace(
        at_s=fault.at_s * _APART, kind=kind, lasts_s=min(fault.lasts_s, _LONGEST_S)
    )
