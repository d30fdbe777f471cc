"""Goal: each SASL mechanism accepts and refuses logins as Apache Kafka does, with Kafka's error codes.

Method: a table of mechanisms and cases runs on plain sockets against both. The codes of SaslHandshake and of the last
SaslAuthenticate count. Between them ours hides what Kafka shows: an unknown user of SCRAM gets a salt, and is refused
with its proof.
"""

import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import pytest
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from tests.broker_process import broker_process
from tests.compat.apache_kafka import apache_kafka
from tests.integration.issuer import Issuer
from tests.integration.test_sasl import Raw
from tests.integration.test_sasl_bare import bare_scram

from stratalog.wire import scram

WORD, TIMEOUT_S, LATE_S = "planted-password", 20, 120
MODULES = "org.apache.kafka.common.security"
SCRAMS = {
    "SCRAM-SHA-256": ScramMechanism.SCRAM_SHA_256,
    "SCRAM-SHA-512": ScramMechanism.SCRAM_SHA_512,
}
SETTINGS = {
    "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "listener.name.plaintext.plain.sasl.jaas.config": f"{MODULES}.plain.PlainLoginModule required "
    f'username="alice" password="{WORD}" user_alice="{WORD}" user_bob="{WORD}";',
    "listener.name.plaintext.oauthbearer.sasl.jaas.config": f"{MODULES}.oauthbearer.OAuthBearerLoginModule required;",
    "listener.name.plaintext.oauthbearer.sasl.server.callback.handler.class": f"{MODULES}.oauthbearer."
    "OAuthBearerValidatorCallbackHandler",
    "sasl.oauthbearer.expected.issuer": "issuer",
    "sasl.oauthbearer.expected.audience": "kafka",
    "connection.failed.authentication.delay.ms": "1",
} | {
    f"listener.name.plaintext.{name.lower()}.sasl.jaas.config": f"{MODULES}.scram.ScramLoginModule required;"
    for name in SCRAMS
}


class Both(NamedTuple):
    """Our address and Kafka's, and the issuer whose tokens both accept."""

    addresses: tuple[str, str]
    issuer: Issuer


class At(NamedTuple):
    """What `Raw` connects to."""

    address: str


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    issuer = Issuer(tmp_path_factory.mktemp("issuer"))
    keys = issuer.keys.as_uri()
    settings = SETTINGS | {"sasl.oauthbearer.jwks.endpoint.url": keys}
    named = {name.replace(".", "__"): value for name, value in settings.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JDK_JAVA_OPTIONS", f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={keys}")
        with (
            apache_kafka(tmp_path_factory.mktemp("kafka"), **named) as theirs,
            broker_process(tmp_path_factory.mktemp("ours"), tier__url="", **named) as ours,
        ):
            for address in (ours.address, theirs):
                add_users(address)
            yield Both((ours.address, theirs), issuer)


def add_users(address: str) -> None:
    login = {"sasl.mechanism": "PLAIN", "sasl.username": "alice", "sasl.password": WORD}
    admin = AdminClient(
        {"bootstrap.servers": address, "security.protocol": "SASL_PLAINTEXT", **login}
    )
    for mechanism in SCRAMS.values():
        info = ScramCredentialInfo(mechanism, 4096)
        for user in ("alice", "bob"):
            change = UserScramCredentialUpsertion(user, info, WORD.encode())
            admin.alter_user_scram_credentials([change])[user].result(TIMEOUT_S)


Codes = list[int | None]
Case = Callable[[Raw, str, Issuer], Codes]


def plain(user: str, password: str, as_user: str = "") -> bytes:
    return f"{as_user}\0{user}\0{password}".encode()


def sent(raw: Raw, mechanism: str, *tokens: bytes) -> Codes:
    """Return the codes of a handshake and of tokens that need no answer of the server."""
    codes: Codes = [raw.handshake(mechanism)]
    for token in tokens:
        answer = raw.token(token)
        codes.append(None if answer is None else answer[0])
        if answer is not None and mechanism == "OAUTHBEARER" and answer[1]:
            assert json.loads(answer[1])["status"] == "invalid_token"
            codes += [None if (last := raw.token(b"\1")) is None else last[0]]
    return codes


def proven(
    raw: Raw,
    mechanism: str,
    user: str,
    password: str,
    header: str = "n,,",
    spoiled: Callable[[str], str] = str,
) -> Codes:
    """Return the codes of a SCRAM exchange; `spoiled` makes the nonce of the last message from the right one."""
    _, hash_name = scram.MECHANISMS[mechanism]
    codes: Codes = [raw.handshake(mechanism)]
    bare = f"n={user},r=abc"
    answer = raw.token(f"{header}{bare}".encode())
    codes.append(None if answer is None else answer[0])
    if answer is None or answer[0]:
        return codes
    first = answer[1].decode()
    parts = dict(part.split("=", 1) for part in first.split(","))
    salted = scram.salted_password(hash_name, password, scram.decoded(parts["s"]), int(parts["i"]))
    nonce = spoiled(parts["r"])
    unsigned = scram.client_final(header, nonce)
    proof = scram.client_proof(hash_name, salted, f"{bare},{first},{unsigned}")
    last = raw.token(f"{unsigned},p={scram.encoded(proof)}".encode())
    return [*codes, None if last is None else last[0]]


def by(user: str, password: str, as_user: str = "") -> Case:
    """Log in with a name and a password, by any mechanism that has them."""

    def run(raw: Raw, mechanism: str, _: Issuer) -> Codes:
        if mechanism == "PLAIN":
            return sent(raw, mechanism, plain(user, password, as_user))
        return proven(raw, mechanism, user, password, f"n,{f'a={as_user}' if as_user else ''},")

    return run


def with_token(make: Callable[[Issuer], str]) -> Case:
    def run(raw: Raw, mechanism: str, issuer: Issuer) -> Codes:
        return sent(raw, mechanism, f"n,,\1auth=Bearer {make(issuer)}\1\1".encode())

    return run


def with_bytes(*tokens: bytes) -> Case:
    return lambda raw, mechanism, _: sent(raw, mechanism, *tokens)


def with_nonce(spoiled: Callable[[str], str]) -> Case:
    return lambda raw, mechanism, _: proven(raw, mechanism, "alice", WORD, spoiled=spoiled)


def twice(raw: Raw) -> Codes:
    return [raw.handshake("PLAIN"), raw.handshake("PLAIN")]


def late(issuer: Issuer) -> str:
    return issuer.token(iat=time.time() - 2 * LATE_S, exp=time.time() - LATE_S)


PASSWORDS, TOKENS, EVERY = ("PLAIN", *SCRAMS), ("OAUTHBEARER",), ("PLAIN", *SCRAMS, "OAUTHBEARER")
RIGHT, WRONG = (0, 0, True), (0, 58, False)
FORGED = "A" * 9
Outcome = tuple[int | None, int | None, bool]
"""The code of the handshake, that of the last message, and whether the client is served afterwards."""
CASES: dict[str, tuple[tuple[str, ...], Case, Outcome]] = {
    "right": (PASSWORDS, by("alice", WORD), RIGHT),
    "as oneself": (PASSWORDS, by("alice", WORD, "alice"), RIGHT),
    "as another user": (PASSWORDS, by("alice", WORD, "bob"), WRONG),
    "wrong password": (PASSWORDS, by("alice", "other"), WRONG),
    "no password": (PASSWORDS, by("alice", ""), WRONG),
    "unknown user": (PASSWORDS, by("mallory", WORD), WRONG),
    "user with a line break": (PASSWORDS, by("alice\n", WORD), WRONG),
    "user of another case": (PASSWORDS, by("Alice", WORD), WRONG),
    "changed nonce": (tuple(SCRAMS), with_nonce(lambda right: right[:-1] + "!"), WRONG),
    # CVE-2024-56128. librdkafka before 2.6 sends this.
    "doubled nonce": (tuple(SCRAMS), with_nonce(lambda right: "abc" + right), WRONG),
    "right token": (TOKENS, with_token(Issuer.token), RIGHT),
    "expired token": (TOKENS, with_token(late), WRONG),
    "token of another issuer": (TOKENS, with_token(partial(Issuer.token, iss="other")), WRONG),
    "token for others": (TOKENS, with_token(partial(Issuer.token, aud="other")), WRONG),
    "token without a user": (TOKENS, with_token(partial(Issuer.token, sub=None)), WRONG),
    "forged token": (TOKENS, with_token(lambda one: one.token()[: -len(FORGED)] + FORGED), WRONG),
    "empty message": (EVERY, with_bytes(b""), WRONG),
    "malformed message": (EVERY, with_bytes(b"\xff\xfe\0,=n"), WRONG),
    "large message": (EVERY, with_bytes(b"n,," * 100_000), WRONG),
    "another handshake midway": (EVERY, lambda raw, *_: twice(raw), (0, 34, False)),
    "unknown mechanism": (("GSSAPI", "plain", ""), with_bytes(), (33, 33, False)),
}


@pytest.mark.serial
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("case", "mechanism"), [(case, name) for case, (names, *_) in CASES.items() for name in names]
)
def test_a_login_gets_the_codes_of_apache_kafka(both: Both, case: str, mechanism: str) -> None:
    _, act, expected = CASES[case]
    found = []
    for address in both.addresses:
        raw = Raw(At(address))
        codes = act(raw, mechanism, both.issuer)
        found.append((codes[0], codes[-1], raw.is_open()))
        raw.close()
    assert found == [expected, expected]


@pytest.mark.serial
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
@pytest.mark.parametrize(("password", "is_right"), [(WORD, True), ("other", False)])
def test_tokens_without_headers_get_the_answers_of_apache_kafka(
    both: Both, mechanism: str, password: str, is_right: bool
) -> None:
    """After SaslHandshake version 0: a right login has a last token, a wrong one none."""
    found = []
    for address in both.addresses:
        raw = Raw(At(address))
        if mechanism == "PLAIN":
            assert raw.handshake(mechanism, 0) == 0
            last = raw.bare(plain("alice", password))
        else:
            last = bare_scram(raw, password)
        found.append((last if last is None else last[:2], raw.is_open()))
        raw.close()
    expected = (b"" if mechanism == "PLAIN" else b"v=") if is_right else None
    assert found == [(expected, is_right)] * 2
