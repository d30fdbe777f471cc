"""OpenSearch's bulk requests, without a connection: encode one, and read the result of each document.

In: documents; an answer's status and body. Out: a body; the documents to send again, and those refused permanently. It
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
"""Size at which a request gets no further document: a tenth of OpenSearch's limit (http.max_content_length)."""

TOO_LARGE: Final = 413
_TOO_MANY: Final = 429
_BAD_DOCUMENT: Final = 400

# Request only the result of each document, and no details.
BULK_QUERY: Final = "filter_path=errors,items.*.status,items.*.error"


@dataclass(frozen=True, slots=True)
class Refused:
    """A document that the index refuses permanently."""

    document: Document
    kind: str
    reason: str


@dataclass(frozen=True, slots=True)
class Answered:
    """`again`: documents to send again, with the reason `why` of one of them."""

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
    """Return whether a request that failed with this HTTP status may succeed later: too many requests, or a server
    error.
    """
    return status == _TOO_MANY or status >= 500


def retry_delay_s(attempt: int, init_s: float, max_s: float, chance: float) -> float:
    """Return how long to wait before the attempt after `attempt` (from 0) failures; `chance` in [0.5, 1] keeps many
    writers from coming back together.
    """
    return min(max_s, init_s * float(1 << min(attempt, 30))) * chance


def batched(documents: Iterable[Document], count_max: int) -> Iterator[list[Document]]:
    """Yield documents in lists of at most `count_max`, within the size limit of a request."""
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
    """Return each document's result from the answer to a bulk request. The caller handles TOO_LARGE.

    Raises UserError for errors outside the documents: no such index, no right to write, index closed.
    """
    if is_passing(status):
        return Answered(documents, (), f"{status} {error_text(body)}")
    if status != 200:
        raise UserError(f"index {index}: {status} {error_text(body)}")
    try:
        bulk = msgspec.json.decode(body, type=_Bulk)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Answered(documents, (), f"200 {error_text(body)}")  # from a proxy in between
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
    """Return the text of an error answer in one line; a proxy's answers differ from OpenSearch's."""
    try:
        error: Any = msgspec.json.decode(body, type=_Failure).error
    except (msgspec.DecodeError, UnicodeDecodeError):
        return " ".join(body[:200].decode(errors="replace").split())
    return error if isinstance(error, str) else error.text()
