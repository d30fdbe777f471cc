"""Collect the functions of one module, each once, with their imports.

In: the text of functions, by a key for each distinct one. Out: their names, the text in order, the imports and layouts.
It knows no schema.
"""

import re
from dataclasses import dataclass, field

__all__ = ["Functions", "local"]

_RESERVED = {
    "budget",
    "count",
    "cuts",
    "data",
    "end",
    "high",
    "item",
    "items",
    "left",
    "out",
    "position",
    "size",
    "tag",
    "tags",
    "whole",
}
_LETTERS = {"T": "?", "U": "16s"}


def local(name: str) -> str:
    """Return a name for the local variable of a field that no other local has."""
    return name + "_" if name in _RESERVED else name


@dataclass
class Functions:
    """`text` of one module's functions, in the order of their calls; `imports` is module -> names."""

    text: list[str] = field(default_factory=list)
    names: dict[object, str] = field(default_factory=dict)
    layouts: set[str] = field(default_factory=set)
    imports: dict[str, set[str]] = field(default_factory=dict)

    def use(self, name: str, module: str = "stratalog.wire.message_fields") -> str:
        """Import `name`; returns it."""
        self.imports.setdefault(module, set()).add(name)
        return name

    def layout(self, letters: str, verb: str) -> str:
        """Return the name of the function that reads or packs a run of values of fixed size."""
        name = f"_{verb}_{letters}"
        self.layouts.add(name)
        return name


def layout_lines(names: set[str]) -> list[str]:
    """Return the definitions of the functions that `Functions.layout` named."""
    lines = []
    for name in sorted(names):
        _, verb, letters = name.split("_")
        packed = re.sub(r"[TU]", lambda found: _LETTERS[found[0]], letters)
        method = "unpack_from" if verb == "read" else "pack"
        lines.append(f'{name} = Layout(">{packed}").{method}')
    return lines


def size_of(letters: str) -> int:
    """Return the bytes of a run."""
    sizes = {
        "T": 1,
        "b": 1,
        "B": 1,
        "x": 1,
        "h": 2,
        "H": 2,
        "i": 4,
        "I": 4,
        "q": 8,
        "d": 8,
        "U": 16,
    }
    return sum(sizes[letter] for letter in letters)
