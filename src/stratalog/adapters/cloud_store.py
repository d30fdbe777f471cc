"""A bucket in a cloud object store, through obstore: `s3://`, `gs://`, `az://`.

In: calls of `ports.ObjectStore`. Out: requests, which obstore retries with backoff and jitter for a bounded time. It
creates a bucket only where its URL asks for that (`create_bucket=true`).

`adapters/bucket_url.py` has the settings of the URL's query. Put-if-absent is the store's own (`If-None-Match: *`),
so it is only as good as the store: `strata tier check` tests it.
"""

import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

import obstore
from obstore import store as stores
from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError, PreconditionError

from stratalog.adapters.bucket_keys import find_keys, read_access_keys, read_customer_key
from stratalog.adapters.bucket_url import BucketUrl, parse_bucket_url
from stratalog.adapters.store_failures import error_code, is_refusal, reason_of
from stratalog.errors import Unavailable, UserError
from stratalog.ports import AlreadyExists, Buffer, ObjectInfo

__all__ = ["CloudStore"]

_PART_BYTES: Final = 5 * 1024 * 1024
"""The smallest part that S3 accepts. An upload holds a few parts in flight and one that it gathers. Together they stay
below the freed memory that the process keeps (`memory.py`): page faults would cost a second of CPU per GB."""
_PARTS_IN_FLIGHT: Final = 3
_CHUNK_BYTES: Final = 256 * 1024
"""Size of the pieces of a streamed answer: obstore gathers so many bytes before it calls Python."""
_DELETE_BATCH: Final = 1000
_KEYS_FOR: Final = timedelta(minutes=5)
_RETRIES: Final[Any] = {
    # A few seconds where no server answers (jitter makes it one to twenty): a user with a wrong address learns of it
    # soon, and the archiver retries anyway.
    "max_retries": 8,
    "retry_timeout": timedelta(seconds=60),
    "backoff": {
        "init_backoff": timedelta(milliseconds=100),
        "max_backoff": timedelta(seconds=5),
        "base": 3,
    },
}
_BUCKET_CODES: Final = {"NoSuchBucket", "ContainerNotFound"}
_OBJECT_CODES: Final = {None, "NoSuchKey", "NoSuchVersion", "BlobNotFound"}
_trust: Final = threading.Lock()


class CloudStore:
    """`ports.ObjectStore` over obstore. Raises UserError for a wrong URL, and for missing keys."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._at = parse_bucket_url(url)
        self._keys = find_keys(self._at)
        if self._at.customer_key_file is not None:
            # S3 also refuses the key of another object with 403.
            self._keys += f", and the customer's key from {self._at.customer_key_file}"
        try:
            with _trusting(self._at.ca_file):
                self._store: Any = _opened(self._at)
        except (BaseError, ValueError) as error:
            raise UserError(f"{url}: {reason_of(str(error))}") from None

    def put(self, path: str, chunks: Iterable[Buffer]) -> None:
        # An object that fits into one part takes one request instead of three.
        source = iter(chunks)
        first: list[Buffer] = []
        size = 0
        for chunk in source:
            first.append(chunk)
            size += len(memoryview(chunk).cast("B"))
            if size > _PART_BYTES:
                self._put_in_parts(path, chain(first, source))
                return
        with self._failures(path, in_bucket=True):
            obstore.put(self._store, path, b"".join(first), use_multipart=False)

    def _put_in_parts(self, path: str, chunks: Iterable[Buffer]) -> None:
        failures: list[BaseException] = []

        def pieces() -> Iterator[Buffer]:
            # obstore would wrap an error of the source; the upload fails either way, and the source's own error is the
            # one that the caller must see.
            try:
                for chunk in chunks:
                    if len(chunk):
                        yield chunk
            except BaseException as error:  # kept whole for the caller, and raised again
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
        # The first put of all is put-if-absent (the bucket's owner), so the bucket is created here.
        try:
            self._create_object(path, data)
        except _NoBucketError:
            if not self._at.create_bucket:
                raise
            from stratalog.adapters.s3_bucket import S3Bucket  # noqa: PLC0415 - an extra

            with closing(S3Bucket(self._at)) as bucket:
                bucket.create()
            self._create_object(path, data)

    def _create_object(self, path: str, data: Buffer) -> None:
        with self._failures(path, in_bucket=True):
            try:
                obstore.put(self._store, path, data, mode="create")
            except (AlreadyExistsError, PreconditionError) as error:
                raise AlreadyExists(path) from error

    def get(self, path: str) -> bytes:
        with self._failures(path):
            return bytes(obstore.get(self._store, path).bytes())

    def get_range(self, path: str, start: int, size: int) -> bytes | memoryview:
        try:
            with self._failures(path):
                return memoryview(obstore.get_range(self._store, path, start=start, length=size))
        except Unavailable:
            # A range that begins past the end is refused (416), and the reason is only text.
            if start < self.size(path):
                raise
            return b""

    def get_ranges(self, path: str, start: int, sizes: Sequence[int]) -> Iterator[bytes]:
        source = self._stream(path, start, start + sum(sizes))
        rest = memoryview(b"")
        for size in sizes:
            parts = [rest[:size]]
            rest = rest[size:]
            missing = size - len(parts[0])
            while missing and (chunk := next(source, None)) is not None:
                parts.append(chunk[:missing])
                rest = chunk[missing:]
                missing -= len(parts[-1])
            yield b"".join(parts)

    def _stream(self, path: str, start: int, stop: int) -> Iterator[memoryview]:
        """Yield the bytes from `start` to before `stop`, as they come."""
        options: Any = {"range": (start, stop)}
        try:
            with self._failures(path):
                answer = obstore.get(self._store, path, options=options)
                for chunk in answer.stream(min_chunk_size=_CHUNK_BYTES):
                    yield memoryview(chunk)
        except Unavailable:
            if start < self.size(path):  # as above
                raise

    def size(self, path: str) -> int:
        try:
            with self._failures(path):
                return int(obstore.head(self._store, path)["size"])
        except FileNotFoundError:
            # This answer has no body and is ambiguous: a request for one byte distinguishes a missing object from
            # revoked keys and a missing bucket.
            with self._failures(path):
                obstore.get_range(self._store, path, start=0, length=1)
            raise

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        # obstore lists by whole path segments, so this code matches the beginning of a name.
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
        """Delete objects one by one. Stores without a batch call fail as a whole where one of the objects is
        missing.
        """
        for path in batch:
            try:
                with self._failures(path):
                    obstore.delete(self._store, path)
            except FileNotFoundError:
                continue

    @contextmanager
    def _failures(self, path: str, *, in_bucket: bool = False) -> Iterator[None]:
        """Translate obstore's exceptions into the port's. `in_bucket`: only the bucket itself can be missing, and a
        missing bucket is no missing object.
        """
        try:
            yield
        except (BaseError, OSError) as error:
            text = str(error)
            missing = isinstance(error, NotFoundError | FileNotFoundError)
            code = error_code(text)
            where = f"{path} in {self.url}"
            # `from None`: obstore's own text may hold secrets.
            if code in _BUCKET_CODES or (missing and in_bucket and code is None):
                raise _NoBucketError(f"{where}: no such bucket") from None
            if missing and not in_bucket and code in _OBJECT_CODES:
                raise FileNotFoundError(where) from None
            # Some servers also answer an unknown access key with 404: that is no missing object.
            keys = f"; the keys are from {self._keys}" if is_refusal(text) else ""
            raise Unavailable(f"{where}: {reason_of(text)}{keys}") from None


class _NoBucketError(Unavailable):
    """The bucket itself is missing: an operator or this process may create it later."""


def _opened(at: BucketUrl) -> Any:
    """Return obstore's store, with its own names for the settings. Raises BaseError, ValueError."""
    common: dict[str, Any] = {
        "client_options": {"allow_http": True} if at.plain_http else None,
        "retry_config": _RETRIES,
    }
    match at.scheme:
        case "s3":
            # By this name, which `from_url` does not take, the URL's endpoint beats AWS_ENDPOINT_URL_S3.
            keys: Any = _KeysFromFile(at) if at.credentials_file else None
            settings: dict[str, Any] = {
                "aws_endpoint_url_s3": _virtual_endpoint(at) if at.virtual_hosted else at.endpoint,
                "region": at.region,
                "virtual_hosted_style_request": at.virtual_hosted or None,
                **_encryption(at),
            }
            return stores.S3Store(
                at.bucket,
                prefix=at.prefix or None,
                config=_given(settings),  # type: ignore[arg-type]
                credential_provider=keys,
                **common,
            )
        case "gs":
            settings = {"base_url": at.endpoint, "application_credentials": at.credentials_file}
        case _:
            settings = {"endpoint": at.endpoint, "account_name": at.account_name}
            if at.customer_key_file:
                settings["encryption_key"] = read_customer_key(at.customer_key_file)
    return stores.from_url(f"{at.scheme}://{at.bucket}/{at.prefix}", **common, **_given(settings))


def _encryption(at: BucketUrl) -> dict[str, Any]:
    """Return obstore's settings for the encryption of objects in S3; the bucket's own default without them."""
    if at.customer_key_file is not None:
        key = read_customer_key(at.customer_key_file)
        return {"server_side_encryption": "sse-c", "sse_customer_key_base64": key}
    return {"server_side_encryption": at.sse, "sse_kms_key_id": at.sse_kms_key_id}


def _given(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if value is not None}


def _virtual_endpoint(at: BucketUrl) -> str | None:
    """Return the endpoint with the bucket as the first label of its host, where obstore wants it."""
    if at.endpoint is None:
        return None
    parts = urlsplit(at.endpoint)
    if parts.netloc.startswith(f"{at.bucket}."):
        return at.endpoint
    return urlunsplit(parts._replace(netloc=f"{at.bucket}.{parts.netloc}"))


class _KeysFromFile:
    """Keys from a file, read again every few minutes, so that a replaced file takes effect without a restart."""

    def __init__(self, at: BucketUrl) -> None:
        assert at.credentials_file is not None
        self._path, self._profile = at.credentials_file, at.profile
        self()  # a file without keys fails now, with one line

    def __call__(self) -> dict[str, Any]:
        keys = read_access_keys(self._path, self._profile)
        return {
            "access_key_id": keys.access_key_id,
            "secret_access_key": keys.secret_access_key,
            "token": keys.session_token,
            "expires_at": datetime.now(UTC) + _KEYS_FOR,
        }


@contextmanager
def _trusting(ca_file: str | None) -> Iterator[None]:
    """Have the client that is built inside trust the authorities in `ca_file`, and those only.

    obstore has no setting for this; its HTTP client reads this variable only while a client is built.
    """
    if ca_file is None:
        yield
        return
    with _trust:
        before = os.environ.get("SSL_CERT_FILE")
        os.environ["SSL_CERT_FILE"] = ca_file
        try:
            yield
        finally:
            if before is None:
                del os.environ["SSL_CERT_FILE"]
            else:
                os.environ["SSL_CERT_FILE"] = before
