"""Random logs under rotation, and `strata tail` on them: each line once, in order by log.

In: a seed. Out: counts of what happened; `Broken` where a line was lost, came twice or out of order. Real files in a
directory of their own, and the reader of `strata tail` without its cluster: a round is committed as its transaction is,
and a kill takes all of the rest.

Not generated, as it cannot be known (`docs/tail.md`): a line between a copy and the truncation; a file that is deleted
or truncated without a copy before its first line of its own was sent; a log whose new bytes repeat the old ones at the
same places; a log that was truncated, and then removed or packed, before the reader came back.
"""

import bz2
import gzip
import lzma
import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Final

import cramjam

from stratalog.cli.records.tailed_files import Entry, FileKey, TailedFiles

BANNER: Final = "=== the service starts, as it does each time ==="
PACKERS: Final[dict[str, Callable[[bytes], bytes]]] = {
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
    ".zst": lambda data: bytes(cramjam.zstd.compress(data)),
}
LINE_BYTES_MAX: Final = 1 << 16
COARSE_CLOCK: Final = 5
"""Linux's CLOCK_REALTIME_COARSE, from which files get their times."""


class Broken(AssertionError):
    """A line was lost, came twice or out of order."""


@dataclass(slots=True)
class Line:
    """A line that was written. `is_optional`: its file went before the reader could be expected to send it."""

    text: str
    is_optional: bool = False


@dataclass(slots=True)
class Rotated:
    """A rotated file. `is_kept`: its log was truncated before, so it is not packed or deleted."""

    path: Path
    lines: list[Line]
    is_kept: bool = False


@dataclass(slots=True)
class Log:
    """A log with its writer, its rotated files and all lines that were written."""

    place: Path
    pattern: str
    appends: bool
    shifts: bool
    """Whether rotated files are numbered anew at each rotation, the youngest with 1; else they keep a number."""
    has_banner: bool
    written: list[Line] = field(default_factory=list)
    here: list[Line] = field(default_factory=list)
    """The lines in the log itself."""
    rotated: list[Rotated] = field(default_factory=list)
    """The rotated files, the youngest last."""
    old: Rotated | None = None
    """The rotated file that the writer still has open."""
    descriptor: int = -1
    at: int = 0
    number: int = 0
    is_truncated: bool = False
    is_ordered: bool = True
    """Whether each packed file has the time of the file that it packs, as packers keep it: the order is by that."""
    begun: bool = False
    """Whether the last line lacks its end."""

    def open(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | (os.O_APPEND if self.appends else 0)
        self.close()
        self.descriptor, self.at, self.here, self.old = os.open(self.place, flags), 0, [], None
        self.is_truncated = False
        self.begun = False  # the last line of the old file stays without an end
        if self.has_banner:
            self.line(BANNER)

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def bytes(self, data: bytes) -> None:
        if self.appends:
            os.write(self.descriptor, data)
        else:
            self.at += os.pwrite(self.descriptor, data, self.at)

    def line(self, text: str) -> None:
        self.end_line()
        self.bytes(f"{text}\n".encode())
        self._note(text)

    def begin_line(self, text: str) -> None:
        self.end_line()
        self.bytes(text.encode())
        self._note(text)
        self.begun = True

    def end_line(self) -> None:
        if self.begun:
            self.bytes(b"\n")
            self.begun = False

    def _note(self, text: str) -> None:
        line = Line(text)
        self.written.append(line)
        (self.here if self.old is None else self.old.lines).append(line)

    def next_name(self) -> Path:
        """Return the name of the next rotated file, and make room for it."""
        self.number += 1
        if not self.shifts:
            return Path(f"{self.place}.{self.number}")
        for one in self.rotated:
            ending = one.path.name.removeprefix(self.place.name + ".")
            number, dot, packer = ending.partition(".")
            moved = Path(f"{self.place}.{int(number) + 1}{dot}{packer}")
            one.path.rename(moved)
            one.path = moved
        return Path(f"{self.place}.1")


class Reader:
    """The reader of `strata tail`, and what its cluster has."""

    def __init__(self, patterns: tuple[str, ...], *, until_end: bool) -> None:
        self.patterns = patterns
        self.until_end = until_end
        self.sent: list[tuple[str, str]] = []
        self.entries: dict[FileKey, Entry] = {}
        self.looked_s = 0.0
        self.now_s = 0.0
        self.notes: list[str] = []
        self._begin()

    def _begin(self) -> None:
        entries = {key: Entry(**asdict(one)) for key, one in self.entries.items()}
        self.fresh: list[tuple[str, str]] = []
        self.files = TailedFiles(
            self.patterns,
            entries,
            from_end=False,
            line_bytes_max=LINE_BYTES_MAX,
            looked_s=self.looked_s,
            until_end=self.until_end,
            open_max=3,
        )

    def kill(self) -> None:
        self.files.close()
        self._begin()

    def look(self, seconds: float) -> None:
        self.now_s += seconds
        self.files.look(self.now_s, time.time())

    def read(self, chunks_max: int, bytes_max: int) -> None:
        """Take chunks until there are none, or so many."""
        taken, moved = 0, True
        while moved and taken < chunks_max:
            moved = False
            for chunk in self.files.chunks(bytes_max):
                data = chunk.data.decode()
                origin = chunk.before.origin
                self.fresh += [
                    (origin, line) for line in data.removesuffix("\n").split("\n") if data
                ]
                self.files.keep(chunk)
                taken, moved = taken + 1, True
                if taken >= chunks_max:
                    break
        self.notes += self.files.notes
        self.files.notes.clear()

    def commit(self, *, is_noted: bool) -> None:
        """Commit a round, if it has lines; without `is_noted` a kill came before the state knew of it."""
        if self.fresh:
            self.sent += self.fresh
            self.fresh = []
            self.entries = dict(self.files.entries)
            if is_noted or not self.looked_s:
                self.looked_s = self.files.looked_s


class World:
    """Logs in a directory, and a reader of them."""

    def __init__(self, seed: int, place: Path) -> None:
        self.chance = chance = Random(seed)
        self.counts: Counter[str] = Counter()
        self.place = place
        self.until_end = chance.random() < 0.15
        self.bytes_max = chance.choice((1024, 1 << 20))
        self.logs: list[Log] = []
        self.line_number = 0
        (place / "logs").mkdir()
        (place / "links").mkdir()
        for name in ("app.log", "other.log")[: chance.choice((1, 1, 2))]:
            self._make(name)
        if chance.random() < 0.2:  # another log with the same lines
            self.twin: Log | None = self._make("twin.log")
        else:
            self.twin = None
        self.write()
        self.reader = Reader(tuple(one.pattern for one in self.logs), until_end=self.until_end)
        self.read_all(1.0)

    def _make(self, name: str) -> Log:
        chance = self.chance
        real = self.place / "logs" / name
        kind = chance.choice(("plain", "wide", "linked"))
        pattern = str(real)
        if kind == "wide":
            pattern += "*"
        elif kind == "linked":
            link = self.place / "links" / name
            link.symlink_to(real)
            pattern = str(link)
        log = Log(
            real, pattern, chance.random() < 0.7, chance.random() < 0.5, chance.random() < 0.4
        )
        log.open()
        self.logs.append(log)
        return log

    def close(self) -> None:
        self.reader.files.close()
        for log in self.logs:
            log.close()

    # -- the writers

    def write(self) -> None:
        for _ in range(self.chance.randint(1, 4)):
            self.line_number += 1
            text = f"{self.line_number:06} " + "x" * self.chance.choice((3, 30, 900))
            log = self.chance.choice(self.logs)
            for one in (log, self.twin) if self.twin is not None else (log,):
                one.line(text)
        for log in self.logs:
            if not log.written or log.written[-1].text == BANNER:
                self.line_number += 1
                log.line(f"{self.line_number:06}")

    def begin_line(self) -> None:
        if not self.until_end:
            self.line_number += 1
            self.chance.choice(self.logs).begin_line(f"{self.line_number:06} in two writes")

    def rename(self) -> None:
        """Rotate by a rename; the writer opens the new log at once, or a little later."""
        log = self.chance.choice(self.logs)
        if log.old is not None:
            log.open()
            return
        path = log.next_name()
        log.place.rename(path)
        log.old = Rotated(path, log.here, log.is_truncated)
        log.rotated.append(log.old)
        tick()
        if self.chance.random() < 0.6:
            log.end_line()
            log.open()

    def reopen(self) -> None:
        for log in self.logs:
            if log.old is not None:
                log.end_line()
                log.open()
                tick()

    def copy(self) -> None:
        """Rotate by copy and truncation; the reader may look in between."""
        log = self.chance.choice(self.logs)
        if log.old is not None or not log.here:
            return
        log.end_line()
        tick()
        path = log.next_name()
        with log.place.open("rb") as source, path.open("wb") as target:
            data = source.read()
            half = self.chance.randint(0, len(data))
            target.write(data[:half])
            target.flush()
            self._maybe_look()
            target.write(data[half:])
        self._maybe_look()
        os.truncate(log.place, 0)
        log.rotated.append(Rotated(path, log.here))
        log.here, log.is_truncated = [], True
        tick()
        self.line_number += 1
        log.line(f"{self.line_number:06} after the truncation")

    def truncate(self) -> None:
        log = self.chance.choice(self.logs)
        if log.old is None and self._is_known(log.here):
            log.end_line()
            self._give_up(log.here)
            os.truncate(log.place, 0)
            log.here, log.at, log.is_truncated = [], 0, True
            self.line_number += 1
            log.line(f"{self.line_number:06} after a truncation without a copy")

    def pack(self) -> None:
        """Pack a rotated file that no writer has open; the reader may look while that goes on."""
        found = [
            (log, one)
            for log in self.logs
            for one in log.rotated
            if one.path.suffix not in PACKERS and one is not log.old and not one.is_kept
        ]
        if not found:
            return
        log, rotated = self.chance.choice(found)
        path = rotated.path
        suffix = self.chance.choice(list(PACKERS))
        packed = Path(f"{path}{suffix}")
        times = path.stat().st_mtime_ns
        data = PACKERS[suffix](path.read_bytes())
        half = self.chance.randint(0, len(data))
        with packed.open("wb") as target:
            target.write(data[:half])
            target.flush()
            self._maybe_look()
            target.write(data[half:])
        if self.chance.random() < 0.8:
            os.utime(packed, ns=(times, times))
        else:
            log.is_ordered = False
        self._maybe_look()
        path.unlink()
        rotated.path = packed
        tick()

    def delete(self) -> None:
        log = self.chance.choice(self.logs)
        first = log.rotated[0] if log.rotated else None
        if first is None or first is log.old or first.is_kept or not self._is_known(first.lines):
            return
        log.rotated.pop(0)
        self._give_up(first.lines)
        first.path.unlink()

    def _is_known(self, lines: list[Line]) -> bool:
        sent = {text for _, text in self.reader.sent}
        return any(one.text in sent for one in lines if one.text != BANNER)

    def _give_up(self, lines: list[Line]) -> None:
        sent = Counter(text for _, text in self.reader.sent)
        for line in lines:
            if not sent[line.text] or line.text == BANNER or self.twin is not None:
                line.is_optional = True

    # -- the reader

    def _maybe_look(self) -> None:
        if not self.until_end and self.chance.random() < 0.4:
            self.counts["looks in the middle"] += 1
            self.round()

    def round(self) -> None:
        reader = self.reader
        if self.until_end:
            reader.kill()
            reader.look(1.0)
            reader.read(1 << 30, self.bytes_max)
            reader.commit(is_noted=True)
            return
        if self.chance.random() < 0.8 or self._is_unread_and_truncated():
            reader.look(self.chance.choice((0.5, 1.0, 1.0, 6.0)))
        reader.read(self.chance.choice((1, 3, 1 << 30)), self.bytes_max)
        if self.chance.random() < 0.9:
            reader.commit(is_noted=self.chance.random() < 0.9)

    def _is_unread_and_truncated(self) -> bool:
        """Return whether a log was truncated of which nothing was read: it looks like one that grows."""
        unread = {one.inode for one in self.reader.files.entries.values() if not one.position}
        return any(
            log.is_truncated and os.fstat(log.descriptor).st_ino in unread for log in self.logs
        )

    def kill(self) -> None:
        self.reader.kill()

    def wait(self) -> None:
        self.read_all(70.0)

    def read_all(self, seconds: float) -> None:
        self.reader.look(seconds)
        self.reader.read(1 << 30, self.bytes_max)
        self.reader.commit(is_noted=True)

    # -- the check

    def finish(self) -> None:
        self.reopen()
        for log in self.logs:
            log.end_line()
        for seconds in (1.0, 6.0, 6.0, 70.0, 70.0, 6.0, 6.0):
            self.read_all(seconds)

    def check(self) -> None:
        by_origin: dict[str, list[str]] = {}
        for origin, text in self.reader.sent:
            by_origin.setdefault(origin, []).append(text)
        for log in self.logs:
            path = log.pattern.removesuffix("*")
            found = by_origin.pop(path, [])
            counted = Counter(found)
            written = Counter(one.text for one in log.written)
            needed = Counter(one.text for one in log.written if not one.is_optional)
            name = log.place.name
            for text, count in (needed - counted).items():
                raise Broken(f"{name}: lost {count} of {text[:60]!r}")
            for text, count in (counted - written).items():
                raise Broken(f"{name}: {count} more of {text[:60]!r}")
            numbered = [text for text in found if text != BANNER]
            if log.is_ordered and numbered != sorted(numbered):
                raise Broken(f"{name}: out of order: {[one[:6] for one in numbered]}")
            self.counts["lines"] += len(found)
        if by_origin:
            raise Broken(f"lines of files that are no logs: {list(by_origin)}")
        is_all_there = not self.counts["delete"] and not self.counts["truncate"]
        if is_all_there and any(" lost" in one for one in self.reader.notes):
            raise Broken(f"a warning without a reason: {self.reader.notes}")


STEPS: Final = {
    "write": 10,
    "round": 10,
    "begin_line": 2,
    "rename": 4,
    "reopen": 2,
    "copy": 3,
    "truncate": 1,
    "pack": 4,
    "delete": 1,
    "kill": 3,
    "wait": 1,
}


def tick() -> None:
    """Wait until the file system's clock goes on: files of one tick cannot be put in order."""
    began_ns = (
        time.time_ns()
    )  # a file may have the exact time, which the coarse clock reaches later
    while time.clock_gettime_ns(COARSE_CLOCK) <= began_ns:
        time.sleep(0.0005)


def run_seed(seed: int, trace: Callable[[str], None] = lambda _: None) -> Counter[str]:
    """Run one history; return counts of what happened. Raises Broken."""
    with TemporaryDirectory(prefix="strata-tail-model-") as name:
        world = World(seed, Path(name))
        try:
            names = list(STEPS)
            for step in world.chance.choices(
                names, list(STEPS.values()), k=world.chance.randint(3, 40)
            ):
                world.counts[step] += 1
                trace(step)
                getattr(world, step)()
            world.finish()
            world.check()
        finally:
            world.close()
        world.counts["histories"] += 1
        return world.counts
