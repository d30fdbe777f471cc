"""Parse the options of a Spark sink.

In: options as text, and the known names with their defaults. Out: a value for each known name, or a BadOption of one
line that names the option and the nearest known one. It knows no sink.
"""

import re
from collections.abc import Collection, Mapping
from difflib import get_close_matches

from stratalog.errors import BadOption

__all__ = ["SPARKS_OWN", "named_options", "positive", "refuse_idle", "seconds", "whole"]

SPARKS_OWN = ("checkpointlocation", "queryname")
"""Options of a query, in lower case, which Spark passes on to its sink."""

_SECONDS = re.compile(r"(\d+)(ms|s|m|h|)")
_UNITS_S = {"ms": 0.001, "s": 1, "": 1, "m": 60, "h": 3600}


def named_options(
    given: Mapping[str, str], defaults: Mapping[str, str], *, page: str
) -> dict[str, str]:
    """Return `defaults`, overlaid with the given options. Names are case-insensitive, as everywhere in Spark.

    Options of Spark's own are ignored. `page`: the documentation of the options. Raises BadOption for an unknown name.
    """
    options = dict(defaults)
    by_lower = {name.lower(): name for name in defaults}
    for name, value in given.items():
        option_name = by_lower.get(name.lower())
        if option_name is not None:
            options[option_name] = value
        elif name.lower() not in SPARKS_OWN:
            close = get_close_matches(name.lower(), by_lower, n=1, cutoff=0.5)
            nearest = f"did you mean '{by_lower[close[0]]}'?" if close else f"see {page}"
            raise BadOption(f"unknown option '{name}' of a sink: {nearest}")
    return options


def refuse_idle(given: Mapping[str, str], idle: Collection[str], why: str) -> None:
    """Raise BadOption, which names them all, for given options that would have no effect (`idle`, in lower case)."""
    found = [f"'{name}'" for name in given if name.lower() in idle]
    if found:
        it, s = ("it", "") if len(found) == 1 else ("them", "s")
        raise BadOption(f"option{s} {', '.join(found)} would have no effect: {why}; remove {it}")


def positive(options: Mapping[str, str], name: str) -> int:
    """Return the option as a whole number of at least 1. Raises BadOption."""
    text = options[name].strip()
    if not text.isdecimal() or int(text) < 1:
        raise BadOption(f"option '{name}' is {text!r}: a whole number of at least 1 is needed")
    return int(text)


def whole(options: Mapping[str, str], name: str) -> int:
    """Return the option as a whole number. Raises BadOption."""
    text = options[name].strip()
    if not text.isdecimal():
        raise BadOption(f"option '{name}' is {text!r}: a whole number is needed")
    return int(text)


def seconds(options: Mapping[str, str], name: str) -> float:
    """Return the option in seconds, from `500ms`, `30s`, `30`, `2m`, `1h`. Raises BadOption."""
    text = options[name].strip()
    found = _SECONDS.fullmatch(text)
    if found is None or int(found[1]) == 0:
        raise BadOption(f"option '{name}' is {text!r}: a time like 500ms, 30s or 2m is needed")
    return int(found[1]) * _UNITS_S[found[2]]
