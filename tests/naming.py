"""The house rules about names: of modules, classes, values, and of a partition's identity. `test_tidy.py` runs them."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.test_tidy import Source

CLASS_NAMES_BANNED = {
    "Manager": "what it is",
    "Helper": "what it does",
    "Util": "what it does",
    "Utils": "what it does",
    "Impl": "what is special about it",
    "Factory": "a function",
}
MODULE_NAMES_BANNED = {"util", "utils", "helper", "helpers", "common", "misc", "base"}
NAMES_BANNED = {"asked", "known", "said", "tell", "there", "wish"}
"""Names that alone do not describe a value; better: requested, existing, message, report, present, settings."""
PAIRS = {
    "src/stratalog/adapters/cassandra_session.py": "host and port",
    "src/stratalog/cli/main.py": "a message and an exit code",
    "src/stratalog/client/aio.py": "host and port",
    "src/stratalog/client/blocking.py": "host and port",
    "src/stratalog/client/cluster.py": "host and port",
    "src/stratalog/config/listeners.py": "host and port",
    "src/stratalog/errors.py": "a file and a position in it",
    "src/stratalog/sinks/cassandra_options.py": "host and port",
    "src/stratalog/tier/bucket/leases.py": "an object's path and its time of change",
    "src/stratalog/tier/reading/fetcher.py": "an object's path and a position in it",
}
"""Modules whose `tuple[str, int]` is not a partition, and its meaning there."""


def names_say_what_things_are(file: "Source") -> Iterator[str]:
    if not file.is_product:
        return
    if Path(file.path).stem in MODULE_NAMES_BANNED:
        yield "name the module after its contents"
    for node in file.nodes:
        if isinstance(node, ast.ClassDef):
            for word, instead in CLASS_NAMES_BANNED.items():
                if re.search(rf"[a-z]{word}$|^{word}([A-Z]|$)", node.name):
                    yield f"{node.lineno}: class {node.name}; instead of {word}: {instead}"


def partitions_have_one_identity(file: "Source") -> Iterator[str]:
    if not file.path.startswith("src/") or file.is_generated:
        return
    for node in file.nodes:
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Tuple):
            found = ast.unparse(node)
            if found == "tuple[str, int]" and file.path not in PAIRS:
                yield f"{node.lineno}: {found}; instead: TopicPartition, or a line in PAIRS"
            elif re.fullmatch(r"tuple\[(str \| )?UUID( \| str)?, int\]", found):
                yield f"{node.lineno}: {found}; instead: TopicIdPartition (wire/ids.py)"


def values_are_named(file: "Source") -> Iterator[str]:
    if not file.path.startswith("src/") or file.is_generated:
        return
    for node in file.nodes:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.arg(arg=name):
                pass
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                pass
            case _:
                continue
        if name.strip("_") in NAMES_BANNED:
            yield f"{node.lineno}: {name}; instead: a name that says what it is"
