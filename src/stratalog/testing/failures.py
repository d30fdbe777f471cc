"""Answers that say no: what a broker sends when it refuses a request of any API.

In: a decoded request and an error code. Out: an answer of that version in which everything that can carry an error
carries this one. It never does what was asked.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Final
from uuid import UUID

from stratalog.broker.api import Api, Call
from stratalog.errors import ErrorCode
from stratalog.wire.construct import body_class
from stratalog.wire.fetch import FetchedPartition, FetchedTopic, FetchResponse
from stratalog.wire.fields import FieldShape, default_of, shape

_PRODUCE: Final = 0
_FETCH: Final = 1
_NAMES: Final = ("name", "topic", "key", "group_id", "member_id", "topic_id", "group_instance_id")
_INDEXES: Final = ("partition_index", "index", "partition")


@dataclass(slots=True)
class Failure:
    """What one API is to answer the next `times` requests."""

    code: ErrorCode
    times: int


def failing(api: Api, failure: Failure) -> Callable[[Call], Any]:
    """The handler of `api` behind a failure: refuses as often as it says, then does its work again."""

    def handle(call: Call) -> Any:
        if failure.times <= 0:
            return api.handle(call)
        failure.times -= 1
        return refusal(api.key, call, failure.code)

    return handle


def refusal(api_key: int, call: Call, code: ErrorCode) -> Any:
    """The answer to `call` with `code` everywhere."""
    if api_key == _PRODUCE and call.body.acks == 0:
        return None
    if api_key == _FETCH:
        return _fetch_refusal(call.body, code)
    return _refused(body_class(api_key, call.version, "response"), call.body, code)


def _refused(cls: Any, asked: Any, code: ErrorCode) -> Any:
    values: dict[str, Any] = {}
    for field in map(shape, fields(cls)):
        if field.kafka_type == "error_code":
            values[field.name] = code
        elif field.is_array and field.item is not None and _tells_errors(field.item):
            values[field.name] = tuple(_refused(field.item, one, code) for one in _items(asked))
        else:
            found = _named(field.name, asked)
            values[field.name] = _blank(field) if found is None else found
    return cls(**values)


def _tells_errors(cls: Any) -> bool:
    return any(
        field.kafka_type == "error_code" or (field.item is not None and _tells_errors(field.item))
        for field in map(shape, fields(cls))
    )


def _items(asked: Any) -> list[Any]:
    """What a request, or a part of it, asks of: topics, partitions, groups. The first list that has any."""
    for name in _attributes(asked):
        value = getattr(asked, name)
        if isinstance(value, list | tuple) and value:
            return list(value)
    return []


def _attributes(asked: Any) -> list[str]:
    if hasattr(asked, "__dataclass_fields__"):
        return [field.name for field in fields(asked)]
    return list(getattr(asked, "_fields", ()))


def _named(name: str, asked: Any) -> Any:
    """A field that says of what the answer speaks, as the request has it; None where it has none."""
    family = _INDEXES if name in _INDEXES else (name,) if name in _NAMES else ()
    if not _attributes(asked):  # a request that lists bare names or indexes
        plain = _INDEXES if isinstance(asked, int) else _NAMES[:4]
        return asked if name in plain else None
    return next((getattr(asked, one) for one in family if hasattr(asked, one)), None)


def _blank(field: FieldShape) -> Any:
    if field.is_nullable and not field.is_array:
        return None
    if field.kafka_type in ("int8", "int16", "int32", "int64"):
        return 0 if "throttle" in field.name else -1
    return default_of(field)


def _fetch_refusal(asked: Any, code: ErrorCode) -> FetchResponse:
    topics = []
    for (topic, index), _ in asked.wanted:
        name, topic_id = ("", topic) if isinstance(topic, UUID) else (topic, None)
        topics.append(FetchedTopic(name, topic_id, [FetchedPartition(index, code, -1)]))
    return FetchResponse(throttle_time_ms=0, error_code=0, session_id=0, topics=topics)
