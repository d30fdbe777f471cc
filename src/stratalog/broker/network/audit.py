"""Say in lines of JSON which clients were denied something, failed to log in, or changed the cluster.

In: calls, what the authorizer denied, answers. Out: one line for each denied request, failed login and change, and for
each allowed data request where the settings ask for that. It never denies anything itself, and no line has a password
or another secret setting.

A change has its line where it is made: a forwarded one on the controller, with the client's own principal and address.
Changes and denials have the line whether or not the client waits for the answer. Texts that a client chooses are cut at
`_TEXT_MAX`.
"""

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from types import CoroutineType
from typing import Any, Final

from msgspec.structs import replace

from stratalog.broker.metrics import error_codes
from stratalog.broker.network.authorizer import DENIED, Authorizer, Operation, Resource
from stratalog.broker.network.sasl import SaslState
from stratalog.broker.network.session import Session
from stratalog.config.broker_settings import is_secret
from stratalog.errors import ErrorCode, Rejected
from stratalog.metadata.acls import Acl
from stratalog.metadata.image import ResourceType
from stratalog.ports import AuditLog, Clock
from stratalog.wire.apis import APIS, FETCH, PRODUCE
from stratalog.wire.scram import MECHANISMS

__all__ = ["CHANGES", "Audit"]

_DENIALS: Final = frozenset(DENIED.values())
_NOTED_MAX: Final = 20
"""Denied resources in one line."""
_TEXT_MAX: Final = 300
"""Characters of a text that a client chooses, in one line: the longest name of a topic has 249."""
_HANDSHAKE, _AUTHENTICATE = 17, 36
_DATA_REQUESTS: Final = frozenset({PRODUCE, FETCH})
_OF_DATA: Final = frozenset({Operation.READ, Operation.WRITE})
_HIDDEN: Final = "(hidden)"
_DELETE: Final = 1
"""The operation of IncrementalAlterConfigs that removes a setting."""
_MECHANISMS: Final = {number: name for name, (number, _) in MECHANISMS.items()}
_Change = dict[str, Any]


class _Noting(Authorizer):
    """The authorizer of one request, which notes what it denies, and which topics it lets the client read or write.

    Without an inner authorizer it allows everything.
    """

    def __init__(self, inner: Authorizer | None) -> None:
        self._inner = inner
        self.denied: dict[str, None] = {}
        self.allowed: dict[str, None] = {}

    def allows(self, session: Session, operation: Operation, resource: Resource, name: str) -> bool:
        """Return whether the client may perform the operation."""
        inner = self._inner
        is_allowed = inner is None or inner.allows(session, operation, resource, name)
        if is_allowed:
            if resource is Resource.TOPIC and operation in _OF_DATA:
                self.allowed[f"{operation.name} {resource.name} {name}"] = None
        elif len(self.denied) < _NOTED_MAX:
            self.denied[f"{operation.name} {resource.name} {name}"] = None
        return is_allowed

    def allows_any(self, session: Session, operation: Operation, resource: Resource) -> bool:
        """Return whether the client may perform the operation on any resource of the type."""
        inner = self._inner
        is_allowed = inner is None or inner.allows_any(session, operation, resource)
        if not is_allowed and len(self.denied) < _NOTED_MAX:
            self.denied[f"{operation.name} {resource.name} *"] = None
        return is_allowed

    def would_allow(
        self, session: Session, operation: Operation, resource: Resource, name: str
    ) -> bool:
        """Return whether the client may perform the operation, and note nothing."""
        inner = self._inner
        return inner is None or inner.would_allow(session, operation, resource, name)


class Audit:
    """The audit of one node."""

    def __init__(self, log: AuditLog, clock: Clock, *, has_data_requests: bool) -> None:
        self._log = log
        self._clock = clock
        self.has_data_requests = has_data_requests
        """Whether Produce and Fetch have a line where they are allowed, too."""

    @property
    def lines_dropped(self) -> int:
        """Lines that came faster than they could be written."""
        return self._log.lines_dropped

    def close(self) -> None:
        """Write what waits, and close the file."""
        self._log.close()

    def watch(self, api_key: int, call: Any, handle: Callable[[Any], Any]) -> tuple[Any, Any]:
        """Call a handler with a `dispatch.Call`; return the call and the result, which is noted once it is there."""
        is_noted = self.has_data_requests and api_key in _DATA_REQUESTS
        is_free = call.authorizer is None and not is_noted
        noting = None if is_free else _Noting(call.authorizer)
        call = replace(call, authorizer=noting)
        note = partial(self._note, api_key, call, noting)
        failed = partial(self._failed, api_key, call, noting)
        given_up = partial(self._given_up, api_key, call, noting)
        try:
            result = handle(call)
        except Rejected as error:
            failed(error)
            raise
        if isinstance(result, CoroutineType):
            return call, _noted(result, note, failed, given_up)
        if isinstance(result, asyncio.Future):
            result.add_done_callback(partial(_note_result, note, failed, given_up))
        else:
            note(result)
        return call, result

    def refused(self, session: Session, why: str) -> None:
        """Note a connection that is closed before its client has completed its handshake or its login."""
        if session.listener.security.tls is not None and not session.is_secured:
            self._write(session, event="handshake failed", error=why)
        elif session.is_unknown and session.sasl is not None:
            self._login_failed(session, session.sasl, session.sasl.mechanism, why)

    def _given_up(self, api_key: int, call: Any, noting: _Noting | None) -> None:
        """Note a denial or a failed login whose client has not waited for the answer."""
        self._denied(api_key, call, noting)
        sasl = call.session.sasl
        if api_key == _AUTHENTICATE and sasl is not None and sasl.has_failed:
            error = ErrorCode.sasl_authentication_failed.name.upper()
            self._login_failed(call.session, sasl, sasl.mechanism, error)

    def _login_failed(self, session: Session, sasl: SaslState, mechanism: str, why: str) -> None:
        event, user = "login failed", _short(sasl.claimed)
        reason = {"reason": sasl.why} if sasl.why else {}
        name = _short(mechanism)
        self._write(session, event=event, mechanism=name, user=user, error=why, **reason)

    def _failed(
        self, api_key: int, call: Any, noting: _Noting | None, error: BaseException
    ) -> None:
        """Note a denial that ends the connection in the place of an answer, as of a Produce with acks=0."""
        if isinstance(error, Rejected) and error.code in _DENIALS:
            self._denied(api_key, call, noting)

    def _denied(self, api_key: int, call: Any, noting: _Noting | None) -> None:
        if noting is not None and noting.denied:
            denied = [_short(one) for one in noting.denied]
            self._write(call.session, event="denied", api=_name(api_key), denied=denied)

    def _note(self, api_key: int, call: Any, noting: _Noting | None, body: Any) -> None:
        session = call.session
        if noting is not None and noting.denied and not _DENIALS.isdisjoint(error_codes(body)):
            self._denied(api_key, call, noting)
        if api_key in _DATA_REQUESTS and self.has_data_requests and noting and noting.allowed:
            allowed = [_short(one) for one in noting.allowed]
            self._write(session, event="allowed", api=_name(api_key), allowed=allowed)
        if api_key in {_HANDSHAKE, _AUTHENTICATE}:
            sasl = session.sasl
            if body.error_code and sasl is not None:
                error = ErrorCode(body.error_code).name.upper()
                mechanism = call.body.mechanism if api_key == _HANDSHAKE else sasl.mechanism
                self._login_failed(session, sasl, mechanism, error)
            return
        changes = _CHANGES.get(api_key)
        if changes is not None and not getattr(call.body, "validate_only", False):
            for change in changes(call.body, body):
                self._write(session, **change)

    def _write(self, session: Session, **fields: Any) -> None:
        now = datetime.fromtimestamp(self._clock.now_ms() / 1000, UTC)
        line = {
            "time": now.isoformat(timespec="milliseconds"),
            **fields,
            "principal": str(session.principal),
            "host": session.host,
            "listener": session.listener.name,
            "client_id": _short(session.client_id),
        }
        self._log.write(json.dumps(line), session.holder)


async def _noted(
    result: "CoroutineType[Any, Any, Any]",
    note: Callable[[Any], None],
    failed: Callable[[BaseException], None],
    given_up: Callable[[], None],
) -> Any:
    try:
        body = await result
    except asyncio.CancelledError:
        given_up()
        raise
    except Rejected as error:
        failed(error)
        raise
    note(body)
    return body


def _note_result(
    note: Callable[[Any], None],
    failed: Callable[[BaseException], None],
    given_up: Callable[[], None],
    done: "asyncio.Future[Any]",
) -> None:
    if done.cancelled():
        given_up()
        return
    error = done.exception()
    if error is None:
        note(done.result())
    else:
        failed(error)


def _name(api_key: int) -> str:
    return "".join(word.title() for word in APIS[api_key].name.split("_"))


def _topics_created(_: Any, body: Any) -> Iterator[_Change]:
    for one in body.topics:
        if not one.error_code:
            yield {"event": "topic created", "topic": one.name, "partitions": one.num_partitions}


def _topics_deleted(_: Any, body: Any) -> Iterator[_Change]:
    for one in body.responses:
        if not one.error_code:
            yield {"event": "topic deleted", "topic": one.name or str(one.topic_id)}


def _partitions_added(request: Any, body: Any) -> Iterator[_Change]:
    counts = {one.name: one.count for one in request.topics}
    for one in body.results:
        if not one.error_code:
            yield {"event": "partitions added", "topic": one.name, "partitions": counts[one.name]}


def _records_deleted(_: Any, body: Any) -> Iterator[_Change]:
    for topic in body.topics:
        found = {
            one.partition_index: one.low_watermark for one in topic.partitions if not one.error_code
        }
        if found:
            yield {"event": "records deleted", "topic": topic.name, "log_start_offsets": found}


def _settings_changed(request: Any, body: Any) -> Iterator[_Change]:
    requested = {(one.resource_type, one.resource_name): one.configs for one in request.resources}
    for one in body.responses:
        if one.error_code:
            continue
        values: Mapping[str, str | None] = {
            each.name: _shown(each.name, each.value)
            if getattr(each, "config_operation", 0) != _DELETE
            else None
            for each in requested[one.resource_type, one.resource_name]
        }
        kind = one.resource_type
        if kind in set(ResourceType):
            kind = ResourceType(kind).name
        yield {
            "event": "settings changed",
            "resource": f"{kind} {one.resource_name}",
            "settings": values,
        }


def _acls_created(request: Any, body: Any) -> Iterator[_Change]:
    for one, result in zip(request.creations, body.results, strict=True):
        if not result.error_code:
            yield {"event": "acl created", "acl": Acl.of(one, one.resource_pattern_type).named()}


def _acls_deleted(_: Any, body: Any) -> Iterator[_Change]:
    for result in body.filter_results:
        for one in result.matching_acls:
            yield {"event": "acl deleted", "acl": Acl.of(one, one.pattern_type).named()}


def _users_changed(request: Any, body: Any) -> Iterator[_Change]:
    for one in body.results:
        if one.error_code:
            continue
        yield {
            "event": "user changed",
            "user": one.user,
            "deleted": [_MECHANISMS[d.mechanism] for d in request.deletions if d.name == one.user],
            "set": [_MECHANISMS[u.mechanism] for u in request.upsertions if u.name == one.user],
        }


def _quotas_changed(request: Any, body: Any) -> Iterator[_Change]:
    def names(entry: Any) -> dict[str, str]:
        return {one.entity_type: one.entity_name or "<default>" for one in entry.entity}

    refused = [names(one) for one in body.entries if one.error_code]
    for entry in request.entries:
        if names(entry) not in refused:
            values = {one.key: None if one.remove else one.value for one in entry.ops}
            yield {"event": "quotas changed", "entity": names(entry), "quotas": values}


def _token_created(_: Any, body: Any) -> Iterator[_Change]:
    if not body.error_code:
        owner = f"{body.principal_type}:{body.principal_name}"
        yield {"event": "token created", "token": body.token_id, "owner": owner}


def _token_ends(_: Any, body: Any) -> Iterator[_Change]:
    if not body.error_code:
        end_ms = body.expiry_timestamp_ms
        yield {"event": "token changed", "token": body.token_id, "ends_at_ms": end_ms}


_CHANGES: Final[Mapping[int, Callable[[Any, Any], Iterator[_Change]]]] = {
    19: _topics_created,
    20: _topics_deleted,
    21: _records_deleted,
    30: _acls_created,
    31: _acls_deleted,
    33: _settings_changed,
    37: _partitions_added,
    38: _token_created,
    39: _token_ends,
    40: _token_ends,
    44: _settings_changed,
    49: _quotas_changed,
    51: _users_changed,
}
"""By API key: the changes that a request and its answer tell of."""
CHANGES: Final = frozenset(_CHANGES)
"""The APIs whose requests change the cluster."""


def _short(text: str) -> str:
    return text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}… ({len(text)} characters)"


def _shown(name: str, value: str | None) -> str | None:
    return _HIDDEN if value is not None and is_secret(name) else value
