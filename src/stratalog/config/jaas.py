"""Read `sasl.jaas.config` as Kafka writes it.

In: the text. Out: the login module's name and its options; BadValue without the text, which has passwords. It runs no
module.
"""

import re
from typing import Final, NamedTuple

from stratalog.config.kinds import BadValue

__all__ = ["Jaas", "read_jaas"]

_ENTRY: Final = re.compile(
    r"\s*(?P<module>[\w.$]+)\s+(?i:required|requisite|sufficient|optional)(?P<options>(?:\s+[\w.$-]+\s*=\s*"
    r"(?:\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|[^\s;\"']+))*)\s*;\s*"
)
_OPTION: Final = re.compile(
    r"([\w.$-]+)\s*=\s*(?:\"((?:[^\"\\]|\\.)*)\"|'((?:[^'\\]|\\.)*)'|([^\s;\"']+))"
)
_ESCAPE: Final = re.compile(r"\\(.)")


class Jaas(NamedTuple):
    """`module` is the class's name without its package. The options have secrets."""

    module: str
    options: dict[str, str]


def read_jaas(text: str) -> Jaas:
    """Return the one entry. Raises BadValue."""
    found = _ENTRY.fullmatch(text)
    if found is None:
        raise BadValue
    options = {
        name: _ESCAPE.sub(r"\1", double or single) or plain
        for name, double, single, plain in _OPTION.findall(found["options"])
    }
    return Jaas(found["module"].rpartition(".")[2], options)
