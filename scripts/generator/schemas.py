"""Kafka's message schemas as values: messages, structs, fields, and the versions of each.

In: the JSON schemas inside Apache Kafka's jars. Out: `Message` values. It never keeps the schemas' prose.
"""

import json
import keyword
import re
import zipfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

__all__ = [
    "FAMILIES",
    "FIXED",
    "RECORD",
    "Field",
    "Layout",
    "Message",
    "Span",
    "StructType",
    "layout",
    "messages",
    "read_schemas",
    "records",
    "snake",
]

FIXED = {
    "bool": "T",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "float64": "d",
    "uuid": "U",
}
"""Kafka's types of fixed size and the letter of each in names of layouts. `T` is `struct`'s `?`, `U` its `16s`."""

RECORD = "record"
"""The side of a schema that is no request or response, but a record of one of Kafka's own logs."""

FAMILIES = {
    "metadata": (
        "`__cluster_metadata`, the cluster itself",
        (
            "BrokerRegistrationChangeRecord",
            "ClearElrRecord",
            "ConfigRecord",
            "FeatureLevelRecord",
            "FenceBrokerRecord",
            "PartitionChangeRecord",
            "PartitionRecord",
            "ProducerIdsRecord",
            "RegisterBrokerRecord",
            "RegisterControllerRecord",
            "RemoveTopicRecord",
            "TopicRecord",
            "UnfenceBrokerRecord",
            "UnregisterBrokerRecord",
        ),
    ),
    "security": (
        "`__cluster_metadata`, its users and what they may do",
        (
            "AccessControlEntryRecord",
            "ClientQuotaRecord",
            "DelegationTokenRecord",
            "RemoveAccessControlEntryRecord",
            "RemoveDelegationTokenRecord",
            "RemoveUserScramCredentialRecord",
            "UserScramCredentialRecord",
        ),
    ),
    "marker": (
        "`__cluster_metadata`, what changes no state by itself",
        (
            "AbortTransactionRecord",
            "BeginTransactionRecord",
            "EndTransactionRecord",
            "NoOpRecord",
            "ZkMigrationStateRecord",
        ),
    ),
    "control": (
        "control records: those of Raft logs and snapshots",
        (
            "KRaftVersionRecord",
            "LeaderChangeMessage",
            "SnapshotFooterRecord",
            "SnapshotHeaderRecord",
            "VotersRecord",
        ),
    ),
    "offsets": (
        "`__consumer_offsets`, commits and classic groups",
        ("GroupMetadataKey", "GroupMetadataValue", "OffsetCommitKey", "OffsetCommitValue"),
    ),
    "transactions": ("`__transaction_state`", ("TransactionLogKey", "TransactionLogValue")),
}
"""Family of records -> its log, and the names of its schemas: those of each log that a broker of ours knows."""

Layout = tuple[Any, ...]
"""The bytes of a struct at one version. Versions with equal layouts share their functions."""


class Span(NamedTuple):
    """Versions `first` to `last`, both included. (0, -1) is none."""

    first: int
    last: int

    def has(self, version: int) -> bool:
        return self.first <= version <= self.last

    def text(self) -> str:
        return f"{self.first}" if self.first == self.last else f"{self.first} to {self.last}"


NONE = Span(0, -1)


@dataclass(slots=True, eq=False)
class StructType:
    """A class to write: a message's own or one nested in it. `versions` are those that have such a struct."""

    name: str
    fields: list["Field"]
    versions: Span


@dataclass(frozen=True, slots=True, eq=False)
class Field:
    """One field. `kind` is Kafka's name of a type, or "struct" (then `struct` is its class); `tag` is -1 for none."""

    name: str
    kind: str
    array: bool
    struct: StructType | None
    versions: Span
    nullable: Span
    tag: int
    default: str | None
    ignorable: bool


@dataclass(frozen=True, slots=True)
class Message:
    """One schema. `structs` has every class of it, nested ones before those that use them, `top` last."""

    name: str
    key: int
    side: str
    versions: Span
    flexible: Span
    listeners: tuple[str, ...]
    """Kinds of listeners that serve the request; none for a response."""
    structs: list[StructType]

    @property
    def top(self) -> StructType:
        return self.structs[-1]


def read_schemas(source: Path) -> dict[str, dict[str, Any]]:
    """Return name -> JSON for the schemas of messages and records in Kafka's jars below `source`."""
    found = {}
    for jar in sorted(source.rglob("kafka-*.jar")):
        with zipfile.ZipFile(jar) as archive:
            for name in archive.namelist():
                if re.fullmatch(r"common/(message|metadata)/\w+\.json", name):
                    text = re.sub(r"^\s*//.*$", "", archive.read(name).decode(), flags=re.MULTILINE)
                    schema = json.loads(text)
                    found[schema["name"]] = schema
    return found


def messages(schemas: dict[str, dict[str, Any]]) -> dict[int, list[Message]]:
    """Return API key -> request and response, for every API that still has a version."""
    found: dict[int, list[Message]] = {}
    for schema in sorted(schemas.values(), key=lambda one: (one.get("apiKey", -1), one["type"])):
        if schema["type"] in ("request", "response") and schema["validVersions"] != "none":
            found.setdefault(schema["apiKey"], []).append(_message(schema, set()))
    return {key: _unambiguous(pair, schemas) for key, pair in found.items()}


def records(schemas: dict[str, dict[str, Any]]) -> dict[str, list[Message]]:
    """Return family -> its records. Raises KeyError for a schema that is not there."""
    known = {name for _, names in FAMILIES.values() for name in names}
    metadata = {name for name, schema in schemas.items() if schema["type"] == "metadata"}
    assert metadata <= known, f"metadata records of no family: {metadata - known}"
    return {
        family: _unambiguous([_message(schemas[name], set()) for name in names], schemas)
        for family, (_, names) in FAMILIES.items()
    }


def _unambiguous(group: list[Message], schemas: dict[str, dict[str, Any]]) -> list[Message]:
    """Name the structs of one module after their message too, where two messages have one of the same name."""
    names = Counter(struct.name for message in group for struct in message.structs)
    shared = {name for name, count in names.items() if count > 1}
    return [_message(schemas[one.name], shared) for one in group] if shared else group


def span(text: str, last: int) -> Span:
    """Return versions: "3" is (3, 3), "1-4" is (1, 4), "2+" is (2, last), "none" is (0, -1)."""
    if text == "none":
        return NONE
    if text.endswith("+"):
        return Span(int(text[:-1]), last)
    first, _, end = text.partition("-")
    return Span(int(first), int(end or first))


def snake(name: str) -> str:
    """Return a name in snake case: LastKnownElr -> last_known_elr, KRaftVersion -> kraft_version."""
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.replace("KRaft", "Kraft")).lower()
    assert not keyword.iskeyword(name), name
    return name


def _message(schema: dict[str, Any], shared: set[str]) -> Message:
    """Build a message; a class whose name is in `shared` gets the message's name before its own."""
    versions = span(schema["validVersions"], 0)
    flexible = span(schema["flexibleVersions"], versions.last)
    structs: dict[str, StructType] = {}

    def add(name: str, fields: list[dict[str, Any]]) -> StructType:
        own = schema["name"] + name if name in shared else name
        assert name not in structs, f"{schema['name']} has two structs {name}"
        # Nested classes first: defaults are made of them.
        built = [field(one) for one in fields]
        structs[name] = StructType(own, built, NONE)
        return structs[name]

    def field(raw: dict[str, Any]) -> Field:
        kind = raw["type"].removeprefix("[]")
        struct = None
        if "fields" in raw:
            struct = add(kind, raw["fields"])
        elif kind not in FIXED and kind not in ("string", "bytes", "records"):
            struct = structs[kind]
        return _field(raw, kind, struct, versions)

    waiting = list(schema.get("commonStructs", ()))
    while waiting:  # One common struct may use another that stands after it.
        part = waiting.pop(0)
        used = {one["type"].removeprefix("[]") for one in part["fields"]}
        if used & {one["name"] for one in waiting}:
            waiting.append(part)
        else:
            add(part["name"], part["fields"])
    add(schema["name"], schema["fields"]).versions = versions
    _spread_versions(list(structs.values()))
    side = schema["type"] if schema["type"] in ("request", "response") else RECORD
    key, listeners = schema.get("apiKey", -1), tuple(schema.get("listeners", ()))
    classes = list(structs.values())
    return Message(schema["name"], key, side, versions, flexible, listeners, classes)


def _spread_versions(structs: list[StructType]) -> None:
    """Give each struct the versions of the fields that hold it; a struct stands before those that use it."""
    for user in reversed(structs):
        for field in user.fields:
            if field.struct is not None:
                here, known = field.versions, field.struct.versions
                first = max(here.first, user.versions.first)
                last = min(here.last, user.versions.last)
                if known != NONE:
                    first, last = min(first, known.first), max(last, known.last)
                field.struct.versions = Span(first, last)


def _field(raw: dict[str, Any], kind: str, struct: StructType | None, valid: Span) -> Field:
    here = span(raw.get("versions") or raw["taggedVersions"], valid.last)
    here = Span(max(here.first, valid.first), min(here.last, valid.last))
    if "tag" in raw:
        tagged = span(raw["taggedVersions"], valid.last)
        assert tagged == here, f"{raw['name']} is a tagged field in some of its versions only"
    array = raw["type"].startswith("[]")
    nullable = span(raw.get("nullableVersions", "none"), valid.last)
    assert nullable == NONE or array or kind not in FIXED, f"{raw['name']}: a nullable {kind}"
    assert nullable == NONE or "tag" not in raw or kind != "struct", (
        "a tagged struct cannot be null"
    )
    return Field(
        name=snake(raw["name"]),
        kind="struct" if struct else kind,
        array=array,
        struct=struct,
        versions=here,
        nullable=nullable,
        tag=raw.get("tag", -1),
        default=_default(raw),
        ignorable=bool(raw.get("ignorable")),
    )


def _default(raw: dict[str, Any]) -> str | None:
    """Return the default that the JSON spells out, as Python; None where it has none."""
    if "default" not in raw:
        return None
    value = raw["default"]
    if value == "null":
        return "None"
    if raw["type"] == "string":
        return json.dumps(value)
    if raw["type"] == "bool":
        return str(value).capitalize()
    return repr(float(value)) if raw["type"] == "float64" else str(int(str(value), 0))


def layout(struct: StructType, version: int, *, flexible: bool) -> Layout:
    """Return a key that distinguishes this version's bytes from another's."""
    return (
        flexible,
        tuple(
            (
                field.name,
                field.nullable.has(version),
                field.struct and layout(field.struct, version, flexible=flexible),
            )
            for field in struct.fields
            if field.versions.has(version)
        ),
    )
