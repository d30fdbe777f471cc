"""Error answers to requests of any API.

In: a decoded request and an error code. Out: an answer of that version with this code in every error field. It never
executes the request.
"""

from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, Final, get_args
from uuid import UUID

from msgspec import NODEFAULT, Struct
from msgspec.structs import FieldInfo, fields

from stratalog.broker.network.dispatch import Api, Call, Handler
from stratalog.errors import ErrorCode
from stratalog.wire.apis import APIS
from stratalog.wire.ids import ZERO_ID

_PRODUCE: Final = 0
_NAMES: Final = ("name", "topic", "key", "group_id", "member_id", "topic_id", "group_instance_id")
_INDEXES: Final = ("partition_index", "index", "partition")


@dataclass(slots=True)
class Failure:
    """The error for the next `times` requests of one API."""

    code: ErrorCode
    times: int


def failing(api: Api, failure: Failure) -> Handler:
    """Return a handler of `api` that refuses as many requests as the failure has left, then works normally."""
    handler = api.handler

    def handle(call: Call[Any, Any]) -> Any:
        if failure.times <= 0:
            return handler.handle(call)
        failure.times -= 1
        return refusal(api.key, call, failure.code)

    return Handler(handle, handler.needs)


def refusal(api_key: int, call: Call[Any, Any], code: ErrorCode) -> Any:
    """Return the answer to `call` with `code` everywhere."""
    if api_key == _PRODUCE and call.body.acks == 0:
        return None
    return _refused(_response_class(api_key), call.body, code)


@cache
def _response_class(api_key: int) -> type[Struct]:
    name = "".join(word.title() for word in APIS[api_key].name.split("_"))
    module = import_module(f"stratalog.wire.messages.{APIS[api_key].name}")
    found: type[Struct] = getattr(module, f"{name}Response")
    return found


def _refused(cls: type[Struct], requested: Any, code: ErrorCode) -> Any:
    values: dict[str, Any] = {}
    for field in fields(cls):
        item = _item(field)
        if field.name.endswith("error_code"):
            values[field.name] = code
        elif item is not None and _has_error_codes(item):
            values[field.name] = [_refused(item, one, code) for one in _items(requested)]
        else:
            found = _named(field.name, requested)
            values[field.name] = _blank(field) if found is None else found
    return cls(**values)


def _item(field: FieldInfo) -> type[Struct] | None:
    """Return the class of an array's items, or None."""
    for one in (field.type, *get_args(field.type)):
        for inner in get_args(one):
            if isinstance(inner, type) and issubclass(inner, Struct):
                return inner
    return None


@cache
def _has_error_codes(cls: type[Struct]) -> bool:
    return any(
        field.name.endswith("error_code") or ((item := _item(field)) and _has_error_codes(item))
        for field in fields(cls)
    )


def _items(requested: Any) -> list[Any]:
    """Return the topics, partitions or groups of a request, or of a part of one: the first list with items."""
    for name in _attributes(requested):
        value = getattr(requested, name)
        if isinstance(value, list | tuple) and value:
            return list(value)
    return []


def _attributes(requested: Any) -> tuple[str, ...]:
    return tuple(getattr(requested, "__struct_fields__", ()) or getattr(requested, "_fields", ()))


def _named(name: str, requested: Any) -> Any:
    """Return the request's value for a naming field of the answer; None where the request has none."""
    family = _INDEXES if name in _INDEXES else (name,) if name in _NAMES else ()
    if not _attributes(requested):  # a request that lists bare names or indexes
        plain = _INDEXES if isinstance(requested, int) else _NAMES[:4]
        return requested if name in plain else None
    return next((getattr(requested, one) for one in family if hasattr(requested, one)), None)


def _blank(field: FieldInfo) -> Any:
    if field.type is int:
        return 0 if "throttle" in field.name else -1
    if field.default is not NODEFAULT:
        return field.default
    if type(None) in get_args(field.type) and field.name != "records":
        return None
    return {str: "", bytes: b"", bool: False, UUID: ZERO_ID}.get(field.type, ())
