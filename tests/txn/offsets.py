"""The offsets that transactions have staged, as their producers know them, and what a reader may see of them.

In: stagings, ends, deletions of the topic, and answers of OffsetFetch that require stable offsets. Out: nothing, or
`Broken`.

- An offset is seen only if its producer has asked for the commit.
- One whose commit was acknowledged is seen, or a newer one, until its time is over.
- An offset of a topic that was deleted after the staging is not seen.
"""

from typing import Final

from tests.txn.broken import Broken

RETENTION_S: Final = 60
_FORGOTTEN_S: Final = 3
"""A deletion is answered before the groups have forgotten the topic, and a start serves before that, too."""


class Staged:
    """An offset in a transaction. Times are the loop's; `ended_s` is None until the broker has acknowledged it."""

    def __init__(self, place: tuple[str, str], began_s: float) -> None:
        self.place = place
        """Group and topic."""
        self.began_s = began_s
        self.ended_s: float | None = None
        self.may_commit = False
        """The producer has asked for the commit."""
        self.committed_s: float | None = None
        """When the commit was acknowledged."""


class Offsets:
    """All offsets of one run; the offset's number is its index."""

    def __init__(self) -> None:
        self.all: list[Staged] = []
        self.deleted_s = (-1.0, -1.0)
        """When the last deletion of `gone` was asked for, and acknowledged."""
        self.started_s = 0.0
        """When the process started."""

    def stage(self, place: tuple[str, str], now_s: float) -> int:
        """Note that a producer stages an offset; return the offset."""
        self.all.append(Staged(place, now_s))
        return len(self.all) - 1

    def look(self, place: tuple[str, str], offset: int, asked_s: float, now_s: float) -> None:
        """Check a stable offset of a reader; -1: none."""
        acknowledged = [
            one
            for one in self.all
            if one.place == place and one.committed_s is not None and one.committed_s < asked_s
        ]
        if offset < 0:
            kept = [one for one in acknowledged if now_s - one.began_s < RETENTION_S]
            if kept and place[1] != "gone":
                raise Broken(f"{place}: an offset of {kept[-1].began_s:.1f} s is lost")
            return
        found = self.all[offset]
        if found.place != place:
            raise Broken(f"{place}: has the offset of {found.place}")
        if not found.may_commit:
            raise Broken(f"{place}: offset {offset} is seen, and not committed")
        if found.ended_s is None:
            return
        newer = [one for one in acknowledged if found.ended_s < one.began_s]
        if newer and place[1] != "gone":
            raise Broken(f"{place}: offset {offset} is seen, and a newer one is committed")
        forgotten_s = max(self.deleted_s[1], self.started_s) + _FORGOTTEN_S
        is_old = place[1] == "gone" and found.ended_s < self.deleted_s[0]
        if is_old and asked_s > forgotten_s:
            raise Broken(f"{place}: offset {offset} outlives its topic")
