"""The types of settings: accepted values, and how text becomes a value.

In: the text of one setting. Out: a typed value, or `BadValue` with the accepted values. It does not know where the text
comes from, and reads nothing.

Types and their codes are Kafka's (`org.apache.kafka.common.config.ConfigDef.Type`, KIP-569 for the codes).
"""

from collections.abc import Callable, Mapping, Sequence
from enum import Enum, IntEnum
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from stratalog.config.shown import shown

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1

Value = int | float | bool | str | tuple[str, ...] | None


class BadValue(ValueError):
    """The text is not a value of the setting; the message says what is accepted."""


class Kind(IntEnum):
    """A setting's type; the number is what DescribeConfigs answers (KIP-569)."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class Dynamic(Enum):
    """Whether a running broker takes a new value (KIP-226)."""

    READ_ONLY = "read-only"
    PER_BROKER = "per-broker"
    CLUSTER_WIDE = "cluster-wide"


_TRIMMED: Final = "".join(map(chr, range(0x21)))
_BESIDE_COMMA: Final = " \t\n\v\f\r"
_DECIMAL: Final = frozenset("0123456789+-.eE")
_SUFFIXES: Final = frozenset("fFdD")
INTEGER_RANGES: Mapping[Kind, tuple[int, int]] = MappingProxyType(
    {
        Kind.SHORT: (-(2**15), 2**15 - 1),
        Kind.INT: (-(2**31), INT_MAX),
        Kind.LONG: (-(2**63), LONG_MAX),
    }
)


class Between(Struct, frozen=True):
    """Numbers from `low` to `high`, both included; None is the type's own limit. `also` are further single values."""

    low: float | None = None
    high: float | None = None
    also: tuple[int, ...] = ()


class OneOf(Struct, frozen=True):
    """One of these words (for a list: each item is one of them)."""

    words: tuple[str, ...]


class Shaped(Struct, frozen=True):
    """Text that `fits` accepts; `fits` raises BadValue for any other. `accepted` describes the form for people."""

    fits: Callable[[Sequence[str]], None]
    accepted: str


Check = Between | OneOf | Shaped | None


class Setting(Struct, frozen=True):
    """One setting by Kafka's name (or ours), as the reference documentation shows it.

    `default` is already a value. `kafka_default` is given only where ours differs on purpose, and `doc` then says why.
    `ours` marks names that Apache Kafka does not have; `inert` is the reason why an accepted setting has no effect yet.
    DescribeConfigs shows an `unlisted` setting only where it is set, as Kafka does with internal names.
    """

    name: str
    kind: Kind
    default: Value
    doc: str
    check: Check = None
    dynamic: Dynamic = Dynamic.READ_ONLY
    ours: bool = False
    inert: str = ""
    kafka_default: str = ""
    unlisted: bool = False

    @property
    def accepted(self) -> str:
        """The accepted values, for error messages and the documentation."""
        match self.check:
            case OneOf(words):
                listed = ", ".join(word or "empty" for word in words)
                return f"{'items of' if self.kind is Kind.LIST else 'one of'} {listed}"
            case Shaped(_, accepted):
                return accepted
            case Between():
                return self._accepted_numbers(self.check)
            case None:
                return {
                    Kind.BOOLEAN: "true or false",
                    Kind.STRING: "text",
                    Kind.CLASS: "the name of a class",
                    Kind.PASSWORD: "text",
                    Kind.LIST: "items separated by commas",
                }.get(self.kind) or self._accepted_numbers(Between())

    def _accepted_numbers(self, check: Between) -> str:
        what = "a number" if self.kind is Kind.DOUBLE else "a whole number"
        low, high = INTEGER_RANGES.get(self.kind, (None, None))
        bounds = (
            low if check.low is None else check.low,
            high if check.high is None else check.high,
        )
        words = zip(("from", "to" if bounds[0] is not None else "up to"), bounds, strict=True)
        span = "".join(f" {word} {bound}" for word, bound in words if bound is not None)
        return f"{what}{span}" + "".join(f" or {extra}" for extra in check.also)

    def parse(self, text: str) -> Value:
        """Return the value of `text`. Raises BadValue with the name, the text without secrets, and the accepted
        values.
        """
        stripped = trimmed(text)
        try:
            return self._parse(stripped)
        except ValueError as error:
            why = (
                f" ({error})"
                if isinstance(error, BadValue) and error.args and self.kind is not Kind.PASSWORD
                else ""
            )
            value = "this value" if self.kind is Kind.PASSWORD else repr(shown(stripped))
            message = f"{self.name}: {value} is not accepted{why}; accepted: {self.accepted}"
            raise BadValue(message) from None

    def stored(self, text: str) -> Value:
        """Return the value of a text in the metadata log; None where it counts as not set.

        Another release, or Apache Kafka, accepted the text: a node must start with it. A list may have empty items.
        """
        if self.kind is Kind.LIST:
            text = ",".join(filter(None, list_items(text)))
        try:
            return self.parse(text)
        except BadValue:
            return None

    def _parse(self, text: str) -> Value:
        match self.kind:
            case Kind.BOOLEAN:
                if text.upper() not in {"TRUE", "FALSE"}:
                    raise BadValue
                return text.upper() == "TRUE"
            case Kind.INT | Kind.SHORT | Kind.LONG:
                return self._within(_whole(text))
            case Kind.DOUBLE:
                return self._within(_double(text))
            case Kind.LIST:
                items = list_items(text)
                if "" in items:
                    raise BadValue
                self._check_words(items)
                return items
            case Kind.STRING | Kind.CLASS | Kind.PASSWORD:
                self._check_words((text,))
                return text

    def _within(self, number: float) -> float:
        check = self.check if isinstance(self.check, Between) else Between()
        low, high = INTEGER_RANGES.get(self.kind, (float("-inf"), float("inf")))
        low, high = (
            low if check.low is None else check.low,
            high if check.high is None else check.high,
        )
        if number not in check.also and not low <= number <= high:
            raise BadValue
        return number

    def _check_words(self, words: tuple[str, ...]) -> None:
        if isinstance(self.check, OneOf) and any(word not in self.check.words for word in words):
            raise BadValue
        if isinstance(self.check, Shaped):
            self.check.fits(words)

    def text(self, value: Value) -> str | None:
        """Return a value as Kafka's tools print it: the inverse of `parse`; None stays None."""
        match value:
            case None:
                return None
            case bool():
                return "true" if value else "false"
            case tuple():
                return ",".join(value)
            case _:
                return str(value)


def trimmed(text: str) -> str:
    """Return the text without control characters and blanks at its ends, as Java's `String.trim` does."""
    return text.strip(_TRIMMED)


def list_items(text: str) -> tuple[str, ...]:
    """Return the items of a list, each once and in order. An item may be empty; an empty text has none (KIP-1161)."""
    found = [item.strip(_BESIDE_COMMA) for item in trimmed(text).split(",")]
    return () if found == [""] else tuple(dict.fromkeys(found))


def _double(text: str) -> float:
    """Parse as Java's parseDouble, but refuse NaN, which no limit bounds, and the hexadecimal form."""
    if text.removeprefix("-").removeprefix("+") == "Infinity":
        return float(text)
    number = text[:-1] if text[-1:] in _SUFFIXES else text
    if not _DECIMAL.issuperset(number):
        raise BadValue
    return float(number)


def _whole(text: str) -> int:
    """Parse as Java's parseLong: digits with an optional sign, no underscores or blanks."""
    if not text.removeprefix("-").removeprefix("+").isdecimal():
        raise BadValue
    return int(text)
