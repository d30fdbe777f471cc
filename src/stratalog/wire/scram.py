"""SCRAM's messages and keys, for both sides (RFC 5802, RFC 7677).

In: texts of one side, keys. Out: texts for the other side; ValueError for what is malformed. It draws no nonce, knows
no user, and decides nothing: the caller compares proofs.

Kafka: `ScramFormatter`, `ScramMessages`, `ScramMechanism`.
"""

import hashlib
import hmac
import re
from base64 import b64decode, b64encode
from binascii import Error as NoBase64
from typing import Final, NamedTuple

__all__ = [
    "ITERATIONS_MAX",
    "ITERATIONS_MIN",
    "MECHANISMS",
    "ClientFinal",
    "ClientFirst",
    "Keys",
    "client_final",
    "client_proof",
    "decoded",
    "encoded",
    "keys_of",
    "read_client_final",
    "read_client_first",
    "salted_password",
    "server_signature",
    "stored_key_of",
]

MECHANISMS: Final = {"SCRAM-SHA-256": (1, "sha256"), "SCRAM-SHA-512": (2, "sha512")}
"""Kafka's number and the hash of each mechanism."""
ITERATIONS_MIN: Final = 4096
ITERATIONS_MAX: Final = 16384
_FIRST: Final = re.compile(
    r"(n,(?:a=(?P<authzid>[^,]*))?,)(n=(?P<name>[^,]+),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)(?P<more>(?:,[A-Za-z]+=[^,]*)*))"
)
_FINAL: Final = re.compile(
    r"(c=(?P<binding>[^,]+),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)(?:,[a-z]=[^,]*)*),p=(?P<proof>[^,]+)"
)


class Keys(NamedTuple):
    """What a server keeps of a password; `salted` is not kept."""

    stored: bytes
    server: bytes


class ClientFirst(NamedTuple):
    """A client's first message. `header` is its GS2 header, `bare` the rest."""

    header: str
    bare: str
    user: str
    authorization_id: str
    nonce: str
    by_token: bool = False
    """Whether `user` is the id of a delegation token (Kafka's extension `tokenauth=true`, KIP-48)."""


class ClientFinal(NamedTuple):
    """A client's last message. `unsigned` is the part before the proof."""

    unsigned: str
    header: str
    nonce: str
    proof: bytes


def salted_password(hash_name: str, password: str, salt: bytes, iterations: int) -> bytes:
    """Return Hi(password, salt, iterations)."""
    return hashlib.pbkdf2_hmac(hash_name, password.encode(), salt, iterations)


def keys_of(hash_name: str, salted: bytes) -> Keys:
    """Return a server's keys of a salted password."""
    client = hmac.digest(salted, b"Client Key", hash_name)
    return Keys(
        hashlib.new(hash_name, client).digest(), hmac.digest(salted, b"Server Key", hash_name)
    )


def client_proof(hash_name: str, salted: bytes, auth_message: str) -> bytes:
    """Return the proof that a client knows the password."""
    client = hmac.digest(salted, b"Client Key", hash_name)
    stored = hashlib.new(hash_name, client).digest()
    return _xor(client, hmac.digest(stored, auth_message.encode(), hash_name))


def stored_key_of(hash_name: str, stored: bytes, auth_message: str, proof: bytes) -> bytes:
    """Return the stored key that a proof implies; the proof is right where it equals `stored`."""
    client = _xor(proof, hmac.digest(stored, auth_message.encode(), hash_name))
    return hashlib.new(hash_name, client).digest()


def server_signature(hash_name: str, server: bytes, auth_message: str) -> bytes:
    """Return the proof that a server knows the keys."""
    return hmac.digest(server, auth_message.encode(), hash_name)


def _xor(one: bytes, other: bytes) -> bytes:
    if len(one) != len(other):
        raise ValueError("a proof of another length")
    return bytes(a ^ b for a, b in zip(one, other, strict=True))


def read_client_first(data: bytes) -> ClientFirst:
    """Raises ValueError."""
    found = _FIRST.fullmatch(data.decode())
    if found is None:
        raise ValueError("no first message of SCRAM")
    name = found["name"]
    if re.search(r"=(?!2C|3D)", name):
        raise ValueError("a name with a lone =")
    user = name.replace("=2C", ",").replace("=3D", "=")
    authorization_id = (found["authzid"] or "").replace("=2C", ",").replace("=3D", "=")
    extensions = dict(one.split("=", 1) for one in found["more"].split(",")[1:])
    by_token = extensions.get("tokenauth", "").lower() == "true"
    return ClientFirst(found[1], found[3], user, authorization_id, found["nonce"], by_token)


def read_client_final(data: bytes) -> ClientFinal:
    """Raises ValueError."""
    found = _FINAL.fullmatch(data.decode())
    if found is None:
        raise ValueError("no last message of SCRAM")
    header, proof = decoded(found["binding"]).decode(), decoded(found["proof"])
    return ClientFinal(found[1], header, found["nonce"], proof)


def client_final(header: str, nonce: str) -> str:
    """Return a client's last message without its proof."""
    return f"c={b64encode(header.encode()).decode()},r={nonce}"


def encoded(data: bytes) -> str:
    """Return bytes as base64."""
    return b64encode(data).decode()


def decoded(text: str) -> bytes:
    """Return the bytes of a base64 text. Raises ValueError."""
    try:
        return b64decode(text, validate=True)
    except NoBase64:
        raise ValueError("no base64") from None
