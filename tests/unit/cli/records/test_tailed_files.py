"""Files under rotation: every line comes once, in order, whatever rotates them and wherever the reader was killed.

Method: a writer and a rotation are steps that Hypothesis chooses; the reader ends at any step, and another one goes on
from the entries that were kept. What it read must be what was written.
"""

import bz2
import gzip
import lzma
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO

import cramjam
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stratalog.cli.records import tailed_files
from stratalog.cli.records.tailed_files import Entry, FileKey, TailedFiles

LINE_BYTES_MAX = 1 << 16


class Reader:
    """A reader that keeps its entries over restarts, and its lines."""

    def __init__(self, *patterns: str, from_end: bool = False) -> None:
        self.patterns = patterns
        self.from_end = from_end
        self.entries: dict[FileKey, Entry] = {}
        self.lines: list[bytes] = []
        self.notes: list[str] = []
        self.now_s = self.looked_s = 0.0
        self.files = self._files()

    def _files(self) -> TailedFiles:
        return TailedFiles(
            self.patterns,
            dict(self.entries),
            self.from_end,
            line_bytes_max=LINE_BYTES_MAX,
            looked_s=self.looked_s,
        )

    def restart(self) -> None:
        """Begin again as a new process does, from what was kept."""
        self.files.close()
        self.looked_s = self.files.looked_s
        self.entries = {key: Entry(**asdict(one)) for key, one in self.files.entries.items()}
        self.from_end = False
        self.files = self._files()

    def read(self, *, seconds: float = 1.0, bytes_max: int = 1 << 20) -> None:
        self.now_s += seconds
        self.files.look(self.now_s, time.time())
        moved = True
        while moved:
            moved = False
            for chunk in self.files.chunks(bytes_max):
                if chunk.data:
                    self.lines += chunk.data.removesuffix(b"\n").split(b"\n")
                self.files.keep(chunk)
                moved = True
        self.notes += self.files.notes
        self.files.notes.clear()


Readers = Callable[..., Reader]


@pytest.fixture
def reading() -> Iterator[Readers]:
    """Return a function that begins a reader; all are closed at the end."""
    made: list[Reader] = []

    def begin(*patterns: str, from_end: bool = False) -> Reader:
        made.append(Reader(*patterns, from_end=from_end))
        return made[-1]

    yield begin
    for one in made:
        one.files.close()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "app.log"


def append(log: Path, *lines: str) -> None:
    with log.open("a") as file:
        file.writelines(f"{line}\n" for line in lines)


def test_a_growing_file_gives_whole_lines(log: Path, reading: Readers) -> None:
    reader = reading(str(log))
    reader.read()  # it does not exist yet
    append(log, "one", "two")
    reader.read()
    with log.open("a") as file:
        file.write("par")
    reader.read()
    assert reader.lines == [b"one", b"two"]
    append(log, "tial")
    reader.restart()
    reader.read()
    assert reader.lines == [b"one", b"two", b"partial"]


def test_a_renamed_file_is_read_to_its_end_and_its_successor_from_its_begin(
    log: Path, reading: Readers
) -> None:
    reader = reading(str(log))
    append(log, "1", "2")
    reader.read()
    log.rename(log.with_name("app.log.1"))
    append(log.with_name("app.log.1"), "3")  # its writer has it open still
    append(log, "4")
    reader.read()
    with log.with_name("app.log.1").open("a") as file:
        file.write("5 without an end")
    reader.read(seconds=1)
    assert b"5 without an end" not in reader.lines
    reader.read(seconds=6)
    assert sorted(reader.lines) == [b"1", b"2", b"3", b"4", b"5 without an end"]


@pytest.mark.parametrize("packed", [False, True])
def test_a_file_that_was_rotated_while_nothing_ran_is_found(
    log: Path, reading: Readers, packed: bool
) -> None:
    reader = reading(str(log))
    append(log, "1", "2")
    reader.read()
    append(log, "3")
    rotated = log.with_name("app.log.1")
    log.rename(rotated)
    if packed:
        with gzip.open(log.with_name("app.log.1.gz"), "wb") as out:
            out.write(rotated.read_bytes())
        rotated.unlink()
    append(log, "4")
    reader.restart()
    reader.read()
    reader.read(seconds=10)
    assert sorted(reader.lines) == [b"1", b"2", b"3", b"4"]
    assert not reader.notes
    reader.restart()
    reader.read()
    assert len(reader.lines) == 4, "what was done stays done"


@pytest.mark.parametrize("restarts", [False, True])
def test_files_that_come_and_go_between_two_looks_are_read_in_order(
    log: Path, reading: Readers, restarts: bool
) -> None:
    old = log.with_name("app.log.0")
    append(old, "of another time")
    os.utime(old, (1, 1))
    reader = reading(str(log))
    append(log, "0")
    reader.read()
    if restarts:
        reader.restart()
    for number in range(1, 6):
        log.rename(log.with_name(f"app.log.{number}"))
        append(log, str(number))
        os.utime(log, (time.time() + number, time.time() + number))
    append(log.with_name("app.log.swp"), "not ours")
    reader.read()
    assert reader.lines == [b"0", b"1", b"2", b"3", b"4", b"5"]


@pytest.mark.parametrize("pattern", ["app.log", "app.log*"])
@pytest.mark.parametrize("restarts", [False, True])
def test_a_copied_and_truncated_file_is_read_once(
    log: Path, reading: Readers, pattern: str, restarts: bool
) -> None:
    reader = reading(str(log.with_name(pattern)))
    append(log, *(f"line {n}" for n in range(300)))
    reader.read()
    append(log, "last")
    shutil.copy(log, log.with_name("app.log.1"))
    if not restarts:
        reader.read()  # sees the copy beside its original
    os.truncate(log, 0)
    append(log, "new")
    if restarts:
        reader.restart()
    reader.read()
    reader.read(seconds=10)
    expected = [b"line %d" % n for n in range(300)] + [b"last", b"new"]
    assert sorted(reader.lines) == sorted(expected)
    assert not reader.notes


def test_a_truncated_file_without_a_copy_is_a_warning(log: Path, reading: Readers) -> None:
    reader = reading(str(log))
    append(log, "a" * 50)
    reader.read()
    log.write_text("b\n")
    reader.read()
    assert reader.lines == [b"a" * 50, b"b"]
    assert "has no copy of it: lines behind byte 51" in reader.notes[0]
    assert reader.notes[0].endswith("it is read from its beginning")


def test_a_file_that_shrinks_in_its_middle_is_read_again_with_a_warning(
    log: Path, reading: Readers
) -> None:
    reader = reading(str(log))
    append(log, "a" * 50, "b" * 50)
    reader.read()
    os.truncate(log, 60)
    reader.read()
    append(log, "")
    reader.read()
    assert reader.lines == [b"a" * 50, b"b" * 50, b"a" * 50, b"b" * 9]
    assert len(reader.notes) == 1
    assert "lines behind byte 102" in reader.notes[0]


UNREADABLE = "/proc/self/mem"
"""A regular file whose first page cannot be read."""


def test_a_file_that_cannot_be_read_holds_up_no_other(log: Path, reading: Readers) -> None:
    append(log, "one")
    reader = reading(UNREADABLE, str(log))
    reader.read()
    append(log, "two")
    reader.read()
    assert reader.lines == [b"one", b"two"]
    assert reader.notes == [f"{UNREADABLE} cannot be read: Input/output error; it is tried again"]
    reader.files.until_end = True
    with pytest.raises(OSError, match=f"{UNREADABLE} cannot be read: Input/output error"):
        reader.read()


@pytest.mark.parametrize("from_end", [False, True])
def test_a_damaged_gzip_file_holds_up_no_other(
    log: Path, reading: Readers, *, from_end: bool
) -> None:
    packed = bytearray(gzip.compress(os.urandom(5_000)))
    packed[20:2_000] = bytes(1_980)
    log.with_name("app.log.1.gz").write_bytes(packed)
    log.touch()
    reader = reading(str(log) + "*", from_end=from_end)
    reader.read()
    append(log, "two")
    reader.read()
    assert reader.lines == [b"two"]
    reader.files.until_end = True
    with pytest.raises(OSError, match=r"app\.log\.1\.gz cannot be read: "):
        reader.read()


def test_a_path_that_names_no_file_is_a_note(log: Path, reading: Readers) -> None:
    reader = reading(str(log.parent), str(log))
    reader.read()
    append(log, "one")
    reader.read()
    assert reader.lines == [b"one"]
    later = "names no regular file yet; it is looked for every second"
    assert reader.notes == [f"{log.parent} {later}", f"{log} {later}"]


def test_a_reused_inode_is_another_file(log: Path, reading: Readers) -> None:
    reader = reading(str(log))
    append(log, "old")
    reader.read()
    reader.restart()
    log.write_text("x1\nx2\n")  # the same inode, other bytes
    reader.read()
    assert reader.lines == [b"old", b"x1", b"x2"]


def test_two_files_that_begin_alike_are_two_files(log: Path, reading: Readers) -> None:
    banner = "#" * 2000
    append(log, banner, "one")
    append(log.with_name("app2.log"), banner, "two")
    reader = reading(str(log.with_name("*.log")))
    reader.read()
    assert [line for line in reader.lines if line != banner.encode()] == [b"one", b"two"]


def test_existing_files_may_be_left_out_and_later_ones_not(log: Path, reading: Readers) -> None:
    append(log, "before")
    with log.open("a") as file:
        file.write("half")
    reader = reading(str(log.with_name("*.log")), from_end=True)
    reader.read()
    append(log, " line")
    append(log.with_name("later.log"), "later")
    reader.read()
    assert sorted(reader.lines) == [b"half line", b"later"]


def test_a_line_that_is_too_long_goes_in_parts(log: Path, reading: Readers) -> None:
    reader = reading(str(log))
    append(log, "x" * (LINE_BYTES_MAX * 2 + 5), "y")
    reader.read(bytes_max=LINE_BYTES_MAX)
    assert b"".join(reader.lines) == b"x" * (LINE_BYTES_MAX * 2 + 5) + b"y"


def test_an_idle_file_is_closed_and_read_on_when_it_grows(log: Path, reading: Readers) -> None:
    reader = reading(str(log))
    append(log, "1")
    reader.read()
    reader.read()
    reader.read(seconds=100)
    assert not reader.files._open
    append(log, "2")
    reader.read()
    assert reader.lines == [b"1", b"2"]


def test_an_inode_that_an_idle_file_left_is_another_file_of_its_size(
    log: Path, reading: Readers
) -> None:
    reader = reading(str(log))
    append(log, "1")
    reader.read()
    reader.read()
    reader.read(seconds=100)
    assert not reader.files._open
    inode = log.stat().st_ino
    log.write_text("2\n")  # as if it were removed, and its inode used again
    assert log.stat().st_ino == inode
    reader.read()
    assert reader.lines == [b"1", b"2"]


def test_a_new_log_that_begins_as_the_rotated_one_did_is_read(log: Path, reading: Readers) -> None:
    reader = reading(str(log))
    for run in range(3):
        if run:
            for number in range(run - 1, 0, -1):
                log.with_name(f"app.log.{number}").rename(log.with_name(f"app.log.{number + 1}"))
            log.rename(log.with_name("app.log.1"))
        append(log, "job starts", "job done")
        reader.restart()
        reader.read()
    assert reader.lines == [b"job starts", b"job done"] * 3


@pytest.mark.parametrize("known", [True, False])
def test_two_files_of_the_same_content_are_two_files(
    log: Path, reading: Readers, known: bool
) -> None:
    reader = reading(str(log.with_name("*.log")))
    append(log, "same")
    if known:
        reader.read()
    append(log.with_name("app-1.log"), "same")
    append(log.with_name("other.log"), "same")
    reader.read()
    reader.read(seconds=61)  # one of these names a rotation may give: a truncation could follow
    assert reader.lines == [b"same"] * 3


def test_a_file_that_was_rotated_beside_the_target_of_a_link_is_found(
    tmp_path: Path, reading: Readers
) -> None:
    (tmp_path / "pods").mkdir()
    (tmp_path / "links").mkdir()
    log = tmp_path / "pods" / "0.log"
    (tmp_path / "links" / "app.log").symlink_to(log)
    reader = reading(str(tmp_path / "links" / "*.log"))
    append(log, "1", "2")
    reader.read()
    append(log, "3", "4")
    log.rename(tmp_path / "pods" / "0.log.20260101-101010")
    append(log, "5")
    reader.restart()
    reader.read()
    assert reader.lines == [b"1", b"2", b"3", b"4", b"5"]
    assert not reader.notes


def test_a_hole_that_a_truncation_left_is_skipped_and_counted(log: Path, reading: Readers) -> None:
    reader = reading(str(log))
    with log.open("wb", buffering=0) as writer:
        for number in range(300):
            writer.write(b"line %06d of a writer that does not append\n" % number)
        reader.read()
        log.with_name("app.log.1").write_bytes(log.read_bytes())
        os.truncate(log, 0)
        writer.write(b"first\nsecond\n")
        reader.read()
        reader.read(seconds=10)
    assert reader.lines[300:] == [b"first", b"second"]
    assert reader.notes == [
        f"{log} has a hole of 13500 NUL bytes before byte 13500, which is skipped"
    ]


def test_a_hole_ends_a_line_and_room_at_the_end_of_a_file_is_none(
    log: Path, reading: Readers
) -> None:
    log.write_bytes(b"one\ncut" + bytes(3000) + b"two\n" + bytes(3000))
    reader = reading(str(log))
    reader.read()
    assert reader.lines == [b"one", b"cut", b"two"]
    with log.open("r+b") as file:
        file.seek(3011)
        file.write(b"three\n")
    reader.read()
    assert reader.lines == [b"one", b"cut", b"two", b"three"]
    assert len(reader.notes) == 1


PACKERS = {
    "gz": gzip.compress,
    "xz": lzma.compress,
    "bz2": bz2.compress,
    "zst": lambda data: bytes(cramjam.zstd.compress(data)),
}


@pytest.mark.parametrize("packer", PACKERS)
def test_a_packed_file_goes_on_where_the_file_was_left(
    log: Path, reading: Readers, packer: str
) -> None:
    reader = reading(str(log) + "*")
    append(log, *(f"line {number}" for number in range(500)))
    reader.read()
    append(log, "last")
    packed = PACKERS[packer](log.read_bytes())
    log.unlink()
    append(log, "new")
    log.with_name(f"app.log-20260101.{packer}").write_bytes(packed)
    reader.restart()
    reader.read()
    reader.read(seconds=10)
    assert reader.lines[500:] == [b"last", b"new"]
    assert not reader.notes


def test_a_file_that_another_program_packed_is_left_alone_with_a_line(
    log: Path, reading: Readers
) -> None:
    append(log, "1")
    packed = log.with_name("app.log.1.lz4")
    packed.write_bytes(b"\x04\x22\x4d\x18 and so on\n")
    reader = reading(str(log) + "*")
    reader.read()
    reader.read()
    assert reader.lines == [b"1"]
    assert reader.notes == [
        f"{packed} is left alone: it is packed in a format that is not read here"
    ]


def test_more_files_than_may_be_open_are_read(tmp_path: Path, reading: Readers) -> None:
    for number in range(40):
        append(tmp_path / f"{number:02}.log", str(number))
    reader = reading(str(tmp_path / "*.log"))
    reader.files.open_max = 5
    reader.read()
    assert len(reader.files._open) <= 5
    for number in range(40):
        append(tmp_path / f"{number:02}.log", "more")
    reader.read()
    assert sorted(reader.lines) == sorted([b"%d" % number for number in range(40)] + [b"more"] * 40)


def test_a_device_may_have_another_number_after_a_boot(log: Path, reading: Readers) -> None:
    reader = reading(str(log))
    append(log, "1")
    reader.read()
    append(log, "2")
    reader.restart()
    (entry,) = reader.files.entries.values()
    other = replace(entry, device=entry.device + 1)
    reader.entries = {other.key: other}
    reader.files.close()
    reader.files = reader._files()
    reader.read()
    assert reader.lines == [b"1", b"2"]


STEPS = st.sampled_from(["write", "write", "part", "read", "rename", "pack", "restart"])


@settings(max_examples=150)
@example(  # an inode that is used again, by a file that is rotated away between two looks
    ["rename", "pack", *["part"] * 5, "rename", "write", "rename"], False
)
@example(["part", "rename", "pack", *["part"] * 5, "rename", "part"], False)  # of the same size
@example(  # an empty file's inode is used again, by a copy that was packed while nothing ran
    ["rename", "write", "pack", "rename", "restart", "pack"], False
)
@example(["write", "rename", "write", "pack", "rename", "restart", "pack"], True)
@given(st.lists(STEPS, max_size=25), st.booleans())
def test_every_line_comes_once_in_order_through_renames_and_restarts(
    steps: list[str], wide: bool
) -> None:
    with TemporaryDirectory(prefix="strata-tail-test-") as name:
        log = Path(name) / "app.log"
        log.touch()
        reader = Reader(str(Path(name) / ("app.log*" if wide else "app.log")))
        try:
            reader.read()
            written = rotated = 0
            for step in steps:
                match step:
                    case "write":
                        append(log, *(f"{n:06}" for n in range(written, written + 3)))
                        written += 3
                    case "part":
                        with log.open("a") as file:
                            file.write(f"{written:06}\n"[:4])
                        reader.read()
                        with log.open("a") as file:
                            file.write(f"{written:06}\n"[4:])
                        written += 1
                    case "read":
                        reader.read()
                    case "rename":
                        rotated += 1
                        log.rename(Path(f"{log}.{rotated}"))
                        log.touch()
                    case "pack" if rotated and Path(f"{log}.{rotated}").exists():
                        plain = Path(f"{log}.{rotated}")
                        with gzip.open(f"{plain}.gz", "wb") as out:
                            out.write(plain.read_bytes())
                        plain.unlink()
                        reader.read(seconds=0.5)
                    case "restart":
                        reader.restart()
            for _ in range(4):
                reader.read(seconds=6)
            assert sorted(reader.lines) == [b"%06d" % n for n in range(written)]
            assert not reader.notes
        finally:
            reader.files.close()


@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize("has_next", [False, True])
def test_a_file_that_is_renamed_between_its_stat_and_its_opening_is_read(
    reading: Readers,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_known: bool,
    has_next: bool,
) -> None:
    """Found by fifty kills: the new file was read as the old one, whose lines were lost."""
    log, rotated = tmp_path / "app.log", tmp_path / "app.log.1"
    log.write_text("")
    reader = reading(str(log))
    if is_known:
        reader.read()
        reader.restart()
    log.write_text("old 1\nold 2\n")
    opened = tailed_files.opened

    def late(path: str, key: FileKey) -> BinaryIO | None:
        if path == str(log) and not rotated.exists():
            log.rename(rotated)
            if has_next:
                log.write_text("new 1\n")
        return opened(path, key)

    monkeypatch.setattr(tailed_files, "opened", late)
    reader.read()
    reader.read()
    if not has_next:
        log.write_text("new 1\n")
    reader.read()
    assert sorted(reader.lines) == [b"new 1", b"old 1", b"old 2"]
    reader.restart()
    reader.read()
    assert len(reader.lines) == 3
    assert reader.notes == []
