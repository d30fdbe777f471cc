"""Decode each request, call its handler, encode the answer; and keep the table of served APIs.

In: one frame. Out: the answer's buffers, or a future or coroutine of them. It knows no API's meaning.

Only `APIS` lists versions: ApiVersions answers from it, and `docs/protocol.md` is generated from it.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import cached_property, partial
from types import CoroutineType
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from msgspec import Struct

from stratalog.broker.metrics import BrokerMetrics, error_codes
from stratalog.broker.network.answers import Answer, Later, as_it_is, is_produce
from stratalog.broker.network.audit import CHANGES, Audit
from stratalog.broker.network.authorizer import (
    CLUSTER_NAME,
    DENIED,
    Authorizer,
    Operation,
    Resource,
    Right,
    authorized_operations,
)
from stratalog.broker.network.client_memory import ClientMemory
from stratalog.broker.network.large import LargeRequests
from stratalog.broker.network.session import Session
from stratalog.broker.network.throttling import Throttling, Usage
from stratalog.broker.network.turns import Pace, Turns
from stratalog.config import BrokerConfig
from stratalog.errors import ErrorCode, Rejected
from stratalog.ports import Clock
from stratalog.wire.apis import ListenerKind
from stratalog.wire.budget import DecodeBudget, OverBudget
from stratalog.wire.envelope import (
    Received,
    RequestHeader,
    UnsupportedVersion,
    decode_request,
    decode_response,
    encode_response,
    parse_header,
)
from stratalog.wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from stratalog.wire.messages.sasl_authenticate import SaslAuthenticateRequest

API_VERSIONS = 18
SASL_AUTHENTICATE = 36
DECODED_BYTES_MAX: Final = 40 << 20
"""The most memory that one decoded request may take beside its records: a Fetch of 108,000 partitions, for example."""
_AT_ONCE_BYTES: Final = 256 << 10
"""A thread decodes requests that take more memory once decoded: this much takes two milliseconds."""
_LENGTH_BYTES: Final = 4
_OF_NODES: Final = (Right(Operation.CLUSTER_ACTION, Resource.CLUSTER),)
"""The rights of an API that only nodes of the cluster use."""
_ITEMS_AT_ONCE: Final = 1000
"""A thread encodes answers with more items than this."""


BodyT = TypeVar("BodyT")
NeedsT = TypeVar("NeedsT")


class Call(Struct, Generic[BodyT, NeedsT], frozen=True):
    """One request as its handler sees it: `body` is the decoded request, `needs` the parts of the broker it works with.

    A handler that works on many items uses `pace.each`.
    """

    needs: NeedsT
    session: Session
    version: int
    body: BodyT
    pace: Pace
    authorizer: Authorizer | None
    """None: every client has all rights."""
    sends_files: bool = False
    """Whether the answer may name bytes of files (`FileRange`) in the place of buffers."""

    def allows(self, operation: Operation, resource: Resource, name: str) -> bool:
        """Return whether the client may perform the operation on the resource."""
        authorizer = self.authorizer
        return authorizer is None or authorizer.allows(self.session, operation, resource, name)

    def shows(self, resource: Resource, name: str) -> bool:
        """Return whether an answer may show a resource that the client has not named: no audit notes a denial."""
        authorizer, describe = self.authorizer, Operation.DESCRIBE
        return authorizer is None or authorizer.would_allow(self.session, describe, resource, name)

    def allows_cluster(self, operation: Operation) -> bool:
        """Return whether the client may perform the operation on the cluster."""
        return self.allows(operation, Resource.CLUSTER, CLUSTER_NAME)

    def allows_any(self, operation: Operation, resource: Resource) -> bool:
        """Return whether the client may perform the operation on at least one resource of the type."""
        authorizer = self.authorizer
        return authorizer is None or authorizer.allows_any(self.session, operation, resource)

    def cluster_operations(self) -> int:
        """Return the operations on the cluster that the client may perform; 0 if it may not describe the cluster."""
        if not self.allows_cluster(Operation.DESCRIBE):
            return 0
        return self.authorized_operations(Resource.CLUSTER, CLUSTER_NAME)

    def authorize(self, operation: Operation, resource: Resource, name: str) -> None:
        """Raise Rejected with the resource type's error unless the client may perform the operation."""
        if not self.allows(operation, resource, name):
            raise Rejected(DENIED[resource], f"{operation.name} {resource.name} is not allowed")

    def authorized_operations(self, resource: Resource, name: str) -> int:
        """Return the client's operations on a resource, one bit for each (KIP-430)."""
        return authorized_operations(self.authorizer, self.session, resource, name)


class Handler(NamedTuple):
    """An API's handler, and the NamedTuple of the broker's parts that each `Call` carries."""

    handle: Callable[[Call[Any, Any]], Any]
    needs: Any


class Api(Struct, frozen=True, dict=True):
    """One API: the versions it advertises, the lowest version it serves, and `load`, which imports its handler.

    A handler returns the answer's body (None for no answer), a future of it, a coroutine or an `Awaited`. With a
    future, everything that depends on order is done. A coroutine or `Awaited` ends before the connection's next request
    starts. A closed connection cancels it, so work that must finish runs in another task. A change of the cluster is
    not cancelled: it may have been decided, and the audit has its line. An exception ends the connection.
    """

    name: str
    key: int
    advertised: tuple[int, int]
    load: Callable[[], Handler]
    listeners: frozenset[ListenerKind]
    rights: tuple[Right, ...]
    """The rights that Kafka's authorizer checks, for each resource that a request names; some requests need fewer."""
    served_from: int = -1
    is_forwarded: bool = False
    """Whether the controller decides its requests: a broker sends them to the active controller (KIP-590)."""
    is_of_tokens: bool = False
    """Whether its requests are about delegation tokens: a broker refuses some clients itself."""

    @cached_property
    def handler(self) -> Handler:
        """The handler, imported on first use."""
        return self.load()

    @property
    def served(self) -> tuple[int, int]:
        """Lowest and highest version that the broker answers."""
        return max(self.served_from, self.advertised[0]), self.advertised[1]


class Forwards(Protocol):
    """The part of a broker that sends requests to the active controller."""

    def attach(self, dispatcher: "Dispatcher") -> None:
        """Take the dispatcher that answers requests out of envelopes."""

    @property
    def is_needed(self) -> bool:
        """Whether the active controller is not on this node."""

    async def forward(
        self, session: Session, received: Received, frame: bytes
    ) -> list[bytes] | None:
        """Return the answer of the active controller; None where this node became it. Raises Rejected."""

    def refusing(self, code: ErrorCode) -> object:
        """Return a `local_controller` for handlers that refuses with this code."""


class Served(Protocol):
    """The parts of a broker that the dispatcher uses. It passes the handlers' needs on without looking at them."""

    apis: dict[int, Api]
    authorizer: Authorizer | None
    client_memory: ClientMemory
    clock: Clock
    config: BrokerConfig
    metrics: BrokerMetrics
    large: LargeRequests
    throttling: Throttling
    audit: Audit | None

    @property
    def forwarding(self) -> Forwards: ...


class Dispatcher:
    """Serves frames of any connection with one broker's handlers."""

    def __init__(self, broker: Served, turns: Turns) -> None:
        self._broker = broker
        self._turns = turns
        self._apis = broker.apis
        self._needs: dict[int, Any] = {}
        self._served = {
            kind: {api.key: api.served for api in broker.apis.values() if kind in api.listeners}
            for kind in ListenerKind
        }
        self._forwarded = {api.key for api in broker.apis.values() if api.is_forwarded}
        self._of_tokens = {api.key for api in broker.apis.values() if api.is_of_tokens}
        self._of_nodes = {api.key for api in broker.apis.values() if api.rights == _OF_NODES}
        self._throttling = broker.throttling
        broker.forwarding.attach(self)
        self._metrics = broker.metrics.requests
        frame_bytes_max = broker.config.int("socket.request.max.bytes")
        self._decoded_bytes_max = min(frame_bytes_max, DECODED_BYTES_MAX)
        self._budget = DecodeBudget(_AT_ONCE_BYTES)  # the budget of the request in work
        self._elapsed_ns = broker.clock.elapsed_ns
        self._audits_data = broker.audit is not None and broker.audit.has_data_requests

    def serve(self, session: Session, frame: memoryview) -> Answer | Later:
        """Answer one frame. Raises `Rejected` where the connection must be closed."""
        began_ns = self._elapsed_ns()
        if session.sasl is not None:
            if session.sasl.takes_bare_tokens:
                return Later(self._take_token(session, bytes(frame), began_ns), as_it_is)
            session.sasl.admit(int.from_bytes(frame[:2]), self._broker.clock.steady_ms())
        if session.answer_next is not None and not self._audits_data:
            answer = session.answer_next(frame, self._broker.authorizer)
            if answer is not None:
                key = int.from_bytes(frame[:2])
                self._metrics.durations[key].observe(self._elapsed_ns() - began_ns)
                return answer
        return self._serve(session, frame, began_ns)

    def _serve(self, session: Session, frame: memoryview, began_ns: int) -> Answer | Later:
        """Decode a frame, call its handler, and encode the answer."""
        budget = self._budget
        budget.charged = 0
        try:
            if len(frame) > _AT_ONCE_BYTES and not is_produce(frame):
                return self._large(session, frame, began_ns)
            request = decode_request(frame, self._served[session.listener.kind], budget)
        except OverBudget:
            return self._large(session, frame, began_ns)
        except Rejected as error:
            return self._refuse(session, error)
        usage = self._usage(session, request, len(frame)) if self._throttling.is_on else None
        if self._is_elsewhere(session, request.header.api_key):
            work = self._forward(session, request, bytes(frame), began_ns, usage)
            return Later(work, as_it_is, budget.charged)
        call, result = self._handle(session, request)
        if usage is not None:
            result = usage.begun(result, began_ns)
        if isinstance(result, CoroutineType):
            work = self._answer_later(call, request, result, began_ns, usage)
            return Later(work, as_it_is, budget.charged, request.header.api_key in CHANGES)
        if isinstance(result, asyncio.Future):
            if usage is not None:
                result.add_done_callback(partial(self._charge, usage))
            return Later(
                result, lambda body: self._answer(request, body, began_ns, usage), budget.charged
            )
        return self._answer(request, result, began_ns, usage)

    async def _take_token(self, session: Session, token: bytes, began_ns: int) -> Answer:
        """Answer a token without a header like that of a SaslAuthenticate; a refused login gets no answer."""
        header = RequestHeader(SASL_AUTHENTICATE, 0, 0, session.client_id)
        request = Received(header, SaslAuthenticateRequest(auth_bytes=token))
        body = await _body(self._handle(session, request)[1])
        self._metrics.answered(SASL_AUTHENTICATE, body, self._elapsed_ns() - began_ns)
        if body.error_code:
            return None
        return [len(body.auth_bytes).to_bytes(_LENGTH_BYTES, "big"), body.auth_bytes]

    def _large(self, session: Session, frame: memoryview, began_ns: int) -> Later:
        work = self._serve_large(session, frame, began_ns)
        return Later(work, as_it_is, goes_on=int.from_bytes(frame[:2]) in CHANGES)

    async def _serve_large(self, session: Session, frame: memoryview, began_ns: int) -> Answer:
        """Serve a request as `serve` does, after a thread decoded it."""
        large, memory = self._broker.large, self._broker.client_memory
        budget = DecodeBudget(self._decoded_bytes_max)
        decode = partial(decode_request, frame, self._served[session.listener.kind], budget)
        try:
            request = await large.decode(decode, budget, memory)
        except Rejected as error:
            return self._refuse(session, error)
        try:
            usage = self._usage(session, request, len(frame)) if self._throttling.is_on else None
            if self._is_elsewhere(session, request.header.api_key):
                return await self._forward(session, request, bytes(frame), began_ns, usage)
            handled_ns = self._elapsed_ns()
            result = self._handle(session, request)[1]
            if usage is not None:
                result = usage.begun(result, handled_ns)
            body = await _body(result)
            return await self._answer_on_thread(request, body, began_ns, usage)
        finally:
            memory.give_back(budget.charged)

    def _usage(self, session: Session, request: Received, size: int) -> Usage:
        is_of_node = request.header.api_key in self._of_nodes
        return self._throttling.usage(session, request, size, is_of_node=is_of_node)

    def _is_elsewhere(self, session: Session, api_key: int) -> bool:
        """Return whether a request of a broker's client must go to the controller of another node."""
        if api_key not in self._forwarded or session.listener.kind is not ListenerKind.BROKER:
            return False
        if api_key in self._of_tokens and not session.may_handle_tokens:
            return False
        return self._broker.forwarding.is_needed

    async def _forward(
        self,
        session: Session,
        request: Received,
        frame: bytes,
        began_ns: int,
        usage: Usage | None,
    ) -> Answer:
        """Return the active controller's answer; without one, the handler's where its controller refuses.

        Kafka: a client receives REQUEST_TIMED_OUT, and UNKNOWN_SERVER_ERROR for any other error of the envelope; where
        that is UNSUPPORTED_VERSION its connection is closed.
        """
        forwarding = self._broker.forwarding
        refusing = None
        try:
            answer = await forwarding.forward(session, request, frame)
        except Rejected as error:
            if error.code is ErrorCode.unsupported_version:
                raise
            is_late = error.code is ErrorCode.request_timed_out
            code = error.code if is_late else ErrorCode.unknown_server_error
            answer, refusing = None, forwarding.refusing(code)
        if answer is None:
            body = await _body(self._handle(session, request, refusing)[1])
            return await self._answer_on_thread(request, body, began_ns, usage)
        if usage is not None:
            header = request.header
            body = decode_response(header.api_key, header.version, memoryview(answer[-1]))[1]
            return self._answer(request, body, began_ns, usage)
        taken_ns = self._elapsed_ns() - began_ns
        self._metrics.counted(request.header.api_key, Counter(), taken_ns)
        return [*answer]

    async def serve_forwarded(self, session: Session, frame: memoryview) -> bytes:
        """Return the response, with its header, to a request that another broker's client sent.

        Raises Rejected with the code of the envelope (Kafka: EnvelopeUtils): UNSUPPORTED_VERSION where the request
        cannot be read, INVALID_REQUEST for an API that is not forwarded, NOT_CONTROLLER.
        """
        large, memory = self._broker.large, self._broker.client_memory
        budget = DecodeBudget(self._decoded_bytes_max)
        decode = partial(decode_request, frame, self._served[ListenerKind.CONTROLLER], budget)
        try:
            key = parse_header(frame, budget)[0].api_key
            request = await large.decode(decode, budget, memory) if key in self._forwarded else None
        except (Rejected, OverBudget) as error:
            raise Rejected(ErrorCode.unsupported_version, str(error)) from error
        if request is None:
            raise Rejected(ErrorCode.invalid_request, f"API key {key} is not forwarded")
        try:
            body = await _body(self._handle(session, request)[1])
            if ErrorCode.not_controller in error_codes(body):
                raise Rejected(ErrorCode.not_controller, "another node is the active controller")
            pieces = await large.run(partial(_encoded, request, body))
        finally:
            memory.give_back(budget.charged)
        return b"".join(pieces or ())[_LENGTH_BYTES:]

    def _refuse(self, session: Session, error: Rejected) -> Answer:
        """Answer a frame that is no valid request. Raises the error if the connection must be closed."""
        self._metrics.refused(error.code)
        if isinstance(error, UnsupportedVersion) and _asks_for_versions(error):
            return self._unsupported_api_versions(session, error.request_header)
        raise error

    def _handle(
        self, session: Session, request: Received, refusing: object = None
    ) -> tuple[Call[Any, Any], Any]:
        """Return the call and its handler's result. `refusing` replaces the handler's `local_controller`."""
        header, broker = request.header, self._broker
        handler = self._apis[header.api_key].handler
        needs = self._needs.get(header.api_key)
        if needs is None:
            needs = handler.needs(*[getattr(broker, name) for name in handler.needs._fields])
            self._needs[header.api_key] = needs
        if refusing is not None and "local_controller" in needs._fields:
            needs = needs._replace(local_controller=refusing)
        session.client_id = header.client_id or ""
        pace = Pace(self._turns)
        call = Call(
            needs,
            session,
            header.version,
            request.body,
            pace,
            broker.authorizer,
            session.sends_files,
        )
        if broker.audit is not None:
            return broker.audit.watch(header.api_key, call, handler.handle)
        return call, handler.handle(call)

    async def _answer_later(
        self,
        call: Call[Any, Any],
        request: Received,
        result: Awaitable[Any],
        began_ns: int,
        usage: Usage | None,
    ) -> Answer:
        body = await result
        if call.pace.items > _ITEMS_AT_ONCE:
            return await self._answer_on_thread(request, body, began_ns, usage)
        return self._answer(request, body, began_ns, usage)

    def _charge(self, usage: Usage, done: "asyncio.Future[Any]") -> None:
        """Charge a request that is done: the connection of a client that has gone encodes no answer."""
        if not done.cancelled() and done.exception() is None:
            self._throttling.charge(usage, done.result())

    def _answer(self, request: Received, body: Any, began_ns: int, usage: Usage | None) -> Answer:
        """Encode and count an answer. Its time runs from the start of the request on its connection to the answer."""
        if usage is not None:
            body = self._throttling.charge(usage, body)
        answer = _encoded(request, body)
        self._metrics.answered(request.header.api_key, body, self._elapsed_ns() - began_ns)
        return answer

    async def _answer_on_thread(
        self, request: Received, body: Any, began_ns: int, usage: Usage | None
    ) -> Answer:
        """Encode and count a large answer as `_answer` does, on a thread."""
        if usage is not None:
            body = self._throttling.charge(usage, body)

        def work() -> tuple[Answer, Counter[int]]:
            return _encoded(request, body), Counter(error_codes(body))

        answer, errors = await self._broker.large.run(work)
        self._metrics.counted(request.header.api_key, errors, self._elapsed_ns() - began_ns)
        return answer

    def _unsupported_api_versions(self, session: Session, header: RequestHeader) -> Answer:
        """Return the answer to a newer ApiVersions request: version 0, with the served versions (KIP-511)."""
        body = ApiVersionsResponse(
            error_code=ErrorCode.unsupported_version,
            api_keys=advertised(self._apis, session.listener.kind),
        )
        return encode_response(API_VERSIONS, 0, header.correlation_id, body)


def advertised(apis: dict[int, Api], kind: ListenerKind) -> list[ApiVersion]:
    """Return the ApiVersion entries of every API that listeners of a kind serve."""
    return [
        ApiVersion(api_key=api.key, min_version=api.advertised[0], max_version=api.advertised[1])
        for api in sorted(apis.values(), key=lambda api: api.key)
        if kind in api.listeners
    ]


async def _body(result: Any) -> Any:
    """Return an answer's body, which may be still to come."""
    return await result if isinstance(result, (asyncio.Future, CoroutineType)) else result


def _encoded(request: Received, body: Any) -> Answer:
    if body is None:
        return None
    header = request.header
    return encode_response(header.api_key, header.version, header.correlation_id, body)


def _asks_for_versions(error: UnsupportedVersion) -> bool:
    return error.request_header.api_key == API_VERSIONS
