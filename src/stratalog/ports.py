"""Ports: interfaces to everything outside the process: disk, network, clock, threads, random numbers, object store.

In: nothing. Out: protocols, which `adapters` implements over the system and `tests/sim` in virtual time. No code here
does anything.

Disk and ObjectStore block: the caller runs them on a `Worker`, never on the event loop. The exceptions are
`Disk.try_append`, `Disk.try_read` and `Disk.cached`, which a log directory calls inline (`LogDirectory`).
"""

import asyncio
import uuid
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, NoReturn, Protocol, TypeVar

from msgspec import Struct

T = TypeVar("T")
Buffer = bytes | bytearray | memoryview


class FileInfo(Struct, frozen=True):
    """One entry of a directory listing: `name` has no slash, `size` is bytes (0 for a directory)."""

    name: str
    size: int
    is_directory: bool


class FileRange(Protocol):
    """Bytes of a file that the page cache has and that are not read yet: they can go to a socket without a copy."""

    def __len__(self) -> int: ...

    def peek(self, start: int, size: int) -> bytes:
        """Return a few of the bytes; fewer than `size` only at the end of the range or of the file."""

    def part(self, start: int, end: int) -> "FileRange":
        """Return the bytes from `start` to before `end`."""

    def read(self, start: int = 0) -> bytes:
        """Return the bytes from `start`. Raises OSError where the file is shorter by now."""

    def send_behind(self, head: Buffer, to: int) -> int:
        """Send `head` and then the range to the socket `to`, as many bytes as it takes now; return their number.

        Raises OSError where the socket is broken, or the file shorter by now.
        """


class Disk(Protocol):
    """One log directory. Paths are relative to it, with forward slashes; "" is the directory itself.

    Raises `OSError` on any failure (the directory is then failed); `FileNotFoundError` where a file is missing.
    """

    def append(self, path: str, position: int, buffers: Sequence[Buffer]) -> None:
        """Write all of `buffers` at byte `position`, creating the file. Page cache only: durable after `sync`."""

    def try_append(self, path: str, position: int, buffers: Sequence[Buffer]) -> bool:
        """Append as `append` if the drive will probably not block; else return False and do nothing."""

    def reserve(self, path: str, size: int) -> None:
        """Reserve room on the drive for `size` bytes of the file, creating it; no effect where the system cannot."""

    def read(self, path: str, position: int, size: int) -> bytes:
        """Return up to `size` bytes from `position`; fewer only at the end of the file. May wait for the drive."""

    def try_read(self, path: str, position: int, size: int) -> bytes | bytearray | None:
        """Read as `read` without waiting; return None where the bytes are not in the page cache (or the system cannot
        tell).
        """

    def cached(self, path: str, position: int, size: int) -> FileRange | None:
        """Return bytes of a file without reading them; None where they are not all in the page cache (or the system
        cannot tell).
        """

    def write_file(self, path: str, data: Buffer) -> None:
        """Replace the whole file atomically and durably (temporary file, sync, rename, sync of the parent)."""

    def sync(self, path: str) -> None: ...

    def sync_directory(self, path: str) -> None: ...

    def make_durable(
        self, files: Mapping[str, Buffer], synced: Sequence[str], synced_directories: Sequence[str]
    ) -> None:
        """Do `write_file`, `sync` and `sync_directory` for many files, in any order; together where that is cheaper."""

    def truncate(self, path: str, size: int) -> None: ...

    def rename(self, source: str, target: str) -> None:
        """Rename a file or directory."""

    def unlink(self, path: str) -> None:
        """Remove a file; a missing one is not an error."""

    def make_directory(self, path: str) -> None:
        """Create a directory; one that exists is not an error."""

    def remove_tree(self, path: str) -> None: ...

    def list(self, path: str) -> list[FileInfo]:
        """Return entries sorted by name; a missing directory is an empty list."""

    def size(self, path: str) -> int:
        """Return the size of the file in bytes; raises FileNotFoundError."""

    def total_bytes(self) -> int: ...

    def free_bytes(self) -> int: ...

    def lock(self) -> bool:
        """Take the directory's `.lock` for this process; False where another process holds it."""

    def close_idle(self) -> None:
        """Close files not used since the last call: an idle partition holds none open."""

    def close(self) -> None:
        """Release the lock and every open file."""


class AlreadyExists(Exception):
    """Raised by put-if-absent where the object exists."""


class ObjectInfo(Struct, frozen=True):
    """One listed object: its path below the store's root, its bytes, and when it was last modified (epoch ms)."""

    path: str
    size: int
    modified_ms: int


class ObjectStore(Protocol):
    """A bucket (or a prefix of one). Blocking.

    Raises `errors.Unavailable` for temporary failures (time-out, 503, connection), `FileNotFoundError` for a missing
    object. A put that raised `Unavailable` may have succeeded.
    """

    url: str

    def put(self, path: str, chunks: Iterable[Buffer]) -> None:
        """Create or replace an object from its pieces, streaming (multipart where it pays); durable on return."""

    def put_if_absent(self, path: str, data: Buffer) -> None:
        """Create an object, durably; raises AlreadyExists. Exactly one of several racers returns."""

    def get(self, path: str) -> bytes: ...

    def get_range(self, path: str, start: int, size: int) -> bytes | memoryview:
        """Return `size` bytes from `start`; fewer only past the end of the object."""

    def get_ranges(self, path: str, start: int, sizes: Sequence[int]) -> Iterator[bytes]:
        """Yield neighbouring ranges from `start` on as they arrive; they are short only past the object's end."""

    def size(self, path: str) -> int: ...

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield every object whose path starts with `prefix`, in any order."""

    def delete(self, paths: Sequence[str]) -> None:
        """Remove objects; missing ones are not an error."""


class Worker(Protocol):
    """Runs blocking calls off the event loop: one thread (in order) or a pool of them. Inline in the simulator."""

    def submit(self, call: Callable[[], T]) -> "asyncio.Future[T]":
        """Queue `call`; the future resolves on the event loop with its result or exception."""

    async def close(self) -> None:
        """Run what is queued, then end the threads."""


class Processes(Worker, Protocol):
    """Runs calls in processes beside this one."""

    def kill(self) -> None:
        """End the processes at once: calls under way fail with errors.Unavailable."""


class Workers(Protocol):
    """Starts all threads and processes."""

    def start(self, name: str, threads: int = 1, *, background: bool = False) -> Worker:
        """Start threads; with `background`, all other threads have priority."""

    def start_processes(self, name: str, *, background: bool = False) -> "Processes":
        """Return a worker whose calls run in processes beside this one, in any order; each call can be pickled.

        With `background`, all other processes have priority. A call whose process dies fails with errors.Unavailable.
        """


class Clock(Protocol):
    """Three clocks: the wall clock, a steady one for durations, and one for measuring."""

    def now_ms(self) -> int:
        """Return epoch milliseconds of the wall clock, for timestamps in records. It may be set, forward or back."""

    def steady_ms(self) -> int:
        """Return milliseconds of a steady clock, which is never set: for every decision by a duration.

        It starts at the epoch milliseconds of the process's start, so it can stand in for an unknown time.
        """

    def elapsed_ns(self) -> int:
        """Return nanoseconds of a steady clock with any origin: for measuring, from any thread."""


class Entropy(Protocol):
    """Random numbers. The simulator draws them from its seed."""

    def uuid(self) -> uuid.UUID: ...

    def uniform(self, low: float, high: float) -> float: ...


class Secret:
    """The base of values with a secret: none is pickled, so no plan and no task has one."""

    __slots__ = ()

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{type(self).__name__} has a secret and is never pickled")


@dataclass(frozen=True, slots=True)
class Store(Secret):
    """Keys or certificates as Kafka's settings give them: PEM text, or a file. `setting` begins the settings' names."""

    setting: str
    """For error messages: `ssl.keystore`, or with a prefix `listener.name.internal.ssl.keystore`."""
    location: str = ""
    password: str = field(default="", repr=False)
    key: str = field(default="", repr=False)
    key_password: str = field(default="", repr=False)
    certificates: str = ""


class Tls(Struct, frozen=True):
    """One side's TLS. Its `repr` shows no secret.

    `own` is this side's key and certificates, `trusted` the authorities that sign the peer's; None: none, for a client
    those of the system. Protocols and cipher suites have Java's names; no suites: the library's own choice.
    """

    own: Store | None = None
    trusted: Store | None = None
    protocols: tuple[str, ...] = ("TLSv1.2", "TLSv1.3")
    ciphers: tuple[str, ...] = ()
    client_certificate: str = "none"
    """A server's demand, by Kafka's `ssl.client.auth`: none, requested or required."""
    verifies_host: bool = True
    """Whether a client compares the server's certificate with its host name."""


@dataclass(frozen=True, slots=True)
class TokenSource(Secret):
    """Where a client gets its tokens of OAUTHBEARER: a file, or a server that knows the client by a secret."""

    url: str
    client_id: str = ""
    client_secret: str = field(default="", repr=False)
    scope: str = ""
    is_encoded: bool = False
    """Whether id and secret are encoded as in a URL (Kafka: `sasl.oauthbearer.header.urlencode`)."""


class TokenKeys(Protocol):
    """The public keys of one issuer of tokens."""

    def claims(self, token: str) -> Mapping[str, Any]:
        """Return the claims of a JSON Web Token that one of the keys has signed; blocking.

        Raises LookupError where the keys lack the one that the token names, ValueError for any other token.
        """


class Security(Struct, frozen=True):
    """The security of a listener's connections. `protocol` is the name of Kafka's security protocol."""

    protocol: str
    tls: Tls | None = None


PLAINTEXT: Final = Security("PLAINTEXT")


class SecuredProtocol(Protocol):
    """A server's protocol that connections with TLS need. `connection_made` comes before the handshake."""

    def secured(self, subject: str) -> None:
        """Take the name of the client's verified certificate (RFC 2253), "" without one; it comes before any data."""

    def shaking_hands(self, size: int) -> None:
        """Note how many bytes of an incomplete handshake the client has sent."""

    def refuse(self, why: str) -> None:
        """Close the connection, because its handshake failed."""

    @property
    def missing(self) -> int:
        """Bytes that must still come before the protocol can do anything; 0 where it does not know."""


class Certificate(NamedTuple):
    """A certificate of the store whose settings begin with `setting`; its dates are epoch seconds."""

    setting: str
    location: str
    begins_s: float
    ends_s: float


class Listener(Protocol):
    """A bound port. It refuses connections until `accept`, and again once closed."""

    host: str
    port: int

    async def accept(self) -> None:
        """Accept connections. Raises OSError where another program accepted on the same port first."""

    def secure(self, security: Security) -> bool:
        """Read keys and certificates again; return whether any changed. Raises UserError, and keeps previous ones."""

    def certificates(self) -> Sequence[Certificate]:
        """Return the listener's own certificates and those of its authorities."""

    async def close(self) -> None: ...


class SocketBuffers(NamedTuple):
    """Sizes in bytes of the system's buffers of a connection; -1: the system decides."""

    send: int = -1
    receive: int = -1


SYSTEM_BUFFERS: Final = SocketBuffers()


class Network(Protocol):
    """Stream connections. Raises OSError where the address is taken or refuses."""

    def listen(
        self,
        host: str,
        port: int,
        protocol: Callable[[], asyncio.BaseProtocol],
        security: Security,
        buffers: SocketBuffers = ...,
    ) -> Awaitable[Listener]:
        """Bind. Raises UserError for security that it cannot provide. With TLS, protocols are `SecuredProtocol`s."""

    def connect(
        self,
        host: str,
        port: int,
        protocol: Callable[[], asyncio.BaseProtocol],
        tls: Tls | None = None,
        buffers: SocketBuffers = ...,
    ) -> Awaitable[tuple[asyncio.BaseTransport, asyncio.BaseProtocol]]:
        """Connect; with `tls`, return after the handshake. Raises UserError for unusable keys and certificates."""

    async def access_token(self, source: TokenSource) -> str:
        """Return a token to log in with. Raises UserError where the server refuses, Unavailable without an answer."""


class RowGroup(NamedTuple):
    """Rows of one partition that arrived in one turn, in order of arrival; each of them is a Produce of one batch.

    `first` is the place of the first row among the turn's rows. `batches` has the rows' batches, one after another. A
    row has the fields of `wire.batch.BatchHeader`, then: connection, version, correlation id, acks, timeout in ms, the
    least timestamp of its records (-1 without any), whether all records have keys, the size of its frame.
    """

    handle: int
    first: int
    batches: bytearray
    rows: Sequence[tuple[int, ...]]


Answers = Sequence[tuple[int, int, int, int]]
"""For each row: 1 where the door answers it, base offset, append time (-1: none), log start offset."""

FetchRow = tuple[int, bytes]
"""A Fetch: its connection, and its frame without the correlation id. Equal requests have equal bytes."""


class Door(Protocol):
    """Reads, checks and answers small requests of connections that it borrows (docs/decisions/0019).

    It reads a borrowed connection until other bytes come than rows: then it returns the connection. A connection's rows
    of one turn are of one partition.

    A connection waits with each Fetch until `deliver`. It is returned, with the request, where the client sends more
    before, or leaves.
    """

    @property
    def bytes_held(self) -> int:
        """Received bytes that are not rows yet."""

    def open(
        self,
        decide: Callable[[Sequence[RowGroup]], Collection[int]],
        fetch: Callable[[Sequence[FetchRow]], None],
        returned: Callable[[int], None],
    ) -> None:
        """Begin turns. `decide` gives each row an answer, or refuses it, and returns connections to return.

        `fetch` begins the turn's fetches, after the answers; each is delivered, or its connection given back.
        `returned` is called for each connection to return, after the answers: it must call `give_back`.
        """

    def close(self) -> None: ...

    def host(self, topic: str, topic_id: uuid.UUID, index: int) -> int:
        """Accept rows of a partition; return its handle."""

    def drop(self, handle: int) -> None:
        """Accept no more rows of a partition."""

    def is_row(self, frame: memoryview) -> bool:
        """Return whether a frame could be a row, if its partition were hosted."""

    def borrow(self, transport: asyncio.Transport, client_id: str) -> int:
        """Read the connection; return its id, or -1 where it cannot. Requests of another client id are no rows."""

    def give_back(self, connection: int) -> tuple[list[Buffer], bytes]:
        """Let the transport's protocol read again; return answers that were not sent, and bytes that are no rows."""

    def answer(self, first: int, answers: Answers) -> None:
        """Answer the rows from place `first` on, once `decide` returns. Rows without a call get no answer."""

    def deliver(self, connections: Sequence[int], frame: bytes) -> None:
        """Send an answer, whose length comes first, to at most 256 connections that wait with a fetch.

        Each gets the correlation id of its own request. Connections that wait no longer are passed over.
        """

    def refuse(self, place: int) -> None:
        """Put the row, and later ones of its connection, among the bytes that are no rows. Not after an answer."""


class AuditLog(Protocol):
    """Where the audit writes its lines."""

    lines_dropped: int
    """Lines that came faster than they could be written."""

    def write(self, line: str, holder: Hashable) -> None:
        """Write a line about a client, now or later. It never blocks, and never raises."""

    def close(self) -> None:
        """Write the lines that wait."""


LargestTimestamp = Callable[[memoryview, int, int, bool], int | None]
"""Returns the largest timestamp of a produced batch's records, -1 without any; None where it is not certain that all
of them are sound and within the demands: the earliest and the latest timestamp, and whether each needs a key. The
batch is writable and not compressed, and its header and CRC hold.
"""


class Post(Protocol):
    """Sends a body to a URL by HTTP; blocking."""

    def __call__(
        self, url: str, body: bytes, headers: Mapping[str, str], *, timeout_s: float
    ) -> int:
        """Return the answer's status. Raises Unavailable without one."""


class Outside(Struct, frozen=True):
    """All ports of a node, in one value."""

    clock: Clock
    entropy: Entropy
    workers: Workers
    network: Network
    disk: Callable[[str], Disk]
    """Opens the log directory at a path, creating it."""
    paced_disk: Callable[[str, float], Disk]
    """Opens the log directory at a path for a process beside the broker, without its lock; it can be pickled.

    It reads and writes at most the given number of bytes a second.
    """
    object_store: Callable[[str], ObjectStore]
    """Opens a store by URL; raises errors.UserError for an unknown URL."""
    audit_log: Callable[[str, int, int], AuditLog]
    """Opens the audit's file: its path, its most bytes, and how many files there are. Raises errors.UserError."""
    token_keys: Callable[[str], TokenKeys]
    """Reads the key set at a URL; blocking. Raises errors.UserError, errors.Unavailable."""
    post: Post
    buffer: Callable[[int], bytearray] = bytearray
    """Makes a buffer of so many bytes, which may have any values."""
    door: Callable[[], Door | None] = lambda: None
    """Opens a door; None where there is none."""
    descriptors: int = 1 << 31
    """How many file descriptors the process may have open."""
    largest_timestamp: LargestTimestamp = lambda *_: None
    """Checks the records of large batches in compiled code, where there is some."""
