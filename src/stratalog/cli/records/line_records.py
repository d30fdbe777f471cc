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
    size: int
    """How many bytes of the chunk these records took: the last record may go on behind it."""


class LineRules(msgspec.Struct, frozen=True):
    """How lines become records. `begins`: the first line of a record; `key`: its first group is the key."""

    begins: re.Pattern[bytes] | None
    key: re.Pattern[bytes] | None
    as_json: bool
    host: str

    def records(
        self,
        data: bytes,
        path: str,
        offset: int,
        bytes_max: int,
        *,
        is_last: bool,
        is_full: bool,
    ) -> LineRecords:
        """Return the records of whole lines; `offset` is that of the chunk in its file.

        Without `is_last` the last record of several lines may go on: it is left out, unless a chunk has no more room. A
        record of more than `bytes_max` goes in parts. A million lines are read in a second or two, so each step is one
        pass over all of them.
        """
        values = self._values(data, bytes_max, is_last=is_last, is_full=is_full)
        offsets = list(accumulate((len(value) + 1 for value in values), initial=offset))
        size = min(offsets.pop() - offset, len(data))
        keys = None
        if self.key is not None:
            search, group = self.key.search, 1 if self.key.groups else 0
            found = map(search, values)
            keys = [None if match is None else match[group] for match in found]
        if self.as_json:
            values = self._rows(values, path, offsets)
        return LineRecords(keys, values, offsets, size)

    def _values(self, data: bytes, bytes_max: int, *, is_last: bool, is_full: bool) -> list[bytes]:
        lines = data.split(b"\n")
        if not lines[-1]:
            lines.pop()
        if self.begins is None or not lines:
            return lines
        match = self.begins.match
        firsts = [at for at, line in enumerate(lines) if not at or match(line)]
        ends = [*firsts[1:], len(lines)]
        if not is_last and (firsts[-1] or not is_full):
            firsts.pop()  # it may go on
        values: list[bytes] = []
        for at, end in zip(firsts, ends, strict=False):
            if end - at == 1:
                values.append(lines[at])
            elif len(value := b"\n".join(lines[at:end])) <= bytes_max:
                values.append(value)
            else:
                values += _parts(lines[at:end], bytes_max)
        return values

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


def _parts(lines: list[bytes], bytes_max: int) -> list[bytes]:
    """Return lines joined to parts of at most `bytes_max`, where the lines themselves are no longer."""
    parts = [lines[0]]
    for line in lines[1:]:
        if len(parts[-1]) + 1 + len(line) <= bytes_max:
            parts[-1] += b"\n" + line
        else:
            parts.append(line)
    return parts
