"""Our reader of properties files equals java.util.Properties: both read the same texts of special characters."""

import re
import subprocess
from base64 import b64decode, b64encode
from pathlib import Path
from random import Random

from tests.compat.tools import java

from stratalog.config import parse_properties
from stratalog.errors import UserError

TEXTS = 5000
PIECES = [*"anfrt0é \t\f\n\r=:#!\\", "b.c", "x=1\n", "\r\n"]
PIECES += ["\\\n", "\\n", "\\ ", "\\=", "\\:", "\\u", "\\u0041", "\\u00e9"]
# After a line with only a backslash, Java starts a new line, which may be a comment.
UNLIKE_JAVA = re.compile(r"(^|[\n\r])[ \t\f]*(\\[\r\n]+[ \t\f]*)+[#!]")


def javas(texts: list[str]) -> list[dict[str, str] | None]:
    """Return the pairs of each text, or None if Java refuses the text."""
    done = subprocess.run(
        [java(), "-XX:TieredStopAtLevel=1", str(Path(__file__).with_name("PropertiesRead.java"))],
        input="".join(b64encode(text.encode()).decode() + "\n" for text in texts),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]

    def pairs(line: str) -> dict[str, str] | None:
        if line.strip() == "malformed":
            return None
        words = [word.split(":") for word in line.split()]
        return {b64decode(name).decode(): b64decode(value).decode() for name, value in words}

    return [pairs(line) for line in done.stdout.splitlines()]


def named(pairs: dict[str, str] | None) -> dict[str, str] | None:
    """The pairs that have a name: no setting is called ""."""
    return pairs and {name: value.strip() for name, value in pairs.items() if name}


def ours(text: str) -> dict[str, str] | None:
    try:
        return parse_properties(text)
    except UserError:
        return None


def test_any_text_is_read_as_java_reads_it() -> None:
    chance = Random(12)
    made = ("".join(chance.choices(PIECES, k=chance.randint(1, 25))) for _ in range(TEXTS))
    texts = [text for text in made if not UNLIKE_JAVA.search(text)]
    found = javas(texts)
    assert len(found) == len(texts) > TEXTS * 0.9
    assert sum(pairs is None for pairs in found) > TEXTS / 20
    for text, pairs in zip(texts, found, strict=True):
        assert named(ours(text)) == named(pairs), text
