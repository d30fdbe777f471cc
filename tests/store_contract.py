"""The requirements of every object store, tested with each kind: in memory, a directory, a real server.

In: an opened store, or the URL of one. Out: nothing, or the assertion that failed. Never starts a server.
"""

import multiprocessing

from stratalog.adapters.object_store import open_store
from stratalog.ports import AlreadyExists

JOIN_TIMEOUT_S = 30


def paths(store, prefix=""):
    """All names below a prefix, in order."""
    return sorted(info.path for info in store.list(prefix))


def comes_back_whole_and_in_ranges(store):
    """Objects are read as they were put, also past their end, and the last put counts."""
    store.put("a/b/c", [b"0123", bytearray(b"45"), memoryview(b"6789"), b""])
    assert store.get("a/b/c") == b"0123456789"
    assert store.size("a/b/c") == 10
    assert store.get_range("a/b/c", 3, 4) == b"3456"
    assert store.get_range("a/b/c", 8, 100) == b"89"
    assert store.get_range("a/b/c", 100, 1) == b""
    assert list(store.get_ranges("a/b/c", 1, [3, 0, 4])) == [b"123", b"", b"4567"]
    assert list(store.get_ranges("a/b/c", 6, [2, 4, 1])) == [b"67", b"89", b""]
    assert list(store.get_ranges("a/b/c", 100, [1, 2])) == [b"", b""]
    store.put("a/b/c", [b"new"])
    assert store.get("a/b/c") == b"new"


def exactly_one_wins(url, processes, rounds, timeout_s):
    """Processes that put the same absent objects: each object has one winner, whole, and is the winner's."""
    context = multiprocessing.get_context("spawn")
    start = context.Barrier(processes)
    results = context.Queue()
    children = [
        context.Process(target=_race, args=(url, start, number, rounds, results))
        for number in range(processes)
    ]
    for child in children:
        child.start()
    reports = [results.get(timeout=timeout_s) for _ in children]
    for child in children:
        child.join(JOIN_TIMEOUT_S)
        assert child.exitcode == 0
    winners = [one for _, won in reports for one in won]
    assert sorted(winners) == list(range(rounds))
    store = open_store(url)
    for number, won in reports:
        for one in won:
            assert store.get(_contested(one)).split()[0] == b"%d" % number


def _contested(one):
    return f"fresh/{one}/manifest"


def _race(url, start, number, rounds, results):
    store = open_store(url)
    won = []
    start.wait(60)
    for one in range(rounds):
        try:
            store.put_if_absent(_contested(one), b"%d " % number * 5000)
            won.append(one)
        except AlreadyExists:
            # The loser must find the winner's whole object at once.
            words = store.get(_contested(one)).split()
            assert len(set(words)) == 1
            assert len(words) == 5000
    results.put((number, won))
