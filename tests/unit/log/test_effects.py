"""Effects that are performed together have the same result as one by one."""

from pathlib import Path
from random import Random

import pytest
from tests.log_steps import DIRECTORY, Steps, batch
from tests.sim.disk import SimDisk

from stratalog.adapters.local_disk import LocalDisk
from stratalog.config import LogConfig
from stratalog.log.effects import (
    Append,
    MakeDirectory,
    MakeDurable,
    Sync,
    SyncDirectory,
    Together,
    WriteFile,
    perform,
)

MANY = 300


def test_effects_become_durable_once_at_the_end() -> None:
    one = [MakeDirectory("a"), Append("a/x", 0, (b"x",)), Sync("a/x"), SyncDirectory("a")]
    other = [WriteFile("b", b"old"), Append("c", 0, (b"c",)), WriteFile("b", b"new"), Sync("c")]
    together = Together()
    together.add(one)
    together.add([*other, SyncDirectory("a"), SyncDirectory("")])
    assert together.all() == [
        MakeDirectory("a"),
        Append("a/x", 0, (b"x",)),
        Append("c", 0, (b"c",)),
        MakeDurable({"b": b"new"}, ("a/x", "c"), ("a", "")),
    ]


@pytest.mark.parametrize("count", [3, MANY], ids=["few", "many"])
def test_files_synced_together_are_whole_and_leave_nothing_beside_them(
    tmp_path: Path, count: int
) -> None:
    disk = LocalDisk(str(tmp_path))
    assert disk.lock()
    names = [f"d-{number}/f" for number in range(count)]
    for name in names:
        disk.make_directory(name.split("/", maxsplit=1)[0])
        disk.append(name, 0, [b"longer than what comes"])
    disk.make_durable({name: name.encode() for name in names}, (), [""])
    # Read through the disk too: it must not use an open handle of the replaced file.
    assert all(disk.read(name, 0, 100) == name.encode() for name in names)
    assert all((tmp_path / name).read_bytes() == name.encode() for name in names)
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} == {"f", ".lock"}
    disk.close()


def test_many_files_are_synced_with_as_few_waits_as_a_few_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = LocalDisk(str(tmp_path))
    assert disk.lock()
    asked: list[str] = []
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(f"os.{name}", lambda _fd, name=name: asked.append(name))
    names = [f"f-{number}" for number in range(MANY)]
    for name in names:
        disk.append(name, 0, [b"x"])
    disk.make_durable({"whole": b"x"}, names, [""])
    assert len(asked) < MANY
    disk.close()


def test_an_empty_log_writes_nothing_when_it_stops() -> None:
    steps = Steps(LogConfig())
    steps.log.assign_epoch(3)
    assert steps.log.close() == ()
    again = Steps(LogConfig(), disk=SimDisk())
    again.append(batch())
    assert any(isinstance(effect, Sync) for effect in again.log.close())


def test_a_simulated_disk_keeps_all_files_that_were_synced_together() -> None:
    disk = SimDisk()
    perform(disk, MakeDirectory(DIRECTORY))
    perform(disk, Append(f"{DIRECTORY}/x", 0, (b"x",)))
    perform(disk, MakeDurable({"whole": b"y"}, (f"{DIRECTORY}/x",), (DIRECTORY, "")))
    disk.crash(Random(0))
    assert disk.read(f"{DIRECTORY}/x", 0, 9) + disk.read("whole", 0, 9) == b"xy"
