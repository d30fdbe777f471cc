"""The manifests of a run's bucket, at every put: a deposed leader writes none (ArchiverIsFenced).

In: the writes that reach the bucket. Out: `Broken` by `raise_found` where a version has an older leader epoch than the
version before. It changes nothing.
"""

from typing import Any

from tests.cluster.checks import Broken

from stratalog.ports import Buffer
from stratalog.tier.bucket.commit import decode_version


class WatchedStore:
    """A store that looks at what is put; all else is the store's."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._epochs: dict[str, tuple[int, int]] = {}
        """Path of a version: its leader epoch, and the node that wrote it."""
        self._writers: dict[str, int] = {}
        """Folder of a partition's manifests: the node that wrote the last of them."""
        self._found: Broken | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def put_if_absent(self, path: str, data: Buffer) -> None:
        self._store.put_if_absent(path, data)
        folder, _, name = path.rpartition("/")
        if not folder.endswith("/manifest") or not name.isdecimal():
            return
        new = decode_version(bytes(data), path)
        self._epochs[path] = new.leader_epoch, new.node_id
        self._writers[folder] = new.node_id
        before = self._epochs.get(f"{folder}/{int(name) - 1:0{len(name)}}", (-1, -1))
        if new.leader_epoch < before[0]:
            self._found = self._found or Broken(
                f"ArchiverIsFenced: {path}: node {new.node_id} of epoch {new.leader_epoch} wrote after node "
                f"{before[1]} of epoch {before[0]}"
            )

    def writer(self, partition: str) -> int | None:
        """Return the node that wrote the last manifest; None before the first. `partition`: the end of its folder."""
        found = (one for folder, one in self._writers.items() if f"{partition}manifest" in folder)
        return next(found, None)

    def raise_found(self) -> None:
        """Raise the first broken property."""
        if self._found is not None:
            raise self._found
