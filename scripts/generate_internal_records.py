"""Write `src/stratalog/wire/internal/*_records.py` from the JSON schemas inside Apache Kafka's jars.

In: a directory of Kafka's jars (or of their unpacked schemas). Out: one module per family: dataclasses and tables with
Kafka's names, types and versions. It never copies the schemas' prose.

    python scripts/generate_internal_records.py KAFKA/libs [--check]

`--check` writes nothing and fails where a module differs from what would be written.
"""

import argparse
import json
import re
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TARGET = Path(__file__).parent.parent / "src" / "stratalog" / "wire" / "internal"

# family: what it is; the folder of the schemas in the jars; the schemas
FAMILIES = {
    "metadata": (
        "`__cluster_metadata`, the cluster itself",
        "common/metadata",
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
        "common/metadata",
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
        "common/metadata",
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
        "common/message",
        (
            "LeaderChangeMessage",
            "SnapshotHeaderRecord",
            "SnapshotFooterRecord",
            "KRaftVersionRecord",
            "VotersRecord",
        ),
    ),
    "offsets": (
        "`__consumer_offsets`, commits and classic groups",
        "common/message",
        ("OffsetCommitKey", "OffsetCommitValue", "GroupMetadataKey", "GroupMetadataValue"),
    ),
    "transactions": (
        "`__transaction_state`",
        "common/message",
        ("TransactionLogKey", "TransactionLogValue"),
    ),
}

PYTHON_TYPES = {
    "bool": "bool",
    "int8": "int",
    "int16": "int",
    "uint16": "int",
    "int32": "int",
    "uint32": "int",
    "int64": "int",
    "float64": "float",
    "string": "str",
    "bytes": "bytes",
    "uuid": "UUID",
}


@dataclass(frozen=True)
class Struct:
    """One dataclass to write; `versions` are those of the schema that it belongs to."""

    name: str
    api_key: int
    versions: tuple[int, int]
    flexible: int
    fields: list[dict[str, Any]]
    structs: dict[str, str]
    top: bool


def main() -> int:
    """Write the modules, or with --check compare them; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("source", type=Path, help="a directory of Kafka's jars or of their schemas")
    parser.add_argument("--check", action="store_true", help="write nothing, fail where stale")
    arguments = parser.parse_args()
    schemas = read_schemas(arguments.source)
    stale = []
    left_out = {key for key in schemas if key[0] == "common/metadata"}
    for family, (what, folder, names) in FAMILIES.items():
        left_out -= {(folder, name) for name in names}
        missing = [name for name in names if (folder, name) not in schemas]
        if missing:
            print(f"{arguments.source}: no schema of {', '.join(missing)}", file=sys.stderr)
            return 2
        chosen = [schemas[folder, name] for name in sorted(names)]
        text = module(what, chosen)
        path = TARGET / f"{family}_records.py"
        if not path.exists() or path.read_text() != text:
            stale.append(path.name)
            if not arguments.check:
                path.write_text(text)
    if left_out:
        print(f"metadata records of no family: {sorted(left_out)}", file=sys.stderr)
        return 2
    print(f"changed: {', '.join(stale) or 'nothing'}")
    return 1 if stale and arguments.check else 0


def read_schemas(source: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """(folder, schema name) -> JSON, from every jar and every unpacked folder below `source`."""
    texts: dict[tuple[str, str], str] = {}
    for jar in sorted(source.rglob("kafka-*.jar")):
        with zipfile.ZipFile(jar) as archive:
            for name in archive.namelist():
                if name.startswith("common/") and name.endswith(".json"):
                    folder, _, file = name.rpartition("/")
                    texts[folder, file.removesuffix(".json")] = archive.read(name).decode()
    for path in sorted(source.rglob("common/*/*.json")):
        texts["common/" + path.parent.name, path.stem] = path.read_text()
    found = {}
    for key, text in texts.items():
        schema = json.loads(re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE))
        found[key[0], schema["name"]] = schema
    return found


def versions(text: str, last: int) -> tuple[int, int]:
    """First and last: "3" is (3, 3), "1-4" is (1, 4), "2+" is (2, last), "none" is (-1, -1)."""
    if text == "none":
        return (-1, -1)
    if text.endswith("+"):
        return (int(text[:-1]), last)
    first, _, end = text.partition("-")
    return (int(first), int(end or first))


def snake(name: str) -> str:
    """LastKnownElr -> last_known_elr, KRaftVersion -> kraft_version."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.replace("KRaft", "Kraft")).lower()


def structs_of(schema: dict[str, Any], taken: dict[str, int]) -> list[Struct]:
    """The dataclasses of one schema, nested ones first."""
    valid = versions(schema["validVersions"], 0)
    flexible = versions(schema["flexibleVersions"], valid[1])[0]
    parts: list[tuple[str, list[dict[str, Any]]]] = []

    def collect(fields: list[dict[str, Any]]) -> None:
        for field in fields:
            if "fields" in field:
                collect(field["fields"])
                parts.append((field["type"].removeprefix("[]"), field["fields"]))

    for common in schema.get("commonStructs", ()):
        collect(common["fields"])
        parts.append((common["name"], common["fields"]))
    collect(schema["fields"])
    # Two schemas of a family may both nest a "Voter": each is then named after its own schema.
    names = {name: schema["name"] + name if taken[name] > 1 else name for name, _ in parts}
    nested = [
        Struct(names[name], -1, valid, flexible, fields, names, top=False) for name, fields in parts
    ]
    key = schema.get("apiKey", -1)
    return [
        *nested,
        Struct(schema["name"], key, valid, flexible, schema["fields"], names, top=True),
    ]


def nested_names(fields: list[dict[str, Any]]) -> list[str]:
    """Names of the structures that fields define in place, at any depth."""
    found = []
    for field in fields:
        if "fields" in field:
            found += [field["type"].removeprefix("[]"), *nested_names(field["fields"])]
    return found


def module(what: str, schemas: list[dict[str, Any]]) -> str:
    """The text of one generated module."""
    taken: dict[str, int] = {}
    for schema in schemas:
        common = [part["name"] for part in schema.get("commonStructs", ())]
        for name in common + nested_names(schema["fields"]):
            taken[name] = taken.get(name, 0) + 1
    structs = [struct for schema in schemas for struct in structs_of(schema, taken)]
    body = "\n".join(render(struct) for struct in structs)
    uuid_import = "from uuid import UUID\n" if "UUID" in body else ""
    zero_import = "NO_ID, " if "NO_ID" in body else ""
    tops = [struct.name for struct in structs if struct.top]
    entries = "".join(f"    {table_name(name)},\n" for name in tops)
    return formatted(f'''"""Record types of {what}.

In: nothing. Out: dataclasses and their tables of fields. It never does anything.

Generated by scripts/generate_internal_records.py from Kafka's schemas: do not edit.
"""

from dataclasses import dataclass
{uuid_import}
from stratalog.wire.internal.codec import {zero_import}Field, Schema

{body}
SCHEMAS = (
{entries})
''')


def formatted(text: str) -> str:
    """`text` as the repository's formatter leaves it, so that a generated module passes the linters as it is."""
    command = [
        sys.executable,
        "-m",
        "ruff",
        "format",
        "--line-length",
        "100",
        "--stdin-filename",
        str(TARGET / "x.py"),
        "-",
    ]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    return done.stdout


def table_name(name: str) -> str:
    """The name of the table of a dataclass."""
    return "_" + snake(name).upper()


def field_versions(field: dict[str, Any], valid: tuple[int, int]) -> tuple[int, int]:
    """The versions of its schema that a field is in."""
    first, last = versions(field.get("versions") or field["taggedVersions"], valid[1])
    return (max(first, valid[0]), min(last, valid[1]))


def default_of(field: dict[str, Any]) -> str | None:
    """The default that the JSON spells out, as Python; None where it has none."""
    if "default" not in field:
        return None
    value = field["default"]
    if value == "null":
        return "None"
    if field["type"] == "string":
        return repr(value)
    return str(value).capitalize() if field["type"] == "bool" else str(int(value))


def implied_default(field: dict[str, Any]) -> str:
    """The default that the type implies, as Python."""
    kind = field["type"]
    if kind.startswith("[]"):
        return "()"
    zero = {"string": '""', "bytes": 'b""', "uuid": "NO_ID", "bool": "False", "float64": "0.0"}
    return zero.get(kind, "0")


def render(struct: Struct) -> str:
    """A dataclass and its table. A field needs no value where the JSON gives a default, or some version lacks it."""
    lines, rows = [], []
    for field in struct.fields:
        kind = field["type"].removeprefix("[]")
        array = field["type"].startswith("[]")
        python = PYTHON_TYPES.get(kind) or struct.structs[kind]
        python = f"tuple[{python}, ...]" if array else python
        nullable = versions(field.get("nullableVersions", "none"), struct.versions[1])[0]
        here = field_versions(field, struct.versions)
        assert "tag" not in field or here == versions(field["taggedVersions"], struct.versions[1])
        assert nullable < 0 or array or kind in ("string", "bytes"), (
            "nullable structs are not written yet"
        )
        default = default_of(field)
        optional = "tag" in field or here != struct.versions
        assert not optional or array or kind in PYTHON_TYPES, (
            "an optional struct has no default yet"
        )
        shown = default or (implied_default(field) if optional else None)
        lines.append(
            f"    {snake(field['name'])}: {python}{' | None' if nullable >= 0 else ''}"
            + (f" = {shown}" if shown else "")
        )
        parts = [
            f'"{snake(field["name"])}"',
            f'"{kind if kind in PYTHON_TYPES else "struct"}"',
            str(here),
        ]
        parts += ["array=True"] * array
        if kind not in PYTHON_TYPES:
            parts.append(f"of={table_name(struct.structs[kind])}")
        parts += [f"nullable={nullable}"] * (nullable >= 0)
        parts += [f"tag={field.get('tag')}"] * ("tag" in field)
        parts += [f"default={default}"] * (default is not None)
        parts += ["ignorable=True"] * bool(field.get("ignorable"))
        rows.append(f"Field({', '.join(parts)})")
    rows_text = ", ".join(rows) + "," * (len(rows) == 1)
    return f'''
@dataclass(frozen=True, slots=True, kw_only=True)
class {struct.name}:
    """{about(struct)}"""

{chr(10).join(lines)}


{table_name(struct.name)} = Schema(
    {struct.name}, {struct.api_key}, {struct.versions}, {struct.flexible}, ({rows_text})
)
'''


def about(struct: Struct) -> str:
    """The docstring of a dataclass."""
    if not struct.top:
        return "A part of the records below."
    number = f"Number {struct.api_key}, versions" if struct.api_key >= 0 else "Versions"
    return f"{number} {struct.versions[0]} to {struct.versions[1]}."


if __name__ == "__main__":
    sys.exit(main())
