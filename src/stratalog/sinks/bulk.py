"""OpenSearch's bulk requests, without a connection: encode one, and read the result of each document.

In: documents; an answer's status and body. Out: a body; the documents to send again, and those refused for good. It
sends nothing and waits for nothing. Source: OpenSearch's Bulk API; it repeats the same failures as Filebeat's output.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from stratalog.errors import UserError
from stratalog.sinks.documents import Document

__all__ = [
    "BULK_QUERY",
    "TOO_LARGE",
    "Answered",
    "Refused",
    "answered",
    "batched",
    "bulk_body",
    "error_text",
    "is_passing",
    "retry_delay_s",
]

BULK_BYTES_MAX: Final = 8 << 20
"""A request grows no further than this and one document: a tenth of what OpenSearch takes (http.max_content_length)."""

TOO_LARGE: Final = 413
_TOO_MANY: Final = 429
_BAD_DOCUMENT: Final = 400

# Of each document only what became of it, not all that OpenSearch could say.
BULK_QUERY: Final = "filter_path=errors,items.*.status,items.*.error"


@dataclass(frozen=True, slots=True)
class Refused:
    """A document that the index will never take as it is."""

    document: Document
    kind: str
    reason: str


@dataclass(frozen=True, slots=True)
class Answered:
    """`again`: documents that were not taken for now, with `why` of one of them."""

    again: Sequence[Document]
    refused: Sequence[Refused]
    why: str


class _Cause(msgspec.Struct, frozen=True):
    type: str = "unknown"
    reason: str | None = None


class _Error(msgspec.Struct, frozen=True):
    type: str = "unknown"
    reason: str | None = None
    caused_by: _Cause | None = None

    def text(self) -> str:
        cause = self.caused_by
        deeper = f" ({cause.reason})" if cause is not None and cause.reason else ""
        return f"{self.reason or self.type}{deeper}"


class _Item(msgspec.Struct, frozen=True):
    status: int
    error: _Error | None = None


class _Bulk(msgspec.Struct, frozen=True):
    errors: bool
    items: list[dict[str, _Item]]


class _Failure(msgspec.Struct, frozen=True):
    error: _Error | str


def is_passing(status: int) -> bool:
    """Return whether what failed with this HTTP status may work later: too many requests, or the server's own
    trouble.
    """
    return status == _TOO_MANY or status >= 500


def retry_delay_s(attempt: int, init_s: float, max_s: float, chance: float) -> float:
    """Return how long to wait before the attempt after `attempt` (from 0) failures; `chance` in [0.5, 1] keeps many
    writers from coming back together.
    """
    return min(max_s, init_s * float(1 << min(attempt, 30))) * chance


def batched(documents: Iterable[Document], count_max: int) -> Iterator[list[Document]]:
    """Yield documents in lists of at most `count_max`, and of no more bytes than a request should have."""
    batch: list[Document] = []
    size = 0
    for document in documents:
        batch.append(document)
        size += len(document.source)
        if len(batch) == count_max or size >= BULK_BYTES_MAX:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def bulk_body(documents: Iterable[Document]) -> bytes:
    """Return each document behind the line that names it; `index` creates or overwrites."""
    lines = []
    for document in documents:
        lines += [b'{"index":{"_id":', msgspec.json.encode(document.id), b"}}\n"]
        lines += [document.source, b"\n"]
    return b"".join(lines)


def answered(index: str, documents: Sequence[Document], status: int, body: bytes) -> Answered:
    """Return what an answer to a bulk request says of each of its documents. TOO_LARGE is for the caller.

    Raises UserError where it is not the documents that are wrong: no such index, no right to write, index closed.
    """
    if is_passing(status):
        return Answered(documents, (), f"{status} {error_text(body)}")
    if status != 200:
        raise UserError(f"index {index}: {status} {error_text(body)}")
    try:
        bulk = msgspec.json.decode(body, type=_Bulk)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Answered(documents, (), f"200 {error_text(body)}")  # of something in between
    if not bulk.errors:
        return Answered((), (), "")
    again, refused, why = [], [], ""
    for document, named in zip(documents, bulk.items, strict=True):
        (item,) = named.values()
        if item.status < 300:
            continue
        error = item.error or _Error()
        if is_passing(item.status):
            again.append(document)
            why = f"{item.status} {error.text()}"
        elif item.status == _BAD_DOCUMENT:
            refused.append(Refused(document, error.type, error.text()))
        else:
            raise UserError(f"index {index}, {document.record}: {item.status} {error.text()}")
    return Answered(again, refused, why)


def error_text(body: bytes) -> str:
    """Return what an answer that is no success says, in one line; a proxy's answers are not OpenSearch's."""
    try:
        error: Any = msgspec.json.decode(body, type=_Failure).error
    except (msgspec.DecodeError, UnicodeDecodeError):
        return " ".join(body[:200].decode(errors="replace").split())
    return error if isinstance(error, str) else error.text()
