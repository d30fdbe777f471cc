"""Commit a new version of a manifest, with other writers present.

In: a change, as a function of the newest manifest. Out: programs that yield operations on the bucket and receive each
one's result, so that tests can drive every interleaving; `run` drives one against a store. Nothing here waits or
draws an id.

The rules, which `tests/properties/test_tier_commit.py` checks under every interleaving:

- A version is an object put if absent under the next number, so one of several writers gets it. After a lost race or
  a time-out the writer reads the object back: every write has an id of its own.
- A writer that finds a higher leader epoch (or its own epoch from another node) is fenced. A new leader first commits
  a version of its epoch.
- Old versions are pruned in groups of `fan_out`. Before any version of a group is removed, its *boundary object* is
  put, and stays (it is put if absent and never changes). After its put, a writer looks for the boundary object of its
  version's group. A leader that was paused during the pruning would re-create a removed version, and learns of that
  here. Only a write that passes this check is confirmed, and only after a confirmed write may anything be deleted, here
  or on a disk.
- Boundary objects of `fan_out` groups are replaced by one of the next level (put first, removed afterwards; looked
  for in the other order), so that only a few remain, however many versions there were.

Why not one boundary object that is overwritten: a late write of a slow pruner would move it back.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from stratalog.errors import Corrupt, Fenced, Unavailable
from stratalog.ports import AlreadyExists, ObjectStore
from stratalog.tier.formats.envelope import seal
from stratalog.tier.formats.manifest import Manifest, decode, encode
from stratalog.tier.formats.paths import (
    boundary_path,
    manifest_path,
    manifest_prefix,
    manifest_version,
)

__all__ = [
    "Delete",
    "Exists",
    "Get",
    "List",
    "Operation",
    "Program",
    "PutAbsent",
    "Writer",
    "commit",
    "decode_version",
    "is_pruned",
    "load_latest",
    "prune",
    "run",
]

T = TypeVar("T")

FAN_OUT: Final = 64
KEPT_VERSIONS: Final = 16
"""Versions behind the newest that pruning keeps for current readers."""
ATTEMPTS_MAX: Final = 8


@dataclass(frozen=True, slots=True)
class PutAbsent:
    """Put an object if absent. Result: True where this writer created it, False where it existed. After Unavailable,
    either may be true.
    """

    path: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Get:
    """Read an object. Result: its bytes, None for a missing object."""

    path: str


@dataclass(frozen=True, slots=True)
class Exists:
    """Look for an object. Result: whether it exists."""

    path: str


@dataclass(frozen=True, slots=True)
class List:
    """List a prefix. Result: its paths; the newest may be missing."""

    prefix: str


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove objects that exist. Result: None."""

    paths: Sequence[str]


Operation = PutAbsent | Get | Exists | List | Delete
Program = Generator[Operation, Any, T]


@dataclass(frozen=True, slots=True)
class Writer:
    """The writer of a version: its node and leader epoch."""

    node_id: int
    leader_epoch: int


def perform(store: ObjectStore, operation: Operation) -> Any:
    """Carry out one operation. Raises Unavailable."""
    match operation:
        case PutAbsent(path, data):
            try:
                store.put_if_absent(path, data)
            except AlreadyExists:
                return False
            return True
        case Get(path):
            try:
                return store.get(path)
            except FileNotFoundError:
                return None
        case Exists(path):
            try:
                store.size(path)
            except FileNotFoundError:
                return False
            return True
        case List(prefix):
            return [info.path for info in store.list(prefix)]
        case Delete(paths):
            return store.delete(paths)


def run(store: ObjectStore, program: Program[T]) -> T:
    """Drive a program to its end, blocking. An Unavailable is thrown into it at its yield."""
    result: Any = None
    failure: Unavailable | None = None
    while True:
        try:
            operation = program.send(result) if failure is None else program.throw(failure)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        result, failure = None, None
        try:
            result = perform(store, operation)
        except Unavailable as unavailable:
            failure = unavailable


def load_latest(
    prefix: str, hint: Manifest | None = None, *, fan_out: int = FAN_OUT
) -> Program[Manifest | None]:
    """Return the newest version of a partition's manifest; None where there is none.

    With a `hint` (an earlier known version) no list is needed, unless the hint is very old. Without one, a stale list
    can give an older version, or None, but never an invalid one. Raises Unavailable, Corrupt.
    """
    newest = hint
    for _ in range(ATTEMPTS_MAX):
        if newest is None:
            newest = yield from _listed(prefix)
            if newest is None:
                return None
        while (data := (yield Get(manifest_path(prefix, newest.version + 1)))) is not None:
            newest = decode_version(data, manifest_path(prefix, newest.version + 1))
        # Its successor may be missing because pruning removed both.
        if not (yield from is_pruned(prefix, newest.version, fan_out=fan_out)):
            return newest
        newest = None
    raise Unavailable(f"{prefix}: the list of its manifests stays out of date")


def decode_version(data: bytes, path: str) -> Manifest:
    """Return the manifest stored at `path`.

    Raises Corrupt naming the path for altered bytes, and for a manifest of another path.
    """
    manifest = decode(data, path)
    if manifest_path(manifest.prefix, manifest.version) != path:
        raise Corrupt(f"{path}: says that it is version {manifest.version} of {manifest.prefix}")
    return manifest


def _listed(prefix: str) -> Program[Manifest | None]:
    """Return the newest version that a list shows."""
    for _ in range(ATTEMPTS_MAX):
        paths = yield List(manifest_prefix(prefix))
        if not paths:
            return None
        path = max(paths, key=manifest_version)
        data = yield Get(path)
        if data is not None:
            return decode_version(data, path)
    raise Unavailable(f"{prefix}: the list of its manifests stays out of date")


def commit(
    prefix: str,
    base: Manifest | None,
    change: Callable[[Manifest | None], Manifest | None],
    writer: Writer,
    write_id: str,
    *,
    fan_out: int = FAN_OUT,
) -> Program[Manifest | None]:
    """Commit `change` on top of the newest version, which may be `base` or a later one; return the resulting version.

    `change` receives the newest version and returns the next one, or None where nothing is to change (then the newest
    is the result). After a lost race it is called again, so it must return None where its work is done. Number, writer
    and write id are filled in here. Raises Fenced; Unavailable where the outcome is unknown or the store does not
    answer (then the same change may simply be committed again); Corrupt.
    """
    tip = base
    for _ in range(ATTEMPTS_MAX):
        if tip is not None:
            _refuse_if_fenced(tip, writer)
        changed = change(tip)
        if changed is None:
            return tip
        new = replace(
            changed,
            version=tip.version + 1 if tip is not None else 1,
            node_id=writer.node_id,
            leader_epoch=writer.leader_epoch,
            write_id=write_id,
        )
        winner: Manifest | None = yield from _put_version(prefix, new)
        if winner is new:
            if not (yield from is_pruned(prefix, new.version, fan_out=fan_out)):
                return new
            winner = None  # the version was used and pruned long ago: the base is out of date
        tip = yield from load_latest(prefix, winner, fan_out=fan_out)
    raise Unavailable(f"{prefix}: no version could be committed in {ATTEMPTS_MAX} attempts")


def _refuse_if_fenced(tip: Manifest, writer: Writer) -> None:
    newer = tip.leader_epoch > writer.leader_epoch
    if newer or (tip.leader_epoch == writer.leader_epoch and tip.node_id != writer.node_id):
        raise Fenced(
            f"{tip.prefix}: leader epoch {tip.leader_epoch} of node {tip.node_id} has written version {tip.version}"
        )


def _put_version(prefix: str, new: Manifest) -> Program[Manifest]:
    """Put a version; return the one under its number: `new` itself, or another writer's."""
    path = manifest_path(prefix, new.version)
    data = encode(new)
    for _ in range(ATTEMPTS_MAX):
        try:
            if (yield PutAbsent(path, data)):
                return new
        except Unavailable:
            pass  # the put may have succeeded: read it back
        found = yield Get(path)
        if found == data:
            return new
        if found is not None:
            return decode_version(found, path)
    raise Unavailable(f"{path}: can be neither put nor read back")


def is_pruned(prefix: str, version: int, *, fan_out: int = FAN_OUT) -> Program[bool]:
    """Return whether a version is below the pruning boundary."""
    for level in (0, 1):
        if (yield Exists(boundary_path(prefix, level, version // fan_out ** (level + 1)))):
            return True
    return False


def prune(
    prefix: str, tip: Manifest, *, kept: int = KEPT_VERSIONS, fan_out: int = FAN_OUT
) -> Program[int]:
    """Remove versions long behind a confirmed `tip`; return the `boundary` for the next version.

    Groups are pruned in order, and a group's boundary object exists before the next group's: `load_latest` relies on
    that. After a crash the next call repeats every step that was not recorded. Raises Unavailable.
    """
    target = max(tip.boundary, (tip.version - kept) // fan_out)
    for group in range(tip.boundary, target):
        yield PutAbsent(boundary_path(prefix, 0, group), seal(b"{}"))
        first = group * fan_out
        yield Delete(tuple(manifest_path(prefix, v) for v in range(first, first + fan_out)))
        if (group + 1) % fan_out == 0:
            above = group // fan_out
            yield PutAbsent(boundary_path(prefix, 1, above), seal(b"{}"))
            groups = range(above * fan_out, (above + 1) * fan_out)
            yield Delete(tuple(boundary_path(prefix, 0, below) for below in groups))
    return target
