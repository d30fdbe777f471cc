"""Each setting has an effect: code outside of its declaration reads it, and uses what it has read.

Method: the syntax trees of the product. A setting is read where a string names it, whole, by its end or by an
f-string; a broker setting that is the default of a topic setting is read as that one. `docs/settings.md` lists the
settings of Kafka's that this server takes without an effect (`kafka_only.py`), and a start warns of each.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from stratalog.config.broker_settings import BROKER_SETTINGS
from stratalog.config.kafka_only import INERT_SETTINGS
from stratalog.config.log import LogConfig
from stratalog.config.topic_settings import TOPIC_SETTINGS

SOURCE = Path(__file__).parents[3] / "src" / "stratalog"
DECLARED = re.compile(r"config/(\w+_settings|kafka_only|profiles|aliases)\.py")
READS = ("int", "float", "bool", "str", "list", "get")
NO_FIELDS = {  # topic settings without a field of their name
    "internal.segment.bytes": "segment_bytes",
}


@cache
def trees() -> dict[str, ast.Module]:
    found = {
        str(path.relative_to(SOURCE)): ast.parse(path.read_text())
        for path in SOURCE.rglob("*.py")
        if not str(path.relative_to(SOURCE)).startswith(("wire/messages/", "wire/codecs/"))
    }
    return {path: tree for path, tree in found.items() if not DECLARED.fullmatch(path)}


@cache
def nodes() -> tuple[ast.AST, ...]:
    return tuple(node for tree in trees().values() for node in ast.walk(tree))


def whole_texts(tree: ast.Module) -> set[str]:
    """Return the strings of a module, also each behind each beginning that an f-string of the module has."""
    walked = list(ast.walk(tree))
    texts = {
        node.value
        for node in walked
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    begins = set()
    for node in walked:
        match node:
            case ast.JoinedStr(values=[ast.Constant(value=str(begin)), ast.FormattedValue()]):
                begins.add(begin)
    return texts | {begin + text for begin in begins if begin.endswith(".") for text in texts}


@cache
def named() -> tuple[frozenset[str], tuple[re.Pattern[str], ...]]:
    """Return the strings of the code that may name a setting, and patterns for the ends of some names."""
    ends = {
        re.escape(node.values[-1].value)
        for node in nodes()
        if isinstance(node, ast.JoinedStr)
        and isinstance(node.values[-1], ast.Constant)
        and re.fullmatch(r"(\.[a-z]+){2,}", str(node.values[-1].value))
    }
    texts = frozenset().union(*map(whole_texts, trees().values()))
    return texts, tuple(re.compile(f"[a-z]+(\\.[a-z]+)?{end}") for end in ends)


def is_named(name: str) -> bool:
    texts, patterns = named()
    return name in texts or any(one.fullmatch(name) for one in patterns)


@cache
def loaded() -> frozenset[str]:
    """Return every attribute and name that some code reads."""
    return frozenset(
        node.attr if isinstance(node, ast.Attribute) else node.id
        for node in nodes()
        if isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Load)
    )


def targets(statement: ast.Assign | ast.AnnAssign) -> Iterator[str]:
    """Yield the attributes and names that a statement assigns."""
    for node in ast.walk(statement):
        if isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.attr if isinstance(node, ast.Attribute) else node.id


def reads_a_setting(node: ast.AST) -> bool:
    match node:
        case ast.Call(func=ast.Attribute(attr=kind), args=[ast.Constant(value=str(name))]):
            return kind in READS and name in BROKER_SETTINGS
    return False


NOT_LOOKED_FOR = {one.name for one in INERT_SETTINGS} | {
    # The content of a file says its type, as docs/settings.md explains.
    "ssl.keystore.type",
    "ssl.truststore.type",
    "ssl.truststore.certificates",  # read in config/tls.py, by a name of three parts
}
DEFAULTS = {one.name for topic in TOPIC_SETTINGS.values() for one in topic.synonyms}


@pytest.mark.parametrize("name", sorted(BROKER_SETTINGS.keys() - DEFAULTS - NOT_LOOKED_FOR))
def test_a_broker_setting_is_read(name: str) -> None:
    assert is_named(name), f"no code reads {name}: give it an effect, or list it in kafka_only.py"


@pytest.mark.parametrize("name", sorted(TOPIC_SETTINGS))
def test_a_topic_setting_is_read(name: str) -> None:
    field = NO_FIELDS.get(name, name.replace(".", "_"))
    if field in LogConfig.__struct_fields__:
        assert field in loaded(), f"no code reads LogConfig.{field}"
    else:
        assert is_named(name), f"no code reads {name}"


def test_what_is_read_of_a_setting_is_used() -> None:
    unused = {
        target
        for node in nodes()
        if isinstance(node, ast.Assign | ast.AnnAssign)
        and any(reads_a_setting(inner) for inner in ast.walk(node))
        for target in targets(node)
        if target not in loaded()
    }
    assert not unused


def test_a_setting_that_no_code_names_is_noticed() -> None:
    assert not is_named("metadata.max.idle.interval.ms")
    assert not is_named("socket.send.buffer.bytes.of.none")
