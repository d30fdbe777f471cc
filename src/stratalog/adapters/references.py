"""Read secrets that properties name instead of containing them.

In: properties with `${env:NAME}` or `${file:PATH:KEY}`, as Kafka's config providers write them (KIP-297). Out: the
properties with the values; UserError that names the reference, never a value.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from stratalog.config import parse_properties
from stratalog.errors import NotInEnvironment, UserError

__all__ = ["resolved"]

_REFERENCE: Final = re.compile(r"\$\{(env|file):([^}]*)\}")


def resolved(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties with every reference replaced. Raises UserError."""
    return {
        name: _REFERENCE.sub(lambda found, name=name: _value(name, *found.groups()), text)  # type: ignore[misc]
        for name, text in properties.items()
    }


def _value(name: str, kind: str, place: str) -> str:
    if kind == "env":
        if place not in os.environ:
            raise NotInEnvironment(f"{name}: the environment has no variable {place}")
        return os.environ[place]
    path, colon, key = place.rpartition(":")
    if not colon:
        raise UserError(f"{name}: ${{file:{place}}} is not accepted; accepted: ${{file:PATH:KEY}}")
    try:
        found = parse_properties(Path(path).read_text())
    except OSError as error:
        raise UserError(f"{name}: cannot read {path}: {error.strerror or error}") from error
    if key not in found:
        raise UserError(f"{name}: {path} has no key {key}")
    return found[key]
