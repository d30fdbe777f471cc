"""Third-party clients on a listener with TLS and logins: each one's own settings, and its own word for a refusal.

In: an `Access`: an address, and what a client shows there. Out: a `Client` with these settings; the text of the error
that it raises or logs where the broker refuses it. It never judges.
"""

import asyncio
import logging
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import StringIO
from itertools import chain
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import confluent_kafka
import kafka.errors
import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider as AioTokens
from aiokafka.errors import KafkaError as AioKafkaError
from confluent_kafka import Producer
from kafka import KafkaProducer
from kafka.net.sasl.oauth import AbstractTokenProvider
from tests.compat.clients import (
    TIMEOUT_S,
    AioKafka,
    Client,
    ConfluentKafka,
    KafkaJs,
    KafkaPython,
    Kcat,
    Seen,
    Sent,
)
from tests.compat.tools import java_tool

from stratalog.testing.certificates import Identity

MUTUAL_TLS = "mutual TLS"
SCRAMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
PASSWORDS = ("PLAIN", *SCRAMS)
MECHANISMS = (*PASSWORDS, "OAUTHBEARER", MUTUAL_TLS)
TOOLS = "org.apache.kafka.tools"
ALLOWED = "org.apache.kafka.sasl.oauthbearer.allowed.urls"
"""Java's property: the addresses from which Kafka takes a token."""
MODULES = "org.apache.kafka.common.security"


@dataclass(frozen=True)
class Access:
    """A listener of `address`, and what a client shows there.

    A user and a password, or a `token`, or the certificate of `identity`.
    """

    address: str
    mechanism: str
    authority: Path
    user: str = ""
    password: str = ""
    token: str = ""
    identity: Identity | None = None

    @property
    def protocol(self) -> str:
        return "SSL" if self.mechanism == MUTUAL_TLS else "SASL_SSL"

    def context(self) -> ssl.SSLContext:
        found = ssl.create_default_context(cafile=self.authority)
        if self.identity is not None:
            found.load_cert_chain(self.identity.pem)
        return found


def librdkafka(access: Access) -> dict[str, str]:
    """Return librdkafka's settings, without a way to a token: versions differ in it."""
    found = {
        "security.protocol": access.protocol,
        "ssl.ca.location": str(access.authority),
        "ssl.endpoint.identification.algorithm": "https",
    }
    if access.identity is not None:
        keys = {"certificate": access.identity.certificate, "key": access.identity.key}
        found |= {f"ssl.{name}.location": str(path) for name, path in keys.items()}
    if access.mechanism != MUTUAL_TLS:
        found["sasl.mechanism"] = access.mechanism
    if access.mechanism in PASSWORDS:
        found |= {"sasl.username": access.user, "sasl.password": access.password}
    return found


def confluent(access: Access) -> dict[str, Any]:
    found: dict[str, Any] = {**librdkafka(access)}
    if access.token:
        found["oauth_cb"] = lambda _: (access.token, time.time() + 300)
    return found


def python(access: Access) -> dict[str, Any]:
    """Return the settings of kafka-python and of aiokafka; each has tokens of its own."""
    found: dict[str, Any] = {
        "security_protocol": access.protocol,
        "ssl_context": access.context(),
    }
    if access.mechanism != MUTUAL_TLS:
        found["sasl_mechanism"] = access.mechanism
    if access.mechanism in PASSWORDS:
        found |= {"sasl_plain_username": access.user, "sasl_plain_password": access.password}
    return found


def kafka_python(access: Access) -> dict[str, Any]:
    class Tokens(AbstractTokenProvider):
        def token(self) -> str:
            return access.token

    return python(access) | ({"sasl_oauth_token_provider": Tokens()} if access.token else {})


def aiokafka(access: Access) -> dict[str, Any]:
    class Tokens(AioTokens):
        async def token(self) -> str:
            return access.token

    return python(access) | ({"sasl_oauth_token_provider": Tokens()} if access.token else {})


def kafkajs(access: Access) -> dict[str, Any]:
    tls = {"ca": [access.authority.read_text()]}
    if access.identity is not None:
        tls |= {
            "key": access.identity.key.read_text(),
            "cert": access.identity.certificate.read_text(),
        }
    found: dict[str, Any] = {"ssl": tls, "retry": {"retries": 1}}
    if access.mechanism in PASSWORDS:
        sasl = {"mechanism": access.mechanism.lower(), "username": access.user}
        found["sasl"] = {**sasl, "password": access.password}
    return found | ({"token": access.token} if access.token else {})


def java_properties(access: Access, token: Path) -> dict[str, str]:
    """Return the settings of Apache Kafka's own clients. They read the token from a file."""
    found = {
        "security.protocol": access.protocol,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(access.authority),
    }
    if access.identity is not None:
        found |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(access.identity.pem)}
    if access.mechanism != MUTUAL_TLS:
        found["sasl.mechanism"] = access.mechanism
    login = f'required username="{access.user}" password="{access.password}";'
    match access.mechanism:
        case "PLAIN":
            found["sasl.jaas.config"] = f"{MODULES}.plain.PlainLoginModule {login}"
        case "OAUTHBEARER":
            package = f"{MODULES}.oauthbearer"
            found |= {
                "sasl.jaas.config": f"{package}.OAuthBearerLoginModule required;",
                "sasl.login.callback.handler.class": f"{package}.OAuthBearerLoginCallbackHandler",
                "sasl.oauthbearer.token.endpoint.url": token.as_uri(),
            }
        case one if one in SCRAMS:
            found["sasl.jaas.config"] = f"{MODULES}.scram.ScramLoginModule {login}"
    return found


@dataclass(frozen=True)
class Java:
    """Apache Kafka's producer and consumer, in its console tools; `file` has their settings."""

    file: Path
    environ: dict[str, str]
    codecs = ("none",)

    def run(self, name: str, address: str, *words: str, stdin: str | None = None) -> str:
        """Run a tool; return all that it said. Raises AssertionError with that if it fails."""
        given = ("--bootstrap-server", address, "--command-config", str(self.file))
        done = java_tool(name, *given, *words, input_text=stdin, environ=self.environ)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "ERROR" not in done.stdout + done.stderr, done.stdout + done.stderr
        return done.stdout

    def produce(self, address: str, topic: str, records: Sequence[Sent], codec: str) -> None:
        reader = ("--reader-property", "parse.key=true", "--reader-property", "key.separator=|")
        words = ("--topic", topic, "--compression-codec", codec, *reader)
        lines = "".join(f"{record.key}|{record.value}\n" for record in records)
        self.run(f"{TOOLS}.ConsoleProducer", address, *words, stdin=lines)

    def consume(self, address: str, topic: str, group: str, count: int) -> list[Seen]:
        what = [f"print.{name}=true" for name in ("offset", "timestamp", "key")]
        shown = [word for one in what for word in ("--formatter-property", one)]
        words = ("--topic", topic, "--group", group, "--from-beginning", *shown)
        bounds = ("--max-messages", str(count), "--timeout-ms", f"{TIMEOUT_S * 1000}")
        said = self.run(f"{TOOLS}.consumer.ConsoleConsumer", address, *words, *bounds)
        rows = [line.split("\t") for line in said.splitlines()]
        return [
            Seen(int(offset.partition(":")[2]), int(created.partition(":")[2]), key, value, ())
            for created, offset, key, value in rows
        ]


def kcat(access: Access, place: Path) -> Kcat:
    """Return kcat with confluent-kafka's librdkafka: the SCRAM of Debian's is refused, as by Apache Kafka 4.3."""
    library = place / "librdkafka.so.1"
    if not library.exists():
        bundled = Path(confluent_kafka.__file__).parents[1] / "confluent_kafka.libs"
        for path in bundled.iterdir():
            (place / path.name).symlink_to(path)
        library.symlink_to(next(bundled.glob("librdkafka*")))
    words = (("-X", f"{name}={value}") for name, value in librdkafka(access).items())
    return Kcat(tuple(chain(*words)), place)


def client(name: str, access: Access, place: Path) -> Client:
    """Return the client with its settings; a file of them goes into `place`."""
    match name:
        case "confluent-kafka":
            return ConfluentKafka(confluent(access))
        case "kafka-python":
            return KafkaPython(kafka_python(access))
        case "aiokafka":
            return AioKafka(aiokafka(access))
        case "kafkajs":
            return KafkaJs(kafkajs(access))
        case "kcat":
            return kcat(access, place)
    return java(access, place)


def java(access: Access, place: Path) -> Java:
    """Return Apache Kafka's tools with their settings, and the token, in files of `place`."""
    token, file = place / "token", place / "client.properties"
    token.write_text(access.token)
    properties = java_properties(access, token).items()
    file.write_text("".join(f"{name}={value}\n" for name, value in properties))
    return Java(file, {"JDK_JAVA_OPTIONS": f"-D{ALLOWED}={token.as_uri()}"})


CLIENTS = ("confluent-kafka", "kafka-python", "aiokafka", "kafkajs", "kcat", "java")


def refusal(name: str, access: Access, place: Path) -> str:
    """Return what a client says that the broker refuses: its error, and its log."""
    attempt = ATTEMPTS.get(name)
    if attempt is not None:
        return attempt(access)
    with pytest.raises(AssertionError) as said:
        client(name, access, place).consume(access.address, "refused", "refused", 1)
    return str(said.value)


def confluent_attempt(access: Access) -> str:
    """Return the first error of the producer."""
    errors: list[str] = []
    producer = Producer(
        confluent(access)
        | {
            "bootstrap.servers": access.address,
            "error_cb": lambda error: errors.append(f"{error.name()}: {error.str()}"),
        }
    )
    deadline = time.monotonic() + TIMEOUT_S
    while not errors and time.monotonic() < deadline:
        producer.poll(0.1)
    return " ".join(errors)


@contextmanager
def logged(name: str) -> Iterator[StringIO]:
    """Collect the log of a library."""
    text = StringIO()
    handler = logging.StreamHandler(text)
    logger = logging.getLogger(name)
    logger.addHandler(handler)
    try:
        yield text
    finally:
        logger.removeHandler(handler)


def python_attempt(access: Access) -> str:
    """Ask in a process of its own: a producer that fails leaves its sockets open."""
    with get_context("spawn").Pool(1) as pool:
        return pool.apply(python_error, (access,))


def python_error(access: Access) -> str:
    with logged("kafka") as text:
        try:
            KafkaProducer(
                bootstrap_servers=access.address, bootstrap_timeout_ms=1000, **kafka_python(access)
            )
        except kafka.errors.KafkaError as error:
            text.write(repr(error))
        return text.getvalue()


def aiokafka_attempt(access: Access) -> str:
    async def attempt() -> str:
        producer = AIOKafkaProducer(bootstrap_servers=access.address, **aiokafka(access))
        try:
            with pytest.raises(AioKafkaError) as error:
                await producer.start()
        finally:
            await producer.stop()
        return repr(error.value)

    with logged("aiokafka") as text:
        return asyncio.run(attempt()) + " " + text.getvalue()


ATTEMPTS: dict[str, Callable[[Access], str]] = {
    "confluent-kafka": confluent_attempt,
    "kafka-python": python_attempt,
    "aiokafka": aiokafka_attempt,
}
