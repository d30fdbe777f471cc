"""Stores by URL: all kinds keep one contract; a directory survives a power loss and concurrent processes."""

import errno
import fcntl
import os
from pathlib import Path

import pytest
from tests.store_contract import comes_back_whole_and_in_ranges, exactly_one_wins, paths

from stratalog.adapters import directory_store
from stratalog.adapters.directory_store import DirectoryStore
from stratalog.adapters.object_store import open_store
from stratalog.errors import Unavailable, UserError
from stratalog.ports import AlreadyExists


@pytest.fixture(params=["file", "memory"])
def store(request, tmp_path):
    if request.param == "file":
        return open_store(f"{tmp_path.as_uri()}/a%20bucket")
    return open_store(f"memory://{tmp_path.name}")


def test_objects_come_back_whole_and_in_ranges(store):
    comes_back_whole_and_in_ranges(store)


def test_a_missing_object_is_named(store):
    store.put("a/b", [b""])
    for missing in ("x", "a", "a/b/c", "a/c"):
        for ask in (store.get, store.size, lambda path: store.get_range(path, 0, 1)):
            with pytest.raises(FileNotFoundError, match=missing):
                ask(missing)


def test_put_if_absent_keeps_an_existing_object(store):
    store.put_if_absent("m/1", b"first")
    with pytest.raises(AlreadyExists, match="m/1"):
        store.put_if_absent("m/1", b"second")
    assert store.get("m/1") == b"first"
    store.delete(["m/1", "m/2"])
    store.put_if_absent("m/1", b"third")
    assert paths(store) == ["m/1"]


def test_list_returns_the_objects_below_a_prefix(store):
    for path in ("a/b/1", "a/b/2", "a/bc/1", "a/c", "b"):
        store.put(path, [path.encode()])
    assert paths(store) == ["a/b/1", "a/b/2", "a/bc/1", "a/c", "b"]
    assert paths(store, "a/b") == ["a/b/1", "a/b/2", "a/bc/1"]
    assert paths(store, "a/b/") == ["a/b/1", "a/b/2"]
    assert paths(store, "a/b/1") == ["a/b/1"]
    assert paths(store, "a/c/") == paths(store, "none/") == []
    (info,) = store.list("a/c")
    assert info.size == 3
    assert info.modified_ms > 1_600_000_000_000


def test_a_put_whose_source_fails_leaves_nothing(store):
    def source():
        yield b"half"
        raise OSError("the drive of the log directory")

    with pytest.raises(OSError, match="log directory"):
        store.put("a/b", source())
    assert paths(store) == []


def test_nothing_but_objects_is_left_in_the_directory(tmp_path):
    store = DirectoryStore(str(tmp_path / "bucket"))

    def broken():
        yield b"1"
        raise KeyError("source")

    store.put("d/one", [b"1"])
    store.put_if_absent("d/two", b"2")
    with pytest.raises(AlreadyExists):
        store.put_if_absent("d/two", b"3")
    with pytest.raises(KeyError):
        store.put("d/one", broken())
    assert sorted(f.name for f in (tmp_path / "bucket/d").iterdir()) == ["one", "two"]
    assert list((tmp_path / "bucket/.~incoming").iterdir()) == []


MANY = bytes(range(256)) * 56_001  # 3.5 pieces; the end is not on a page boundary


def many_chunks():
    sizes = (1, 2_800_000, 4096, 6_000_000, len(MANY))
    at = 0
    for size in sizes:
        yield memoryview(MANY)[at : at + size]
        at += size


def test_a_large_object_is_written_completely_past_the_page_cache(tmp_path, monkeypatch):
    writes = seen_writes(monkeypatch, lambda _direct, size: size)
    store = DirectoryStore(str(tmp_path))
    store.put("a/large", many_chunks())
    assert store.get("a/large") == MANY
    pages, rest = len(MANY) % (4 << 20) // 4096 * 4096, len(MANY) % 4096
    direct = writes[0][0]  # not every file system supports direct writes
    assert writes == [(direct, 4 << 20)] * 3 + [(direct, pages), (False, rest)]


def test_a_file_system_that_takes_direct_writes_and_then_refuses_them_is_written_through_the_cache(
    tmp_path, monkeypatch
):
    def refuse(direct, size):
        if direct:
            raise OSError(errno.EINVAL, "Invalid argument")
        return size

    writes = seen_writes(monkeypatch, refuse)
    store = DirectoryStore(str(tmp_path))
    store.put("a/large", many_chunks())
    assert store.get("a/large") == MANY
    assert not any(direct for direct, _ in writes[1:]), (
        "the system was asked for direct writes more than once"
    )


def test_a_short_direct_write_is_continued(tmp_path, monkeypatch):
    writes = seen_writes(monkeypatch, lambda _direct, size: min(size, 1_200_001))
    store = DirectoryStore(str(tmp_path))
    store.put("a/large", many_chunks())
    assert store.get("a/large") == MANY
    assert len(writes) > len(MANY) // 1_200_001


@pytest.mark.parametrize("which", range(5))
def test_a_drive_that_is_full_fails_the_put_and_keeps_nothing(tmp_path, monkeypatch, which):
    """The drive is full at the first piece, at one in the middle (the next is being filled), or at the last."""

    def full_at(_direct, size):
        if len(writes) == which + 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return size

    writes = seen_writes(monkeypatch, full_at)
    store = DirectoryStore(str(tmp_path))
    with pytest.raises(Unavailable, match=r"a/large .*No space left on device"):
        store.put("a/large", many_chunks())
    assert paths(store) == []
    assert list((tmp_path / ".~incoming").iterdir()) == []
    assert len(writes) == which + 1, "a write followed the failed one"


def seen_writes(monkeypatch, taken):
    """Return (direct, size) of each write to a file; `taken` decides how many bytes the system writes."""
    writes = []
    write = os.write

    def recorded(fd, data):
        direct = bool(fcntl.fcntl(fd, fcntl.F_GETFL) & getattr(os, "O_DIRECT", 0))
        writes.append((direct, len(data)))
        return write(fd, data[: taken(direct, len(data))])

    monkeypatch.setattr(directory_store.os, "write", recorded)
    return writes


def test_leftovers_of_a_crash_are_not_listed_and_go_after_a_day(tmp_path):
    store = DirectoryStore(str(tmp_path))
    store.put("one", [b"1"])
    young, old = tmp_path / ".~incoming/young", tmp_path / ".~incoming/old"
    young.write_bytes(b"half")
    old.write_bytes(b"half")
    long_ago = young.stat().st_mtime - 25 * 60 * 60
    os.utime(old, (long_ago, long_ago))
    assert paths(store) == paths(store, "") == ["one"]
    DirectoryStore(str(tmp_path)).put("two", [b"2"])
    assert young.exists()
    assert not old.exists()


def test_a_put_syncs_the_file_and_its_directories_before_it_returns(tmp_path, monkeypatch):
    """Goal: a put survives a power loss. Method: the order of the system calls."""
    trace = []
    sync_folder, sync, replace, link = (
        directory_store._sync_folder,
        os.fsync,
        os.replace,
        os.link,
    )

    def traced(name, call):
        def wrapped(*arguments):
            trace.append((name, *(Path(a).name for a in arguments[-1:] if isinstance(a, str))))
            return call(*arguments)

        return wrapped

    monkeypatch.setattr(directory_store, "_sync_folder", traced("folder", sync_folder))
    monkeypatch.setattr(directory_store, "_FULL_SYNC", None)
    monkeypatch.setattr(os, "fsync", traced("sync", sync))
    monkeypatch.setattr(os, "replace", traced("rename", replace))
    monkeypatch.setattr(os, "link", traced("link", link))
    store = DirectoryStore(str(tmp_path / "bucket"))
    store.put("x/y/one", [b"1"])
    names = [step for step in trace if step[0] != "sync"]
    made_durable = names[: names.index(("rename", "one"))]
    assert {("folder", "x"), ("folder", "bucket"), ("folder", tmp_path.name)} <= set(made_durable)
    after = trace[trace.index(("rename", "one")) - 1 :]
    assert after == [("sync",), ("rename", "one"), ("folder", "y"), ("sync",)]

    trace.clear()
    store.put_if_absent("x/y/two", b"2")
    assert trace == [("sync",), ("link", "two"), ("folder", "y"), ("sync",)]
    trace.clear()
    with pytest.raises(AlreadyExists):
        store.put_if_absent("x/y/two", b"3")
    assert trace[-2:] == [("folder", "y"), ("sync",)]  # the winner's name is durable too


def test_a_directory_that_cannot_be_written_is_unavailable(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    store = DirectoryStore(str(tmp_path / "file/below"))
    with pytest.raises(Unavailable, match="Not a directory"):
        store.put("a", [b""])


def test_a_bucket_that_is_removed_under_a_broker_is_unavailable(tmp_path):
    store = DirectoryStore(str(tmp_path / "bucket"))
    store.put("a", [b""])
    (tmp_path / "bucket").rename(tmp_path / "elsewhere")
    with pytest.raises(Unavailable):
        store.put("a", [b""])
    with pytest.raises(Unavailable):
        store.put_if_absent("b", b"")


def test_exactly_one_of_many_processes_puts_an_absent_object(tmp_path):
    exactly_one_wins((tmp_path / "bucket").as_uri(), processes=5, rounds=25, timeout_s=60)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "bucket",
        "/a/path",
        "file://",
        "file:///",
        "file://host/path",
        "ftp://host/x",
        "s3://",
        "S4://b",
    ],
)
def test_a_wrong_bucket_url_is_one_line(url):
    with pytest.raises(UserError) as error:
        open_store(url)
    assert "\n" not in str(error.value)


def test_one_memory_url_is_one_store():
    open_store("memory://shared").put("a", [b"1"])
    assert open_store("memory://shared").get("a") == b"1"
    assert paths(open_store("memory://other")) == []
