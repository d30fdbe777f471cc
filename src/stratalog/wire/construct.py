"""kio's classes, loaded when first used and easy to fill.

In: an API key and version, then names and plain values. Out: instances of the classes of exactly that version. It never
accepts a name that no version of the message has.

A handler is written once for all versions of its API: it names every field, and those that a version does not have are
dropped. Milliseconds may be given for durations and times, ints for error codes, lists for tuples.
"""

import re
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from importlib import import_module
from pkgutil import get_data
from types import ModuleType
from typing import Any, Final, Literal

from kio.schema.errors import ErrorCode

from stratalog.wire.apis import APIS
from stratalog.wire.fields import FieldShape, ms_to_datetime, ms_to_timedelta, shape

__all__ = ["EntityTypes", "body_class", "request_types", "response_types"]

Side = Literal["request", "response"]
_DECLARED: Final = re.compile(r"^class (\w+)|^    ([a-z]\w*): ", re.MULTILINE)
"""A class of a generated module, or a field of it."""
_MILLISECONDS: Final[dict[str, Callable[[int], Any]]] = {
    "timedelta_i32": ms_to_timedelta,
    "timedelta_i64": ms_to_timedelta,
    "datetime_i64": ms_to_datetime,
}


@cache
def _module(api_key: int, version: int, side: Side) -> ModuleType:
    return import_module(f"kio.schema.{APIS[api_key].name}.v{version}.{side}")


@cache
def body_class(api_key: int, version: int, side: Side) -> type[Any]:
    """The class of a message's body; a version that does not exist is a bug (ImportError, KeyError)."""
    words = APIS[api_key].name.split("_")
    name = "".join(word.title() for word in words) + side.title()
    cls: type[Any] = getattr(_module(api_key, version, side), name)
    return cls


class EntityTypes:
    """Attribute access gives a constructor for each class of one message: `response(3, 12).MetadataResponse(...)`.

    A constructor takes the fields by name. It fills in `throttle_time` (0) and kio's own defaults; another field left
    out is a TypeError. Names that only other versions have are dropped, and a class that only they have makes None.
    """

    def __init__(self, api_key: int, version: int, side: Side) -> None:
        self._api_key = api_key
        self._version = version
        self._side: Side = side

    def __getattr__(self, name: str) -> Callable[..., Any]:
        # Reached once a name: afterwards the constructor is an ordinary attribute.
        cls = getattr(_module(self._api_key, self._version, self._side), name, None)
        if not is_dataclass(cls):
            known = name in _known_names(self._api_key, self._side)
            if name.startswith("_") or not known:
                raise AttributeError(f"no version of {APIS[self._api_key].name} has {name}")
            constructor: Callable[..., Any] = _nothing
        else:
            constructor = _constructor(cls, self._api_key, self._side)
        self.__dict__[name] = constructor
        return constructor


@cache
def request_types(api_key: int, version: int) -> EntityTypes:
    """The constructors of this request's classes."""
    return EntityTypes(api_key, version, "request")


@cache
def response_types(api_key: int, version: int) -> EntityTypes:
    """The constructors of this response's classes."""
    return EntityTypes(api_key, version, "response")


def _nothing(**_values: Any) -> None:
    return None


@cache
def _known_names(api_key: int, side: Side) -> frozenset[str]:
    """Every class of a message, and every field as Class.field, of all versions.

    Read off the modules' text: running all 14 versions of Metadata for this took a first request a sixth of a start.
    """
    api = APIS[api_key]
    names = set()
    for version in range(api.oldest, api.newest + 1):
        source = get_data(f"kio.schema.{api.name}", f"v{version}/{side}.py")
        assert source is not None, "kio has its sources with it"
        declaring = ""
        for cls, field in _DECLARED.findall(source.decode()):
            declaring = cls or declaring
            names.add(cls or f"{declaring}.{field}")
    return frozenset(names)


def _constructor(cls: Any, api_key: int, side: Side) -> Callable[..., Any]:
    shapes = [shape(field) for field in fields(cls)]
    setters = {field.name: cls.__dict__[field.name].__set__ for field in shapes}
    converters = {field.name: convert for field in shapes if (convert := _converter(field))}
    optional = {field.name: field.default for field in shapes if field.default is not MISSING}
    if "throttle_time" in setters:
        optional["throttle_time"] = ms_to_timedelta(0)
    required = frozenset(setters) - frozenset(optional)
    checked: set[str] = set()  # Names that another version has: they are looked up once.
    new = cls.__new__

    def drop(name: str) -> None:
        if name not in checked:
            if f"{cls.__name__}.{name}" not in _known_names(api_key, side):
                raise TypeError(f"no version of {cls.__name__} has a field {name}")
            checked.add(name)

    def construct(**values: Any) -> Any:
        entity = new(cls)
        missing = len(setters)
        for name, value in values.items():
            setter = setters.get(name)
            if setter is None:
                drop(name)
                continue
            convert = converters.get(name)
            setter(entity, value if convert is None else convert(value))
            missing -= 1
        if missing:
            left = setters.keys() - values.keys()
            if not required.isdisjoint(left):
                raise TypeError(f"{cls.__name__} without {', '.join(sorted(required & left))}")
            for name in left:
                setters[name](entity, optional[name])
        return entity

    return construct


def _converter(field: FieldShape) -> Callable[[Any], Any] | None:
    if field.is_array:
        return lambda value: value if value is None else tuple(value)
    if field.kafka_type == "error_code":
        return ErrorCode
    convert = _MILLISECONDS.get(field.kafka_type)
    if convert is not None:
        milliseconds = convert
        return lambda value: milliseconds(value) if isinstance(value, int) else value
    return None
