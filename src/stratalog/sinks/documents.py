"""Rows as documents of a search index: their ids, fields and mappings.

In: an Arrow schema and record batches with the columns topic, partition and offset. Out: an index's mappings,
documents with their ids, or a BadOption of one line. It sends nothing.

A document's id is `<topic>-<partition>-<offset>`, which names the record and nothing else. So a row that is written
again, by a repeated task, batch or job, overwrites itself.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import pyarrow as pa

from stratalog.errors import BadOption, UserError

__all__ = ["LETTER_MAPPINGS", "Document", "documents_of", "mappings_of"]

_ID_COLUMNS: Final = ("topic", "partition", "offset")

# A text field for search and a keyword for counts, as OpenSearch maps a string by default. The mapping is explicit
# because OpenSearch would map a first string that looks like a date as a date, and refuse later ones that do not.
_STRING: Final = {
    "type": "text",
    "fields": {"keyword": {"type": "keyword", "ignore_above": 256}},
}
_SCALARS: Final = (
    (pa.types.is_boolean, "boolean"),
    (pa.types.is_int8, "byte"),
    (pa.types.is_int16, "short"),
    (pa.types.is_int32, "integer"),
    (pa.types.is_int64, "long"),
    (pa.types.is_float32, "float"),
    (pa.types.is_float64, "double"),
    (pa.types.is_decimal, "double"),
    (pa.types.is_timestamp, "date"),
    (pa.types.is_date, "date"),
)

LETTER_MAPPINGS: Final[Mapping[str, Any]] = {
    "properties": {
        "topic": {"type": "keyword"},
        "partition": {"type": "integer"},
        "offset": {"type": "long"},
        "index": {"type": "keyword"},
        "error": {"properties": {"type": {"type": "keyword"}, "reason": {"type": "text"}}},
        # This index accepts any document.
        "document": {"type": "text", "index": False},
    }
}
"""The mappings of an index of dead letters."""


@dataclass(frozen=True, slots=True)
class Document:
    """`source`: its JSON."""

    id: str
    source: bytes

    @property
    def record(self) -> str:
        """The document's record, for people."""
        topic, partition, offset = self.id.rsplit("-", 2)
        return f"topic {topic}, partition {partition}, offset {offset}"

    def letter(self, index: str, kind: str, reason: str) -> "Document":
        """Return a dead letter: the document with the reason why `index` refused it."""
        topic, partition, offset = self.id.rsplit("-", 2)
        fields = {
            "topic": topic,
            "partition": int(partition),
            "offset": int(offset),
            "index": index,
            "error": {"type": kind, "reason": reason},
            "document": self.source.decode(),
        }
        return Document(self.id, msgspec.json.encode(fields))


def mappings_of(schema: pa.Schema) -> dict[str, Any]:
    """Return the mappings for rows of `schema`. Raises BadOption where such rows cannot be documents."""
    for name in _ID_COLUMNS:
        if name not in schema.names:
            raise BadOption(
                f"there is no column '{name}': topic, partition and offset are what a document is called by"
            )
    for name, count in Counter(schema.names).items():
        if count > 1:
            raise BadOption(f"there are {count} columns '{name}': a document can have one")
    if not _is_text(schema.field("topic").type):
        raise BadOption(f"column 'topic' is {schema.field('topic').type}, not string")
    for name in ("partition", "offset"):
        if not pa.types.is_integer(schema.field(name).type):
            raise BadOption(f"column '{name}' is {schema.field(name).type}, not int or bigint")
    properties = {one.name: _mapping(one.name, one.type) for one in schema}
    return {"properties": {**properties, "topic": {"type": "keyword"}}}


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _mapping(name: str, kind: pa.DataType) -> dict[str, Any]:
    if _is_text(kind):
        return dict(_STRING)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _mapping(name, kind.value_type)  # OpenSearch: every field may have many values
    if pa.types.is_struct(kind):
        return {"properties": {one.name: _mapping(f"{name}.{one.name}", one.type) for one in kind}}
    for is_kind, indexed in _SCALARS:
        if is_kind(kind):
            return {"type": indexed}
    remedy = "cast it to string, or base64() it" if pa.types.is_binary(kind) else "to_json() it"
    raise BadOption(f"column '{name}' is {kind}, which cannot be indexed: {remedy}")


def documents_of(batch: pa.RecordBatch) -> Iterator[Document]:
    """Yield the rows, in order.

    NaN and infinity become null: JSON has neither. Raises UserError for a row without an id.
    """
    names = batch.schema.names
    topic_at, partition_at, offset_at = (names.index(name) for name in _ID_COLUMNS)
    encode = msgspec.json.Encoder(decimal_format="number").encode
    for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
        topic, partition, offset = row[topic_at], row[partition_at], row[offset_at]
        if topic is None or partition is None or offset is None:
            raise UserError(
                f"a row's topic, partition or offset is null ({topic}, {partition}, {offset}): it has no name"
            )
        source = encode(dict(zip(names, row, strict=True)))
        yield Document(f"{topic}-{partition}-{offset}", source)
