"""A log directory of the operating system: what its open descriptors show."""

import os
import resource
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread

import pytest

from stratalog.adapters import local_disk
from stratalog.adapters.local_disk import LocalDisk


def test_a_file_that_was_replaced_or_deleted_is_opened_again(tmp_path: Path) -> None:
    disk = LocalDisk(str(tmp_path))
    assert disk.lock()
    for data in (b"one", b"two"):
        disk.write_file("a", data)
        assert bytes(disk.read("a", 0, 3)) == data
    many = {"a": b"six"} | {f"b{number}": b"" for number in range(300)}
    disk.make_durable(many, [], [])
    assert bytes(disk.read("a", 0, 3)) == b"six"
    disk.unlink("a")
    (tmp_path / "a").write_bytes(b"ten")
    assert bytes(disk.read("a", 0, 3)) == b"ten"
    disk.close()


@contextmanager
def no_free_descriptor() -> Iterator[list[int]]:
    """Take all descriptors below a low limit; yield those taken, for a test to close one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (128, hard))
        with suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        yield taken
    finally:
        for one in taken:
            os.close(one)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_file_that_is_not_in_use_gives_its_descriptor_to_another_one(tmp_path: Path) -> None:
    disk = LocalDisk(str(tmp_path))
    disk.append("first", 0, [b"one"])
    with no_free_descriptor():
        disk.append("second", 0, [b"two"])
        disk.write_file("third", b"six")
    assert bytes(disk.read("second", 0, 3)) == b"two"
    assert bytes(disk.read("first", 0, 3)) == b"one"
    disk.close()


def test_a_file_waits_while_no_descriptor_is_free(tmp_path: Path) -> None:
    disk = LocalDisk(str(tmp_path))
    done: list[str] = []

    def use() -> None:
        disk.append("a", 0, [b"one"])
        disk.write_file("b", b"two")
        disk.make_durable({f"c{number}": b"" for number in range(300)}, [], [])
        done.extend(one.name for one in disk.list(""))

    with no_free_descriptor() as taken:
        thread = Thread(target=use)
        thread.start()
        thread.join(0.1)
        os.close(taken.pop())
        os.close(taken.pop())
        thread.join(60)
    assert len(done) == 302
    disk.close()


def modes(place: Path) -> dict[str, int]:
    found = [place, *place.rglob("*")]
    return {str(one.relative_to(place)): stat.S_IMODE(one.stat().st_mode) for one in found}


def test_files_and_directories_are_their_users_alone(tmp_path: Path) -> None:
    place = tmp_path / "log"
    before = os.umask(0)
    try:
        disk = LocalDisk(str(place))
        assert disk.lock()
        disk.make_directory("__cluster_metadata-0")
        disk.append("__cluster_metadata-0/0.log", 0, [b"x"])
        disk.write_file("bootstrap.checkpoint", b"x")
        many = {f"__cluster_metadata-0/{number}": b"x" for number in range(300)}
        disk.make_durable(many, [], [])
        disk.close()
    finally:
        os.umask(before)
    found = modes(place)
    assert {found.pop("."), found.pop("__cluster_metadata-0")} == {0o700}
    assert set(found.values()) == {0o600}


def test_files_with_keys_of_another_program_are_closed_to_others_at_the_lock(
    tmp_path: Path,
) -> None:
    """As Apache Kafka writes them."""
    tmp_path.chmod(0o755)
    (tmp_path / "__cluster_metadata-0").mkdir(mode=0o755)
    (tmp_path / "bootstrap.checkpoint").write_text("x")
    (tmp_path / "meta.properties").write_text("x")
    others = stat.S_IMODE((tmp_path / "meta.properties").stat().st_mode)
    disk = LocalDisk(str(tmp_path))
    assert disk.lock()
    disk.close()
    assert modes(tmp_path) == {
        ".": 0o755,
        "__cluster_metadata-0": 0o700,
        "bootstrap.checkpoint": 0o600,
        "meta.properties": others,
        ".lock": 0o600,
    }


@pytest.mark.parametrize(
    "use",
    [
        lambda disk: disk.read("0", 0, 1),
        lambda disk: disk.append("0", 0, [b"x"]),
        lambda disk: disk.try_append("0", 0, [b"x"]),
        lambda disk: disk.try_read("0", 0, 1),
    ],
    ids=["read", "append", "try_append", "try_read"],
)
def test_the_least_recently_used_file_is_closed_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, use: Callable[[LocalDisk], object]
) -> None:
    """A file is open while an append to it needs no thread."""
    monkeypatch.setattr(local_disk, "_OPEN_FILES_MAX", 4)
    disk = LocalDisk(str(tmp_path))
    for number in range(4):
        disk.append(str(number), 0, [b"x"])
    for number in range(4, 9):
        use(disk)
        disk.append(str(number), 0, [b"x"])
        assert not disk.try_append(str(number - 3), 0, [b"x"])
    assert disk.try_append("0", 0, [b"x"])
    disk.close()
