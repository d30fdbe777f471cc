"""The client's blocking shell, for Spark's driver and tasks.

In: a blocking network (`adapters.blocking_socket`) and a bootstrap list. Out: answers as the dataclasses of
`calls.py`. It never starts a thread, and one thread uses it at a time.

Raises Unavailable("broker HOST:PORT unreachable: …") where no broker answers, Rejected(code) where the cluster
refuses a request or the login.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from logging import getLogger
from math import inf
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar, cast

from stratalog.client import calls
from stratalog.client.calls import (
    BrokerAddress,
    Call,
    ClusterInfo,
    ListedOffset,
    ResourceConfigs,
)
from stratalog.client.cluster import LOGGER, Ask, ClusterView, Program, parse_bootstrap
from stratalog.client.core import ClientConnection, reason
from stratalog.client.fetches import FetchedPartition, FetchSpan
from stratalog.client.sasl import OF_LIFETIME, Login, log_in
from stratalog.client.security import PLAIN, ClientSecurity
from stratalog.errors import Rejected, Unavailable
from stratalog.ports import Buffer, Tls, TokenSource
from stratalog.wire.ids import TopicPartition

__all__ = ["BlockingClient", "Network", "Stream"]

T = TypeVar("T")


class Stream(Protocol):
    """A connected socket. Raises OSError."""

    def send(self, buffers: Sequence[Buffer]) -> None: ...

    def receive_into(self, buffer: memoryview) -> int: ...

    def close(self) -> None: ...


class Network(Protocol):
    """Opens streams, and waits. Raises OSError."""

    def connect(self, host: str, port: int, timeout_s: float, tls: Tls | None = None) -> Stream: ...

    def access_token(self, source: TokenSource) -> str: ...

    def pause(self, seconds: float) -> None: ...

    def now_s(self) -> float:
        """Return seconds of a steady clock."""


class _Link:
    """One connection: a stream and the core's state."""

    def __init__(self, stream: Stream, core: ClientConnection) -> None:
        self.core = core
        self.stream = stream
        self.ends_s = inf
        """When the caller must open another link, by the network's clock."""

    def call(self, call: Call[T]) -> T:
        correlation_id, pieces = self.core.send(call)
        try:
            self.stream.send(pieces)
            if call.unanswered is not None:
                return call.unanswered
            while True:
                count = self.stream.receive_into(self.core.get_buffer())
                if not count:
                    raise self.core.closed()
                for answered, answer in self.core.received(count):
                    assert answered == correlation_id, "one call at a time"
                    if isinstance(answer, Rejected):
                        raise answer
                    return cast("T", answer)
        except TimeoutError:
            raise Unavailable(f"broker {self.core.peer} did not answer in time") from None
        except OSError as error:
            raise Unavailable(f"broker {self.core.peer}: {reason(error)}") from error

    def log_in(self, login: Login) -> int:
        """Authenticate; return the session's lifetime in ms, 0 for no end. Raises Rejected, Unavailable."""
        steps = log_in(login)
        try:
            call = next(steps)
            while True:
                call = steps.send(self.call(call))
        except StopIteration as end:
            return int(end.value)


class BlockingClient:
    """A client of a cluster, with connections to its brokers as needed."""

    def __init__(
        self,
        network: Network,
        bootstrap: str,
        *,
        client_id: str = "stratalog",
        timeout_s: float = 30.0,
        patience_s: float = 0.0,
        security: ClientSecurity = PLAIN,
    ) -> None:
        """Connect with the first call; `patience_s` as for `ClusterView`, `timeout_s` for one request.

        Raises ValueError for a malformed list of `host:port`.
        """
        self._network = network
        self._security = security
        self._view = ClusterView(parse_bootstrap(bootstrap), patience_s)
        self._client_id = client_id
        self._timeout_s = timeout_s
        self._links: dict[tuple[str, int], _Link] = {}

    def close(self) -> None:
        links, self._links = self._links, {}
        for link in links.values():
            link.stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def metadata(self, topics: Sequence[str] | None = None) -> ClusterInfo:
        """Return brokers and the topics named (None: all); a missing topic has its error in its entry."""
        return self._run(self._view.metadata(topics))

    def list_offsets(
        self, wanted: Mapping[TopicPartition, int], *, isolation: int = calls.READ_UNCOMMITTED
    ) -> dict[TopicPartition, ListedOffset]:
        """Return the offset of each partition for a timestamp (epoch ms, calls.EARLIEST, calls.LATEST)."""
        return self._run(self._view.list_offsets(wanted, isolation))

    def describe_configs(self, resources: Sequence[tuple[int, str]]) -> list[ResourceConfigs]:
        """Return configurations of (calls.TOPIC, name) or (calls.BROKER, node id as text)."""
        return self._run(self._view.on_any(calls.describe_configs(resources)))

    def fetch(self, span: FetchSpan) -> FetchedPartition:
        """Fetch record batches from the one that holds `span.offset` on; maybe none, maybe with a part of one at the
        end.
        """
        return self._run(self._view.fetch(span))

    def call(self, call: Call[T], node_id: int | None = None) -> T:
        """Run one call on one broker (None: any), without retries."""
        return cast("T", self._ask(Ask(node_id, call)))

    def _run(self, program: Program[T]) -> T:
        """Perform a program of `cluster.py`."""
        began_s = self._network.now_s()
        try:
            step = next(program)
            while True:
                if isinstance(step, Ask):
                    try:
                        answer = self._ask(step)
                    except (Unavailable, Rejected) as error:
                        step = program.throw(error)
                    else:
                        step = program.send(answer)
                else:
                    if step.says:
                        getLogger(LOGGER).warning("%s", step.says)
                    self._network.pause(step.seconds)
                    step = program.send(self._network.now_s() - began_s)
        except StopIteration as stop:
            return cast("T", stop.value)

    def _ask(self, ask: Ask) -> Any:
        failure = Unavailable(f"broker {ask.node_id} is not in the cluster")
        for address in self._view.candidates(ask.node_id):
            try:
                return self._link(address).call(ask.call)
            except Unavailable as error:
                failure = error
                self._drop(address)
        raise failure

    def _drop(self, address: BrokerAddress) -> None:
        link = self._links.pop((address.host, address.port), None)
        if link is not None:
            link.stream.close()

    def _link(self, address: BrokerAddress) -> _Link:
        key = (address.host, address.port)
        link = self._links.get(key)
        if link is not None and link.ends_s != inf and self._network.now_s() >= link.ends_s:
            self._drop(address)
            link = None
        if link is None:
            peer = f"{address.host}:{address.port}"
            try:
                stream = self._network.connect(
                    address.host, address.port, self._timeout_s, self._security.tls
                )
            except OSError as error:
                raise Unavailable(f"broker {peer} unreachable: {reason(error)}") from error
            is_secured = self._security.tls is not None
            link = _Link(stream, ClientConnection(peer, self._client_id, is_secured=is_secured))
            try:
                link.core.versions = link.call(calls.api_versions())
                login = self._security.login
                if login is not None and login.source is not None:
                    login = replace(login, password=self._network.access_token(login.source))
                lifetime_ms = 0 if login is None else link.log_in(login)
                if lifetime_ms:
                    link.ends_s = self._network.now_s() + lifetime_ms / 1000 * OF_LIFETIME
            except Rejected as error:
                stream.close()
                raise link.core.refused(error) from error
            except Unavailable as error:
                stream.close()
                raise link.core.unreachable(error) from error
            self._links[key] = link
        return link
