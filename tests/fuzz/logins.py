"""Hostile bytes instead of a login: damaged TLS handshakes and SASL messages, over real sockets.

    python -m tests.fuzz.logins --attempts 20000

In: a seed, and a broker in a process of its own. Out: counts by outcome, or AssertionError with the seed and the number
of the attempt. No attempt has a right password or token, nor asks anything by a valid certificate: none is served.
Beside them another client is served in time, and the broker's memory stays bounded. It attacks 127.0.0.1 alone.
"""

import argparse
import socket
import ssl
import struct
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random, SystemRandom

from tests.broker_process import BrokerProcess, broker_process
from tests.fuzz.beside import ASK, Beside, anonymous_mib, mib_once_freed
from tests.fuzz.frames import damaged
from tests.integration.issuer import Issuer

from stratalog.adapters.blocking_socket import BlockingNetwork
from stratalog.adapters.free_ports import free_ports
from stratalog.client.blocking import BlockingClient
from stratalog.client.sasl import Login
from stratalog.client.security import ClientSecurity
from stratalog.client.tokens import create_token
from stratalog.testing.certificates import Authority
from stratalog.wire import scram

TIMEOUT_S = 60
WORD, WRONG = "planted-password", "a wrong one"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
LEFT_MIB = 24
"""What the broker may keep of the attempts: caches of the modules and of OpenSSL that the first of them fill."""
TURN_MS = 40
"""The most CPU time of the broker's loop for one attempt and a request beside it; 7 ms were the most at a load of 9."""
METADATA = struct.pack(">ihhihi", 14, 3, 1, 99, -1, -1)
SERVED = struct.pack(">i", 99)
"""The correlation id of the answer that only a known client gets."""


@dataclass
class Target:
    """A broker with ports without security, of mutual TLS and of SASL; and keys of clients that it does not know."""

    broker: BrokerProcess
    tls: int
    sasl: int
    authority: Authority
    known: Path
    """The key of a certificate that the authority has signed; `unknown` has another one's."""
    unknown: Path
    forger: Issuer
    token: str
    """The id of a delegation token."""


@contextmanager
def target(place: Path) -> Iterator[Target]:
    """Yield a running one."""
    authority, stranger = Authority(place / "ca"), Authority(place / "other")
    known, unknown = authority.issue("mallory").pem, stranger.issue("mallory").pem
    for name in ("keys", "forged"):
        (place / name).mkdir()
    keys, forger = Issuer(place / "keys"), Issuer(place / "forged")
    plain, tls, sasl = free_ports(3)
    jaas = "org.apache.kafka.common.security.plain.PlainLoginModule required "
    settings = {
        "listeners": f"PLAINTEXT://127.0.0.1:{plain},SSL://127.0.0.1:{tls},SASL_PLAINTEXT://127.0.0.1:{sasl}",
        "ssl.keystore.location": str(authority.issue("server").pem),
        "ssl.truststore.location": str(authority.certificate),
        "ssl.client.auth": "required",
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": f'{jaas}user_alice="{WORD}";',
        "sasl.oauthbearer.jwks.endpoint.url": keys.keys.as_uri(),
        "connection.failed.authentication.delay.ms": "0",
        "delegation.token.secret.key": WORD,
        "tier.url": "",
    }
    named = {name.replace(".", "__"): value for name, value in settings.items()}
    with broker_process(place, **named) as broker:
        token = token_of_alice(f"127.0.0.1:{sasl}")
        yield Target(broker, tls, sasl, authority, known, unknown, forger, token)


def token_of_alice(address: str) -> str:
    """Create a delegation token, and return its id."""
    login = Login("PLAIN", "alice", WORD)
    with BlockingClient(BlockingNetwork(), address, security=ClientSecurity(None, login)) as alice:
        return alice.call(create_token()).token_id


def attack(at: Target, seed: int, attempts: int) -> Counter[str]:
    """Make attempts beside another client. Raises AssertionError."""
    found: Counter[str] = Counter()
    pid = at.broker.process.pid if at.broker.process is not None else 0
    for number in range(attempts // 10):  # imports and caches
        attempt(at, Random(f"{seed} first {number}"))
    before = anonymous_mib(pid)
    with Beside(at.broker.port, pid) as beside:
        for number in range(attempts):
            beside.steps += 1
            try:
                found[attempt(at, Random(f"{seed} {number}"))] += 1
            except (AssertionError, TimeoutError) as error:
                raise AssertionError(f"seed {seed}, attempt {number}: {error}") from error
    after = mib_once_freed(pid, before + LEFT_MIB)
    assert after < before + LEFT_MIB, f"seed {seed}: {before:.0f} MiB became {after:.0f}"
    assert beside.most_mib < before + 2 * LEFT_MIB, f"seed {seed}: {beside.most_mib:.0f} MiB"
    assert beside.longest_turn_ms < TURN_MS, f"seed {seed}: {beside.longest_turn_ms:.0f} ms"
    log = at.broker.log_text
    assert "Traceback" not in log, log[log.index("Traceback") - 500 :][:3000]
    assert "request failed" not in log
    print(
        f"another client, ms: {beside.percentiles()}; longest turn {beside.longest_turn_ms:.1f} ms"
    )
    return found


def attempt(at: Target, chance: Random) -> str:
    """Make one, and return what became of it."""
    if chance.random() < 0.5:
        return handshake(at, chance)
    return login(at, chance)


def handshake(at: Target, chance: Random) -> str:
    """Send a damaged part of a handshake, or data behind a sound one by an unknown certificate."""
    context = ssl.create_default_context(cafile=str(at.authority.certificate))
    context.load_cert_chain(chance.choice((at.known, at.unknown)))
    stage = chance.choice(("hello", "finish", "data"))
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    with (
        socket.create_connection(("127.0.0.1", at.tls), TIMEOUT_S) as raw,
        suppress(ConnectionError),
    ):
        with suppress(ssl.SSLWantReadError):
            tls.do_handshake()
        hello = outgoing.read()
        if stage == "hello":
            return f"hello: {ended(raw, damaged(chance, hello) + METADATA)}"
        raw.sendall(hello)
        while not outgoing.pending:
            incoming.write(raw.recv(1 << 16))
            with suppress(ssl.SSLWantReadError):
                tls.do_handshake()
        finish = outgoing.read()
        if stage == "finish":
            return f"finish: {ended(raw, damaged(chance, finish) + METADATA)}"
        tls.write(ASK)
        return f"data: {ended(raw, finish + damaged(chance, outgoing.read()))}"
    return f"{stage}: closed"


def login(at: Target, chance: Random) -> str:
    """Try to log in by damaged messages, and to be served afterwards."""
    mechanism = chance.choice(MECHANISMS)
    with (
        socket.create_connection(("127.0.0.1", at.sasl), TIMEOUT_S) as raw,
        suppress(ConnectionError),
    ):
        frames = [request(17, 1, text(mechanism)), *messages(at, raw, mechanism, chance)]
        match chance.randrange(4):
            case 0:
                chance.shuffle(frames)
            case 1:
                frames = [damaged(chance, one) for one in frames]
            case 2:
                frames += chance.choices(frames, k=chance.randrange(1, 20))
            case _:
                frames = [b"".join(frames)[: chance.randrange(400)]]
        return f"{mechanism}: {ended(raw, b''.join(frames) + METADATA)}"
    return f"{mechanism}: closed"


def messages(at: Target, raw: socket.socket, mechanism: str, chance: Random) -> Iterator[bytes]:
    """Yield the requests of a login with a wrong password or a forged token, each message damaged or sound."""
    for message in sound(at, raw, mechanism, chance):
        spoilt = damaged(chance, message) if chance.random() < 0.6 else message
        yield request(36, 0, struct.pack(">i", len(spoilt)) + spoilt)


def sound(at: Target, raw: socket.socket, mechanism: str, chance: Random) -> Iterator[bytes]:
    if mechanism == "PLAIN":
        yield f"\0alice\0{WRONG}".encode()
    elif mechanism == "OAUTHBEARER":
        yield f"n,,\1auth=Bearer {at.forger.token()}\1\1".encode()
        yield b"\1"
    else:
        _, hash_name = scram.MECHANISMS[mechanism]
        user, more = chance.choice((("alice", ""), (at.token, ",tokenauth=true")))
        bare = f"n={user},r={chance.getrandbits(64)}{more}"
        server = f"r=x,s={scram.encoded(b'salt')},i=4096"
        yield f"n,,{bare}".encode()
        salted = scram.salted_password(hash_name, WRONG, b"salt", 1)
        unsigned = scram.client_final("n,,", "x")
        proof = scram.client_proof(hash_name, salted, f"{bare},{server},{unsigned}")
        yield f"{unsigned},p={scram.encoded(proof)}".encode()


def request(key: int, version: int, body: bytes) -> bytes:
    frame = struct.pack(">hhih", key, version, 7, -1) + body
    return struct.pack(">i", len(frame)) + frame


def text(word: str) -> bytes:
    return struct.pack(">h", len(word)) + word.encode()


def ended(raw: socket.socket, data: bytes) -> str:
    """Send, end the stream, and read until the broker ends it too; the client must not have been served."""
    raw.sendall(data)
    raw.shutdown(socket.SHUT_WR)
    answer = bytearray()
    while piece := raw.recv(1 << 16):
        answer += piece
    assert answer[4:8] != SERVED, f"served: {data!r} -> {answer[:200]!r}"
    at = 0
    while at + 8 <= len(answer) and (size := int.from_bytes(answer[at : at + 4], "big")) < 1 << 16:
        assert answer[at + 4 : at + 8] != SERVED, f"served: {data!r} -> {answer[:200]!r}"
        at += 4 + size
    return "answered" if answer else "closed"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.logins")
    parser.add_argument("--attempts", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=None)
    chosen = parser.parse_args()
    seed = SystemRandom().randrange(1 << 32) if chosen.seed is None else chosen.seed
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="strata-logins-")))
        found = attack(stack.enter_context(target(place)), seed, chosen.attempts)
    print(f"seed {seed}: {found.total()} attempts, none was served; {dict(sorted(found.items()))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
