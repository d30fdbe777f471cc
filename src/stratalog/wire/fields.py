"""What the fields of kio's classes hold, and how values of fixed size are packed.

In: a field of a kio class. Out: its shape, its default, its `struct` code and conversions. It reads and writes nothing.
"""

from collections.abc import Callable
from dataclasses import MISSING, Field, fields, is_dataclass
from datetime import UTC, datetime, timedelta
from types import NoneType, UnionType
from typing import Any, Final, NamedTuple, Union, get_args, get_origin
from uuid import UUID

from kio.schema.errors import ErrorCode

from stratalog.wire.ids import ZERO_ID

__all__ = [
    "FIXED",
    "FieldShape",
    "default_of",
    "is_fixed",
    "ms_to_datetime",
    "ms_to_timedelta",
    "runs",
    "shape",
]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_TIMEDELTA_MS_MIN: Final = timedelta.min // _MILLISECOND
_TIMEDELTA_MS_MAX: Final = timedelta.max // _MILLISECOND
_DATETIME_MS_MAX: Final = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MILLISECOND


class FieldShape(NamedTuple):
    """One field of a kio class: `item` is the nested class, or None where `kafka_type` says it all."""

    name: str
    kafka_type: str
    item: Any
    is_array: bool
    is_nullable: bool
    tag: int | None
    default: Any


def shape(field: Field[Any]) -> FieldShape:
    """What `field` of a kio class holds."""
    declared, is_nullable = _without_none(field.type)
    is_array = get_origin(declared) is tuple
    if is_array:
        declared, _ = _without_none(get_args(declared)[0])
    item = declared if is_dataclass(declared) else None
    return FieldShape(
        name=field.name,
        kafka_type=field.metadata.get("kafka_type", ""),
        item=item,
        is_array=is_array,
        is_nullable=is_nullable,
        tag=field.metadata.get("tag"),
        default=field.default,
    )


def _without_none(declared: Any) -> tuple[Any, bool]:
    if get_origin(declared) in (UnionType, Union):
        kept = [one for one in get_args(declared) if one is not NoneType]
        return kept[0], len(kept) < len(get_args(declared))
    return declared, False


def ms_to_timedelta(milliseconds: int) -> timedelta:
    """The duration, or the longest there is."""
    return timedelta(milliseconds=max(_TIMEDELTA_MS_MIN, min(milliseconds, _TIMEDELTA_MS_MAX)))


def ms_to_datetime(milliseconds: int) -> datetime | None:
    """The point in time (None for -1), or the last there is."""
    if milliseconds == -1:
        return None
    return _EPOCH + timedelta(milliseconds=max(0, min(milliseconds, _DATETIME_MS_MAX)))


def _from_timedelta(value: timedelta) -> int:
    return value // _MILLISECOND


def _from_datetime(value: datetime | None) -> int:
    return -1 if value is None else (value - _EPOCH) // _MILLISECOND


def _to_error(code: int) -> ErrorCode:
    try:
        return ErrorCode(code)
    except ValueError:  # A newer broker knows errors that we do not.
        return ErrorCode.unknown_server_error


def _to_uuid(raw: bytes) -> UUID | None:
    return None if raw == ZERO_ID.bytes else UUID(bytes=raw)


def _from_uuid(value: UUID | None) -> bytes:
    return (ZERO_ID if value is None else value).bytes


# kafka type -> struct format, what turns the unpacked into the value, and the value into what is packed.
FIXED: Final[dict[str, tuple[str, Callable[[Any], Any] | None, Callable[[Any], Any] | None]]] = {
    "int8": ("b", None, None),
    "int16": ("h", None, None),
    "int32": ("i", None, None),
    "int64": ("q", None, None),
    "uint8": ("B", None, None),
    "uint16": ("H", None, None),
    "uint32": ("I", None, None),
    "uint64": ("Q", None, None),
    "float64": ("d", None, None),
    "bool": ("?", None, None),
    "error_code": ("h", _to_error, None),
    "timedelta_i32": ("i", ms_to_timedelta, _from_timedelta),
    "timedelta_i64": ("q", ms_to_timedelta, _from_timedelta),
    "datetime_i64": ("q", ms_to_datetime, _from_datetime),
    "uuid": ("16s", _to_uuid, _from_uuid),
}

# What an absent tagged field is where its class names no default.
_IMPLICIT: Final[dict[str, Any]] = {
    **{kind: 0 for kind in FIXED if kind[0] in "iu" and kind != "uuid"},
    "float64": 0.0,
    "bool": False,
    "error_code": ErrorCode.none,
    "timedelta_i32": timedelta(0),
    "timedelta_i64": timedelta(0),
    "datetime_i64": _EPOCH,
    "uuid": None,
    "string": "",
    "bytes": b"",
}


def is_fixed(field: FieldShape) -> bool:
    """Whether every value of the field takes the same number of bytes (`FIXED`)."""
    return not field.is_array and field.item is None and field.kafka_type in FIXED


def default_of(field: FieldShape) -> Any:
    """What a tagged field is where it is absent."""
    if field.default is not MISSING:
        return field.default
    if field.is_array:
        return ()
    if field.item is not None:
        return field.item(**{one.name: default_of(one) for one in map(shape, fields(field.item))})
    return _IMPLICIT[field.kafka_type]


def runs(shapes: list[FieldShape]) -> list[list[FieldShape]]:
    """Fields in order, neighbours of fixed size together."""
    runs: list[list[FieldShape]] = []
    for field in shapes:
        if runs and is_fixed(field) and is_fixed(runs[-1][-1]):
            runs[-1].append(field)
        else:
            runs.append([field])
    return runs
