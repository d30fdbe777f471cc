"""Parse the options of a Spark sink.

In: options as text, and the known names with their defaults. Out: a value for each known name, or a ValueError of one
line that names the option and the nearest known one. It knows no sink.
"""

import re
from collections.abc import Collection, Mapping
from difflib import get_close_matches

__all__ = ["SPARKS_OWN", "named_options", "positive", "seconds", "whole"]

SPARKS_OWN = ("checkpointlocation", "queryname")
"""Options of a query, in lower case, which Spark passes on to its sink."""

_SECONDS = re.compile(r"(\d+)(ms|s|m|h|)")
_UNITS_S = {"ms": 0.001, "s": 1, "": 1, "m": 60, "h": 3600}


def named_options(
    given: Mapping[str, str],
    defaults: Mapping[str, str],
    *,
    without_effect: Collection[str] = (),
    page: str,
) -> dict[str, str]:
    """Return `defaults`, overlaid with the given options. Names are case-insensitive, as everywhere in Spark.

    `without_effect`: names in lower case that are accepted and ignored, beside Spark's own. `page`: the documentation
    of the options. Raises ValueError for an unknown name.
    """
    options = dict(defaults)
    by_lower = {name.lower(): name for name in defaults}
    for name, value in given.items():
        option_name = by_lower.get(name.lower())
        if option_name is not None:
            options[option_name] = value
        elif name.lower() not in (taken := {*SPARKS_OWN, *without_effect}):
            names = dict(zip(taken, taken, strict=True)) | by_lower
            close = get_close_matches(name.lower(), names, n=1, cutoff=0.5)
            nearest = f"did you mean '{names[close[0]]}'?" if close else f"see {page}"
            raise ValueError(f"unknown option '{name}' of a sink: {nearest}")
    return options


def positive(options: Mapping[str, str], name: str) -> int:
    """Return the option as a whole number of at least 1. Raises ValueError."""
    text = options[name].strip()
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"option '{name}' is {text!r}: a whole number of at least 1 is needed")
    return int(text)


def whole(options: Mapping[str, str], name: str) -> int:
    """Return the option as a whole number. Raises ValueError."""
    text = options[name].strip()
    if not text.isdecimal():
        raise ValueError(f"option '{name}' is {text!r}: a whole number is needed")
    return int(text)


def seconds(options: Mapping[str, str], name: str) -> float:
    """Return the option in seconds, from `500ms`, `30s`, `30`, `2m`, `1h`. Raises ValueError."""
    text = options[name].strip()
    found = _SECONDS.fullmatch(text)
    if found is None or int(found[1]) == 0:
        raise ValueError(f"option '{name}' is {text!r}: a time like 500ms, 30s or 2m is needed")
    return int(found[1]) * _UNITS_S[found[2]]
