"""Turn the lines of a file into records, for `strata tail`.

In: chunks of whole lines. Out: keys, values and the bytes of the file that each took. It never reads a file.
"""

import os
import re
from itertools import accumulate
from typing import NamedTuple

import msgspec

__all__ = ["LineRecords", "LineRules"]


class LineRecords(NamedTuple):
    """The records of a chunk, in order. `offsets`: where the first byte of each is in its file."""

    keys: list[bytes | None] | None
    """None where no record has a key."""
    values: list[bytes]
    offsets: list[int]


class LineRules(msgspec.Struct, frozen=True):
    """How lines become records. `begins`: the first line of a record; `key`: its first group is the key."""

    begins: re.Pattern[bytes] | None
    key: re.Pattern[bytes] | None
    as_json: bool
    host: str

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

    def records(self, data: bytes, path: str, offset: int) -> LineRecords:
        """Return the records of whole lines; `offset` is that of the chunk in its file.

        A million lines are read in a second or two, so each step is one pass over all of them.
        """
        values = self._values(data)
        offsets = list(accumulate((len(value) + 1 for value in values), initial=offset))
        offsets.pop()
        keys = None
        if self.key is not None:
            search, group = self.key.search, 1 if self.key.groups else 0
            found = map(search, values)
            keys = [None if match is None else match[group] for match in found]
        if self.as_json:
            values = self._rows(values, path, offsets)
        return LineRecords(keys, values, offsets)

    def _values(self, data: bytes) -> list[bytes]:
        lines = data.split(b"\n")
        if not lines[-1]:
            lines.pop()
        if self.begins is None or not lines:
            return lines
        match = self.begins.match
        firsts = [at for at, line in enumerate(lines) if not at or match(line)]
        return [
            lines[at] if end - at == 1 else b"\n".join(lines[at:end])
            for at, end in zip(firsts, [*firsts[1:], len(lines)], strict=True)
        ]

    def _rows(self, values: list[bytes], path: str, offsets: list[int]) -> list[bytes]:
        """Return each value as a JSON object. Bytes that are no UTF-8 become U+FFFD, also those of the path."""
        encode = msgspec.json.encode
        name = encode(os.fsencode(path).decode("utf-8", "replace")).replace(b"%", b"%%")
        host = encode(self.host).replace(b"%", b"%%")
        form = b'{"line": %b, "path": ' + name + b', "offset": %d, "host": ' + host + b"}"
        return [
            form % (encode(value.decode("utf-8", "replace")), at)
            for value, at in zip(values, offsets, strict=True)
        ]
