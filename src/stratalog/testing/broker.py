"""A real broker in this process, on its own thread and event loop.

In: settings by Kafka's names. Out: an address of 127.0.0.1 for any client, after some tens of milliseconds, and ways to
make the broker fail. It is the product's own node; only clock, syncs and the way to die belong to the test.

A thread instead of a process: the slow part of a broker's start is the import, and a test run pays for it once. But the
broker shares the interpreter with the test: for measurements start `strata server`.
"""

import asyncio
import shutil
from collections.abc import Callable, Coroutine, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from msgspec.structs import replace
from uvloop import new_event_loop

from stratalog.adapters.local_disk import LocalDisk
from stratalog.adapters.loop_thread import LoopThread
from stratalog.adapters.scratch import ScratchDirectory
from stratalog.adapters.system import SystemEntropy
from stratalog.broker.network.dispatch import Api
from stratalog.broker.storage.claim import format_directory, new_cluster_id, read_meta
from stratalog.config import BrokerConfig
from stratalog.errors import ErrorCode, Rejected, UserError
from stratalog.node import Node, Ready
from stratalog.testing.failures import Failure, failing
from stratalog.testing.listener_security import ListenerSecurity
from stratalog.testing.outside import AdvancedClock, CutOutside

if TYPE_CHECKING:
    from stratalog.testing.certificates import Authority

T = TypeVar("T")

QUICK: Final = {
    "auto.create.topics.enable": "true",
    "group.initial.rebalance.delay.ms": "0",
    "log.segment.delete.delay.ms": "0",
    "node.id": "1",
    "offsets.topic.num.partitions": "1",
}
"""Defaults for tests: no delays, and as few partitions as possible."""
_TIMEOUT_S: Final = 30.0
_STEP_S: Final = 0.005


class TemporaryBroker:
    """`with TemporaryBroker() as broker: … broker.address`. Only one thread may control it.

    `settings` are Kafka's, over `QUICK`, as text, numbers or flags; `start` refuses an unknown name. `directory` is a
    log directory to keep (by default a temporary one, which is removed). `cluster_id` is given to an empty one.
    """

    def __init__(
        self,
        settings: Mapping[str, str | float] | None = None,
        *,
        directory: str | Path | None = None,
        cluster_id: str = "",
        tls: bool = False,
        users: Mapping[str, str] | None = None,
        security: ListenerSecurity | None = None,
    ) -> None:
        """Raises UserError for a value that is neither text, number nor flag, and for a user that cannot log in.

        With `tls`, the listener uses TLS, and `authority` signs certificates of clients. With `users`, clients log in
        by name and password. `security` is that of several brokers instead: a cluster's.
        """
        self._settings = {name: _text(name, value) for name, value in (settings or {}).items()}
        self._kept = directory
        self._cluster_id = cluster_id
        self._security = security or ListenerSecurity(tls=tls, users=users or {})
        self._scratch: ScratchDirectory | None = None
        self._directory: Path | None = None
        self._clock = AdvancedClock()
        self._failures: dict[int, Failure] = {}
        self._port = 0
        self._thread: LoopThread | None = None
        self._node: Node | None = None
        self._starting: Callable[[float], Ready] | None = None
        self._outside: CutOutside | None = None

    @property
    def address(self) -> str:
        """`host:port`; the same after every restart and reset."""
        return f"127.0.0.1:{self._port}"

    @property
    def directory(self) -> Path:
        """The broker's log directory."""
        assert self._directory is not None, "the broker was never started"
        return self._directory

    @property
    def authority(self) -> "Authority":
        """The authority of the broker's certificate: `authority.issue("alice")` gives a client its own."""
        return self._security.authority

    @property
    def is_running(self) -> bool:
        """Whether the broker serves."""
        return self._node is not None

    def start(self) -> Self:
        """Start the broker with the data in its directory. Raises UserError for wrong settings."""
        self.begin()
        self.finish()
        return self

    def begin(self) -> None:
        """Begin to start it: nodes of one cluster wait for each other. `finish` must follow."""
        if self._node is not None:
            raise UserError("the broker runs already")
        if self._kept is not None:
            self._directory = Path(self._kept)
        elif self._directory is None:
            self._scratch = ScratchDirectory("strata-")
            self._directory = self._scratch.path
        with self._whole():
            self._begin(self._directory)

    def finish(self) -> None:
        """Wait until it serves. Raises UserError for settings that are wrong."""
        assert self._starting is not None
        with self._whole():
            self._port = self._starting(_TIMEOUT_S).port
        self._failures = {key: one for key, one in self._failures.items() if one.times > 0}
        self._arm()

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """End half a start, so that it leaves no port and no thread."""
        try:
            yield
        except BaseException:  # an interrupt too: no port and no thread may stay
            self.kill()
            if self._port == 0:  # the first start: no `__exit__` follows
                self._remove()
            raise

    def _begin(self, directory: Path) -> None:
        settings = QUICK | {
            "listeners": f"{self._security.protocol}://127.0.0.1:{self._port}",
            "log.dirs": str(directory),
            **self._security.settings(),
            **self._settings,
        }
        config, _warnings = BrokerConfig.load(settings, (), {}, strict=True)
        if self._cluster_id or self._security.has_users:
            self._format(directory, config.int("node.id"))
        self._outside = CutOutside(self._clock)
        self._thread = LoopThread("strata-broker", new_event_loop)
        self._node = Node(config, self._outside.ports)
        self._starting = self._thread.begin(self._node.start())

    def _format(self, directory: Path, node_id: int) -> None:
        path = str(directory)
        disk = LocalDisk(path)
        try:
            if read_meta(path, disk) is None:
                entropy = SystemEntropy()
                cluster_id = self._cluster_id or new_cluster_id(entropy)
                format_directory(path, disk, node_id, cluster_id, entropy)
                self._security.write_users(disk)
        finally:
            disk.close()

    def _remove(self) -> None:
        """Remove the directories that this class created."""
        self._security.remove()
        if self._scratch is not None:
            self._scratch.remove()
            self._scratch = self._directory = None

    def wait_for_brokers(self, node_ids: AbstractSet[int]) -> None:
        """Wait until this broker knows of these brokers, and none of them is fenced."""
        self._run(self._know(node_ids))

    def stop(self) -> None:
        """Stop the broker as SIGTERM does: answer running requests, and close logs cleanly."""
        if self._node is not None:
            self._run(self._node.stop())
            self._end()

    def kill(self) -> None:
        """End the broker as `kill -9` does: connections break, pending writes are lost, the next start recovers."""
        if self._node is not None:
            assert self._outside is not None
            self._run(self._outside.cut())
            self._end()

    def restart(self) -> None:
        """Stop the broker, unless it was killed or stopped already, and start it again at the same address with all its
        data.
        """
        self.stop()
        self.start()

    def reset(self) -> None:
        """Reset the broker to its first state, at the same address: no topics, no groups, no failures, the system's
        clock.
        """
        self.kill()
        self._clock.ahead_ms = 0
        self._failures.clear()
        shutil.rmtree(self.directory, ignore_errors=True)
        self.start()

    def fail(self, api: str, code: ErrorCode | int | str, times: int = 1) -> None:
        """Answer the next `times` requests of an API with an error, without executing them.

        `api` is Kafka's name ("Produce"), `code` a number, a Kafka name ("NOT_LEADER_OR_FOLLOWER") or an `ErrorCode`.
        The failure survives restarts until it is used up; a later call for the same API replaces it, and `times=0`
        removes it.
        """
        found = self._api(api)
        self._failures[found.key] = Failure(_error_code(code), times)
        self._arm()

    def advance(self, ms: int) -> None:
        """Advance the broker's clock by `ms`, and apply retention before this returns."""
        self._clock.ahead_ms += ms
        if self._node is not None:
            self._run(self._retain(self._node))

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()
        self._remove()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        assert self._thread is not None
        return self._thread.run(work, _TIMEOUT_S)

    def _end(self) -> None:
        assert self._thread is not None
        assert self._outside is not None
        self._thread.close()
        self._outside.release()
        self._node = self._thread = self._outside = None

    def _api(self, name: str) -> Api:
        from stratalog.broker.apis import APIS  # noqa: PLC0415

        for api in APIS.values():
            if api.name == name:
                return api
        raise UserError(f"no API {name!r}; there are: {', '.join(a.name for a in APIS.values())}")

    def _arm(self) -> None:
        """Install the failures in front of the running broker's handlers."""
        if self._node is not None and self._failures:
            self._run(self._install(self._node))

    async def _install(self, node: Node) -> None:
        assert node.broker is not None
        for key, failure in self._failures.items():
            api = node.broker.apis[key]
            node.broker.apis[key] = replace(
                api, load=partial(failing, self._api(api.name), failure)
            )
        # The door knows no handlers. Only tests replace one, so a node has no method for it.
        node._connections.lend_by(None)  # noqa: SLF001

    async def _know(self, node_ids: AbstractSet[int]) -> None:
        assert self._node is not None
        assert self._node.broker is not None
        metadata = self._node.broker.metadata
        while not node_ids <= {one.id for one in metadata.image.brokers.values() if not one.fenced}:  # noqa: ASYNC110 - records of other nodes
            await asyncio.sleep(_STEP_S)

    async def _retain(self, node: Node) -> None:
        assert node.broker is not None
        for hosted in node.broker.hosting.all():
            try:
                await hosted.keep_retention()
            except Rejected as error:
                raise UserError(f"retention of {hosted.name}: {error.message}") from error


def _text(name: str, value: object) -> str:
    """Return a setting's value as text for a properties file."""
    match value:
        case bool():
            return str(value).lower()
        case str() | int() | float():
            return str(value)
        case _:
            raise UserError(f"{name}: {value!r} is not accepted; accepted: text, a number, a flag")


def _error_code(code: ErrorCode | int | str) -> ErrorCode:
    if isinstance(code, str):
        try:
            return ErrorCode[code.lower()]
        except KeyError:
            raise UserError(
                f"no error {code!r}; Kafka's names are like REQUEST_TIMED_OUT"
            ) from None
    if code not in set(ErrorCode):
        raise UserError(f"no error {code}; Kafka's numbers are -1 to {max(ErrorCode)}")
    return ErrorCode(code)
