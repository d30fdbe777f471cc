"""Decode the keys and values of rows by a schema registry, on a thread of its own.

In: rows, a registry. Out: what to show of each key and value: JSON with its schema, or why it could not be decoded. A
registry that is away costs a page one wait, and the page says so.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from stratalog.client.json_text import indented
from stratalog.client.schemas import Decoded, Schemas, Undecoded
from stratalog.console.reading import Row
from stratalog.errors import Unavailable, UserError
from stratalog.ports import Worker

__all__ = ["Registry", "decoded_shown"]

_Result = Decoded | Undecoded | None


@dataclass(frozen=True, slots=True)
class Registry:
    """A schema registry, and the thread that waits for it."""

    schemas: Schemas
    waiting: Worker

    async def decode(self, rows: Sequence[Row]) -> list[tuple[_Result, _Result]]:
        """Return the decoded key and value of each row; None for bytes without a schema."""
        return await self.waiting.submit(lambda: self._decode(rows))

    def _decode(self, rows: Sequence[Row]) -> list[tuple[_Result, _Result]]:
        failure = ""

        def one(data: bytes | None) -> _Result:
            nonlocal failure
            if failure:
                return _UNASKED if data and data[0] == 0 else None
            try:
                return self.schemas.decode(data)
            except (Unavailable, UserError) as error:
                failure = f"{error}; check --registry, and that the registry runs"
                return Undecoded(-1, failure)

        return [(one(row.record.key), one(row.record.value)) for row in rows]


_UNASKED: Final = Undecoded(-1, "the registry was not asked again for this page")


def decoded_shown(result: _Result, raw: dict[str, Any], bytes_max: int) -> dict[str, Any]:
    """Return what to show of bytes, which `raw` shows without the registry."""
    match result:
        case Decoded():
            text = indented(result.text)
            cut = text[:bytes_max]
            named = f"{result.schema} ({result.kind.lower()}, schema {result.schema_id})"
            return {
                "text": cut,
                "form": result.kind.lower(),
                "bytes": raw["bytes"],
                "is_cut": len(cut) < len(text),
                "schema": named,
            }
        case Undecoded():
            return {**raw, "problem": result.reason}
        case None:
            return raw
