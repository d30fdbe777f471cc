"""Turn the lines of a file into records, for `strata tail`.

In: chunks of whole lines. Out: keys, values and the bytes of the file that each took. It never reads a file.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["LineRecord", "LineRules"]


class LineRecord(NamedTuple):
    """A record, and where its first byte is in its file."""

    key: bytes | None
    value: bytes
    offset: int


@dataclass(frozen=True, slots=True)
class LineRules:
    """How lines become records. `begins`: the first line of a record; `key`: its first group is the key."""

    begins: re.Pattern[bytes] | None
    key: re.Pattern[bytes] | None
    as_json: bool
    host: str

    @property
    def is_plain(self) -> bool:
        """Whether each line is a record as it is."""
        return self.begins is None and self.key is None and not self.as_json

    def whole(self, data: bytes, *, is_last: bool, bytes_max: int) -> int:
        """Return how many bytes of the chunk are whole records: without `is_last` the last one may go on.

        A record of more than `bytes_max` is not waited for.
        """
        if self.begins is None or is_last:
            return len(data)
        end = data.rfind(b"\n", 0, len(data) - 1) + 1
        while end > 0:
            if self.begins.match(data, end):
                return end
            end = data.rfind(b"\n", 0, end - 1) + 1
        return len(data) if len(data) >= bytes_max else 0

    def records(self, data: bytes, path: str, offset: int) -> Iterator[LineRecord]:
        """Yield the records of whole lines; `offset` is that of the chunk in its file."""
        for value, at in self._values(data, offset):
            key = None
            if self.key is not None:
                found = self.key.search(value)
                if found is not None:
                    key = found[1] if self.key.groups else found[0]
            whole = value
            if self.as_json:
                row = {
                    "line": value.decode("utf-8", "replace"),
                    "path": path,
                    "offset": at,
                    "host": self.host,
                }
                whole = json.dumps(row, ensure_ascii=False).encode()
            yield LineRecord(key, whole, at)

    def _values(self, data: bytes, offset: int) -> Iterator[tuple[bytes, int]]:
        held: list[bytes] = []
        began = at = offset
        for line in _lines(data):
            if held and (self.begins is None or self.begins.match(line)):
                yield b"\n".join(held), began
                held, began = [], at
            held.append(line)
            at += len(line) + 1
        if held:
            yield b"\n".join(held), began


def _lines(data: bytes) -> list[bytes]:
    """Return the lines without their ends."""
    lines = data.split(b"\n")
    if not lines[-1]:
        lines.pop()
    return lines
