"""A bucket in a cloud object store, through obstore: `s3://`, `gs://`, `az://`.

In: calls of `ports.ObjectStore`. Out: requests, retried with backoff and jitter by obstore for a bounded time. It never
creates a bucket, and never sees a key: obstore reads them from the environment.

What may be set in the URL's query: `endpoint`, `region`, and `virtual_hosted_style_request` for S3. Put-if-absent is
the store's own (`If-None-Match: *`), so it is only as good as the store: see `docs/formats.md`.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

import obstore
from obstore import store as stores
from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError, PreconditionError

from stratalog.errors import Unavailable, UserError
from stratalog.ports import AlreadyExists, Buffer, ObjectInfo

__all__ = ["CloudStore"]

_PART_BYTES: Final = 8 * 1024 * 1024
_PARTS_IN_FLIGHT: Final = 3
_DELETE_BATCH: Final = 1000
_RETRIES: Final[Any] = {
    "max_retries": 6,
    "retry_timeout": timedelta(seconds=60),
    "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=5)},
}
_SETTINGS: Final = {"endpoint", "region", "virtual_hosted_style_request"}


class CloudStore:
    """`ports.ObjectStore` over obstore. Raises UserError for a URL with settings it does not know."""

    def __init__(self, url: str) -> None:
        self.url = url
        parts = urlsplit(url)
        settings: dict[str, Any] = dict(parse_qsl(parts.query))
        if unknown := sorted(settings.keys() - _SETTINGS):
            raise UserError(f"{url}: {unknown[0]!r} is none of {', '.join(sorted(_SETTINGS))}")
        plain_http = settings.get("endpoint", "").startswith("http://")
        try:
            self._store: Any = stores.from_url(
                f"{parts.scheme}://{parts.netloc}{parts.path}",
                client_options={"allow_http": True} if plain_http else None,
                retry_config=_RETRIES,
                **settings,
            )
        except (BaseError, ValueError) as error:
            raise UserError(f"{url}: {error}") from error

    def put(self, path: str, chunks: Iterable[Buffer]) -> None:
        failures: list[BaseException] = []

        def pieces() -> Iterator[Buffer]:
            # obstore would wrap what the source raises; the upload fails either way, and the source's own error is
            # what the caller must see.
            try:
                for chunk in chunks:
                    if len(chunk):
                        yield chunk
            except BaseException as error:
                failures.append(error)
                raise

        try:
            with self._failures(path, in_bucket=True):
                obstore.put(
                    self._store,
                    path,
                    pieces(),
                    chunk_size=_PART_BYTES,
                    max_concurrency=_PARTS_IN_FLIGHT,
                )
        except Unavailable:
            if failures:
                raise failures[0] from None
            raise

    def put_if_absent(self, path: str, data: Buffer) -> None:
        with self._failures(path, in_bucket=True):
            obstore.put(self._store, path, data, mode="create")

    def get(self, path: str) -> bytes:
        with self._failures(path):
            return bytes(obstore.get(self._store, path).bytes())

    def get_range(self, path: str, start: int, size: int) -> bytes:
        try:
            with self._failures(path):
                return bytes(obstore.get_range(self._store, path, start=start, length=size))
        except Unavailable:
            # A range that begins past the end is refused (416), and the reason is only text.
            if start < self.size(path):
                raise
            return b""

    def size(self, path: str) -> int:
        with self._failures(path):
            return int(obstore.head(self._store, path)["size"])

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        # Object stores list by whole path segments through obstore, so a name's beginning is matched here.
        folder = prefix.rpartition("/")[0]
        with self._failures(prefix, in_bucket=True):
            for page in obstore.list(self._store, prefix=folder or None):
                for found in page:
                    if found["path"].startswith(prefix):
                        modified = int(found["last_modified"].timestamp() * 1000)
                        yield ObjectInfo(found["path"], found["size"], modified)

    def delete(self, paths: Sequence[str]) -> None:
        for start in range(0, len(paths), _DELETE_BATCH):
            batch = list(paths[start : start + _DELETE_BATCH])
            try:
                with self._failures(batch[0]):
                    obstore.delete(self._store, batch)
            except FileNotFoundError:
                self._delete_singly(batch)

    def _delete_singly(self, batch: Sequence[str]) -> None:
        """Stores without a batch call fail as a whole where one of the objects is missing."""
        for path in batch:
            try:
                with self._failures(path):
                    obstore.delete(self._store, path)
            except FileNotFoundError:
                continue

    @contextmanager
    def _failures(self, path: str, *, in_bucket: bool = False) -> Iterator[None]:
        """The port's exceptions for obstore's. `in_bucket`: only the bucket itself can be missing, and a
        missing bucket is no missing object.
        """
        try:
            yield
        except (AlreadyExistsError, PreconditionError) as error:
            raise AlreadyExists(path) from error
        except (NotFoundError, FileNotFoundError) as error:
            if in_bucket or "NoSuchBucket" in str(error):
                raise Unavailable(f"{path} in {self.url}: no such bucket") from error
            raise FileNotFoundError(f"{path} in {self.url}") from error
        except (BaseError, OSError) as error:
            text = str(error).strip()
            reason = "no such bucket" if "NoSuchBucket" in text else text.split("\n", 1)[0]
            raise Unavailable(f"{path} in {self.url}: {reason}") from error
