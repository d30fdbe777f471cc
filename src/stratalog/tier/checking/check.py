"""Check that an object store meets the tier's requirements.

In: several openings of one store, threads, random numbers. Out: findings, one for each property. It writes only below
a prefix of its own, and removes its objects in any case. Passing proves nothing about the store's durability. A store
that fails loses or duplicates history sooner or later, and must not be used.

The requirements (`tier/bucket/commit.py`, `docs/stores.md`): of writers that put one absent object exactly one
succeeds, and all others get the error for an existing object; a put object is read, sized, ranged and listed at once;
ranges are exact; a deleted object is gone.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Final, NamedTuple

from stratalog.errors import Unavailable
from stratalog.ports import AlreadyExists, Buffer, Clock, Entropy, ObjectStore, Worker

__all__ = ["LARGE_BYTES_MAX", "LARGE_BYTES_MIN", "RACERS", "Finding", "check_store"]

_PREFIX: Final = "stratalog-check"
RACERS: Final = 20
_ROUNDS: Final = 10
LARGE_BYTES_MIN: Final = 1024 * 1024
LARGE_BYTES_MAX: Final = 1024 * 1024 * 1024
_SMALL_PUTS: Final = 20
_LISTED: Final = 50
_PIECE: Final = bytes(range(256)) * 4096
_SKEW_MS_MAX: Final = 15 * 60 * 1000
_DELETE_BATCH: Final = 1000


class Finding(NamedTuple):
    """One property: whether the store has it, and the observation."""

    check: str
    passed: bool
    seen: str


class _WrongError(Exception):
    """The store violates a requirement; the text describes its behaviour."""


@dataclass(frozen=True, slots=True)
class _Trial:
    """The inputs of every check. `prefix` ends in a slash."""

    store: ObjectStore
    clock: Clock
    prefix: str
    large_bytes: int

    def path(self, name: str) -> str:
        return self.prefix + name


async def check_store(
    stores: Sequence[ObjectStore],
    worker: Worker,
    clock: Clock,
    entropy: Entropy,
    *,
    large_bytes: int,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> list[Finding]:
    """Check every property in turn, and return the findings; `progress` receives the number done and the total.

    `stores` are openings of one place, one for each racer, at least two; `worker` has as many threads. Raises
    Unavailable where no put succeeds at all: a wrong key or address is no property of a store.
    """
    assert len(stores) > 1, "a race of one"
    trial = _Trial(stores[0], clock, f"{_PREFIX}/{entropy.uuid().hex}/", large_bytes)
    await worker.submit(partial(trial.store.put_if_absent, trial.path("hello"), b"hello"))
    findings = []
    try:
        findings.append(await _race(trial, stores, worker))
        for name, step in _STEPS.items():
            progress(len(findings), len(_STEPS) + 1)
            findings.append(await worker.submit(partial(_tried, name, step, trial)))
    finally:
        await worker.submit(partial(_remove, trial))
    progress(len(findings), len(findings))
    return findings


def _tried(name: str, step: Callable[[_Trial], str], trial: _Trial) -> Finding:
    try:
        return Finding(name, passed=True, seen=step(trial))
    except (_WrongError, Unavailable, FileNotFoundError, AlreadyExists) as error:
        return Finding(name, passed=False, seen=str(error))


async def _race(trial: _Trial, stores: Sequence[ObjectStore], worker: Worker) -> Finding:
    name = "put-if-absent"
    try:
        for number in range(_ROUNDS):
            path = trial.path(f"race/{number}")
            racing = [
                worker.submit(partial(_put_if_absent, store, path, b"writer %d" % racer))
                for racer, store in enumerate(stores)
            ]
            reports = [await outcome for outcome in racing]
            await worker.submit(partial(_judge, trial, path, reports))
    except (_WrongError, Unavailable, FileNotFoundError) as error:
        return Finding(name, passed=False, seen=str(error))
    return Finding(
        name, passed=True, seen=f"{_ROUNDS} races of {len(stores)} writers: one winner each"
    )


def _put_if_absent(store: ObjectStore, path: str, data: bytes) -> bool | None:
    """Return whether the store reported success to this writer; None without an answer."""
    try:
        store.put_if_absent(path, data)
    except AlreadyExists:
        return False
    except Unavailable:
        return None
    return True


def _judge(trial: _Trial, path: str, reports: Sequence[bool | None]) -> None:
    """Raise _WrongError where a race had not exactly one winner, or its object is another's."""
    winners = [racer for racer, won in enumerate(reports) if won]
    if len(winners) > 1:
        raise _WrongError(
            f"{len(winners)} of {len(reports)} writers received success for creating one object"
        )
    if not winners and None not in reports:
        raise _WrongError(f"none of {len(reports)} writers created an object that was not there")
    found = trial.store.get(path)
    # A writer without an answer may have won, which the object shows.
    possible = winners or [racer for racer, won in enumerate(reports) if won is None]
    if found not in {b"writer %d" % racer for racer in possible}:
        raise _WrongError(f"the object of writer {possible[0]} holds {found[:20]!r}")
    if _put_if_absent(trial.store, path, b"late") is not False:
        raise _WrongError("an object that was there was created once more")
    if trial.store.get(path) != found:
        raise _WrongError("an object that was there was replaced")


def _read_after_write(trial: _Trial) -> str:
    path = trial.path("again")
    for version in range(_SMALL_PUTS):
        data = b"version %d" % version
        trial.store.put(path, [data])
        found = trial.store.get(path)
        if found != data:
            raise _WrongError(f"{data!r} was put and {found!r} was read")
        if trial.store.size(path) != len(data):
            raise _WrongError(f"{len(data)} bytes were put, {trial.store.size(path)} are reported")
    with suppress(FileNotFoundError):
        trial.store.get(trial.path("never"))
        raise _WrongError("an object was read that was never put")
    return f"{_SMALL_PUTS} versions of an object, each read at once"


def _list_after_write(trial: _Trial) -> str:
    wanted = {trial.path(f"list/{number:03d}") for number in range(_LISTED)}
    for number, path in enumerate(sorted(wanted), 1):
        trial.store.put(path, [b"x"])
        listed = sum(1 for _ in trial.store.list(trial.path("list/")))
        if listed != number:
            raise _WrongError(f"{number} objects were put and {listed} listed")
    found = {info.path: info for info in trial.store.list(trial.path("list/"))}
    if found.keys() != wanted or any(info.size != 1 for info in found.values()):
        raise _WrongError("the list names other objects than were put")
    if beginning := {info.path for info in trial.store.list(trial.path("list/00"))} ^ {
        path for path in wanted if path.startswith(trial.path("list/00"))
    }:
        raise _WrongError(f"a list by the beginning of a path is off by {len(beginning)}")
    skew_ms = max(info.modified_ms for info in found.values()) - trial.clock.now_ms()
    if abs(skew_ms) > _SKEW_MS_MAX:
        raise _WrongError(f"its clock is {skew_ms / 60_000:.0f} minutes from ours")
    return f"{_LISTED} objects, each listed at once; its clock is {abs(skew_ms) / 1000:.1f} s from ours"


def _ranges(trial: _Trial) -> str:
    path, size = trial.path("ranges"), len(_PIECE)
    trial.store.put(path, [_PIECE])
    spans = ((0, 1), (1, 255), (255, 2), (4095, 4098), (size - 1, 1), (size - 10, 100), (size, 1))
    for start, length in spans:
        if trial.store.get_range(path, start, length) != _PIECE[start : start + length]:
            raise _WrongError(f"{length} bytes from {start} of {size} are not those that were put")
    return f"{len(spans)} ranges of {size} bytes, exact"


def _delete(trial: _Trial) -> str:
    paths = [trial.path(f"delete/{number}") for number in range(10)]
    for path in paths:
        trial.store.put(path, [b"x"])
    trial.store.delete([*paths, trial.path("delete/never")])
    if left := [info.path for info in trial.store.list(trial.path("delete/"))]:
        raise _WrongError(f"{len(left)} of {len(paths)} deleted objects are still listed")
    with suppress(FileNotFoundError):
        trial.store.get(paths[0])
        raise _WrongError("a deleted object is still read")
    trial.store.put_if_absent(paths[0], b"y")
    return f"{len(paths)} objects gone at once, and one created again"


def _throughput(trial: _Trial) -> str:
    path, pieces = trial.path("large"), trial.large_bytes // len(_PIECE)
    size = pieces * len(_PIECE)

    def chunks() -> "list[Buffer]":
        return [_PIECE] * pieces

    began = trial.clock.now_ms()
    trial.store.put(path, chunks())
    put = trial.clock.now_ms()
    found = trial.store.get(path)
    got = trial.clock.now_ms()
    if found != _PIECE * pieces:
        raise _WrongError(f"an object of {size} bytes came back otherwise")
    times = []
    for number in range(_SMALL_PUTS):
        start = trial.clock.now_ms()
        trial.store.put_if_absent(trial.path(f"small/{number}"), b"x" * 1024)
        times.append(trial.clock.now_ms() - start)
    return (
        f"put {_rate(size, put - began)}, get {_rate(size, got - put)} of {size >> 20} MiB; "
        f"put of 1 KiB {median(times):.0f} ms"
    )


def _rate(size: int, elapsed_ms: int) -> str:
    return f"{size / max(elapsed_ms, 1) / 1000:,.0f} MB/s"


_STEPS: Final[dict[str, Callable[[_Trial], str]]] = {
    "read-after-write": _read_after_write,
    "list-after-write": _list_after_write,
    "ranges": _ranges,
    "delete": _delete,
    "throughput": _throughput,
}


def _remove(trial: _Trial) -> None:
    paths = [info.path for info in trial.store.list(trial.prefix)]
    for start in range(0, len(paths), _DELETE_BATCH):
        trial.store.delete(paths[start : start + _DELETE_BATCH])
