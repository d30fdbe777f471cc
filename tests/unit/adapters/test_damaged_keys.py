"""Damaged keystores and truststores: a context, or one line that names the setting; never another error.

Each round damages a file at random places with a seed of its own, so a failure names the seed that repeats it.
"""

import base64
import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from stratalog.adapters.tls_context import client_context
from stratalog.adapters.tls_listener import listener_context
from stratalog.adapters.tls_settings import certificates_of
from stratalog.errors import UserError
from stratalog.ports import Store, Tls
from stratalog.testing.certificates import Authority

ROUNDS = 250
PASSWORD = "planted-password"
BLOCK = re.compile(rb"-----BEGIN ([A-Z ]+)-----(.*?)-----END", re.DOTALL)


def damaged(data: bytes, chance: random.Random) -> bytes:
    """Return the bytes with some replaced, cut off, or inserted."""
    changed = bytearray(data)
    at = chance.randrange(len(changed))
    kind = chance.randrange(4)
    if kind == 0:
        return data[:at]
    if kind == 1:
        changed[at:at] = chance.randbytes(chance.randrange(1, 130))
    elif kind == 2:  # what a length or a tag may be
        changed[at] = chance.choice([0, 0x7F, 0x80, 0x84, 0xFF, 0x17, 0x18, 0x30])
    else:
        for _ in range(chance.randrange(1, 5)):
            changed[chance.randrange(len(changed))] = chance.randrange(256)
    return bytes(changed)


def damaged_inside(pem: bytes, chance: random.Random) -> bytes:
    """Return PEM text whose form is right, and the contents of one block damaged."""
    blocks = [(label, base64.b64decode(body)) for label, body in BLOCK.findall(pem)]
    which = chance.randrange(len(blocks))
    text = b""
    for index, (label, body) in enumerate(blocks):
        shown = base64.encodebytes(damaged(body, chance) if index == which else body)
        text += b"-----BEGIN %s-----\n%s-----END %s-----\n" % (label, shown, label)
    return text


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """A key and its certificate as PEM, and as PKCS12."""
    authority = Authority(tmp_path_factory.mktemp("keys"))
    server = authority.issue("server")
    return [server.pem.read_bytes(), authority.pkcs12(server, PASSWORD).read_bytes()]


@pytest.mark.parametrize("side", [listener_context, client_context])
@pytest.mark.parametrize("kind", ["PEM", "PEM's contents", "PKCS12"])
@pytest.mark.parametrize("setting", ["ssl.keystore", "ssl.truststore"])
def test_a_damaged_store_is_one_line(
    tmp_path: Path,
    stores: list[bytes],
    kind: str,
    setting: str,
    side: Callable[[Tls], object],
) -> None:
    path, refused = tmp_path / "store", 0
    store = Store(setting, str(path), PASSWORD)
    known = Store(
        "ssl.truststore", certificates=stores[0].decode()
    )  # not the system's, which take 30 ms
    tls = Tls(store, known) if setting == "ssl.keystore" else Tls(trusted=store)
    for seed in range(ROUNDS):
        change = damaged_inside if kind == "PEM's contents" else damaged
        path.write_bytes(change(stores[kind == "PKCS12"], random.Random(seed)))
        try:
            side(tls)
            certificates_of(tls)
        except UserError as error:
            refused += 1
            line = str(error)
            assert line.startswith(f"{setting}.location: "), (seed, line)
            assert str(path) in line, (seed, line)
            assert not re.search(r"\n| lib|cadata", line), (seed, line)
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error
    assert refused > ROUNDS / 4


@pytest.mark.parametrize("letter", ["é", "…"])
def test_text_that_is_not_ascii_is_one_line(stores: list[bytes], letter: str) -> None:
    whole = stores[0].decode()
    wrong = re.sub(r"[A-Za-z]{3}(?=\n-----END)|(?<=\n)M", letter, whole)
    assert wrong.count(letter) >= 2
    own = Tls(own=Store("ssl.keystore", key=wrong, certificates=whole))
    trusting = Tls(trusted=Store("ssl.truststore", certificates=wrong))
    for tls, setting in ((own, "ssl.keystore.key"), (trusting, "ssl.truststore.certificates")):
        with pytest.raises(UserError, match=f"^{setting}: .* is not ASCII$"):
            listener_context(tls)


@pytest.mark.parametrize(
    "text",
    [
        "-----BEGIN CERTIFICATE-----\n" * 40_000,
        "".join(f"-----BEGIN A{number}-----\nMII-\n" for number in range(40_000)),
        "-----BEGIN CERTIFICATE-----" + "-x" * 500_000,
        "-----BEGIN " * 100_000,
    ],
    ids=["begins", "names", "dashes", "no label"],
)
def test_text_of_a_megabyte_that_never_ends_a_block_is_refused_at_once(text: str) -> None:
    tls = Tls(trusted=Store("ssl.truststore", certificates=text))
    with pytest.raises(UserError, match="has no certificate"):
        listener_context(tls)
