"""Third-party clients behind one interface, so that one test covers each.

In: a broker's address, a topic, records; for a secured listener also the client's own settings. Out: the client's
answers and the records that it read, as plain values. It never judges; all records go to partition 0.
"""

import asyncio
import gc
import json
import os
import subprocess
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, Protocol, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from confluent_kafka import Consumer, Message, Producer
from kafka import KafkaConsumer, KafkaProducer
from kafka.structs import TopicPartition as PythonPartition
from tests.compat.tools import debian_packages, node, npm_package

TIMEOUT_S = 60
KAFKAJS = "kafkajs@2.2.4"
KCAT = ("kcat", "librdkafka1", "libyajl2", "libsasl2-2")
P = ParamSpec("P")
T = TypeVar("T")
Headers = tuple[tuple[str, str], ...]
Settings = Mapping[str, Any]
"""A client's own settings, by its own names."""


class Sent(NamedTuple):
    """A record to write; None is no key, no value."""

    key: str | None
    value: str | None
    headers: Headers = ()


class Seen(NamedTuple):
    """A record that a client read. `timestamp` is epoch milliseconds."""

    offset: int
    timestamp: int
    key: str | None
    value: str | None
    headers: Headers

    @property
    def sent(self) -> Sent:
        return Sent(self.key, self.value, self.headers)


class Client(Protocol):
    """A client that writes records, and reads `count` of them in a group from its committed offset, then commits."""

    @property
    def codecs(self) -> tuple[str, ...]: ...

    def produce(self, address: str, topic: str, records: Sequence[Sent], codec: str) -> None: ...

    def consume(self, address: str, topic: str, group: str, count: int) -> list[Seen]: ...


def encoded(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def decoded(data: bytes | None) -> str | None:
    return None if data is None else data.decode()


def header_bytes(headers: Headers) -> Any:
    """Return headers as every client takes them: a list of pairs of a name and bytes."""
    return [(name, value.encode()) for name, value in headers]


def header_texts(headers: Any) -> Headers:
    """Return headers from a client's form: pairs of a name and bytes, or None for none."""
    return tuple((name, value.decode()) for name, value in headers or ())


@dataclass(frozen=True)
class ConfluentKafka:
    """Current librdkafka, with an idempotent producer."""

    codecs = ("none", "gzip", "snappy", "lz4", "zstd")
    settings: Settings = field(default_factory=dict)

    def produce(self, address: str, topic: str, records: Sequence[Sent], codec: str) -> None:
        errors: list[object] = []
        producer = Producer(
            {
                "bootstrap.servers": address,
                "compression.type": codec,
                "enable.idempotence": True,
                **self.settings,
            }
        )
        for key, value, headers in records:
            producer.produce(
                topic,
                encoded(value),
                encoded(key),
                partition=0,
                headers=header_bytes(headers),
                on_delivery=lambda error, _: errors.append(error),
            )
        assert producer.flush(TIMEOUT_S) == 0
        assert errors == [None] * len(records)

    def consume(self, address: str, topic: str, group: str, count: int) -> list[Seen]:
        settings = {"group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False}
        consumer = Consumer({"bootstrap.servers": address, **settings, **self.settings})
        consumer.subscribe([topic])
        read: list[Message] = []
        while len(read) < count:
            messages = consumer.consume(count - len(read), TIMEOUT_S)
            assert messages, f"{len(read)} of {count}"
            read += messages
        consumer.commit(message=read[-1], asynchronous=False)
        consumer.close()
        assert [message.error() for message in read] == [None] * count
        return [
            Seen(
                message.offset() or 0,
                message.timestamp()[1],
                decoded(message.key()),
                decoded(message.value()),
                header_texts(message.headers()),
            )
            for message in read
        ]


def collecting(work: Callable[P, T]) -> Callable[P, T]:
    """Collect a closed client's sockets, so that Python warns of none in a later test.

    kafka-python 3.0.12 leaves a socket open where it is closed with bytes to send (`kafka/net/transport.py`, `close`).
    """

    @wraps(work)
    def done(*args: P.args, **named: P.kwargs) -> T:
        try:
            return work(*args, **named)
        finally:
            with warnings.catch_warnings():
                warnings.filterwarnings(
                    "ignore", "unclosed <(ssl.SSLS|socket.s)ocket", ResourceWarning
                )
                gc.collect()

    return done


@dataclass(frozen=True)
class KafkaPython:
    """The protocol in Python, blocking; other codecs want packages that its own suite has."""

    codecs = ("none", "gzip")
    settings: Settings = field(default_factory=dict)

    @collecting
    def produce(self, address: str, topic: str, records: Sequence[Sent], codec: str) -> None:
        compression = None if codec == "none" else codec
        producer = KafkaProducer(
            bootstrap_servers=address, compression_type=compression, **self.settings
        )
        futures = [
            producer.send(
                topic, encoded(value), encoded(key), headers=header_bytes(headers), partition=0
            )
            for key, value, headers in records
        ]
        for future in futures:
            future.get(TIMEOUT_S)
        producer.close()

    @collecting
    def consume(self, address: str, topic: str, group: str, count: int) -> list[Seen]:
        consumer = KafkaConsumer(
            topic,
            bootstrap_servers=address,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            consumer_timeout_ms=TIMEOUT_S * 1000,
            **self.settings,
        )
        read = [message for _, message in zip(range(count), consumer, strict=False)]
        consumer.seek(PythonPartition(topic, 0), read[-1].offset + 1)
        consumer.commit()
        consumer.close()
        return seen_by_python(read)


@dataclass(frozen=True)
class AioKafka:
    """The protocol in Python, on asyncio, with an idempotent producer."""

    codecs = ("none", "gzip", "snappy", "lz4", "zstd")
    settings: Settings = field(default_factory=dict)

    def produce(self, address: str, topic: str, records: Sequence[Sent], codec: str) -> None:
        async def send() -> None:
            producer = AIOKafkaProducer(
                bootstrap_servers=address,
                compression_type=None if codec == "none" else codec,
                enable_idempotence=True,
                **self.settings,
            )
            async with producer:
                waiting = [
                    await producer.send(
                        topic,
                        encoded(value),
                        encoded(key),
                        partition=0,
                        headers=header_bytes(headers),
                    )
                    for key, value, headers in records
                ]
                for delivery in waiting:
                    await delivery

        asyncio.run(asyncio.wait_for(send(), TIMEOUT_S))

    def consume(self, address: str, topic: str, group: str, count: int) -> list[Seen]:
        async def read() -> list[Seen]:
            consumer = AIOKafkaConsumer(
                topic,
                bootstrap_servers=address,
                group_id=group,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                **self.settings,
            )
            async with consumer:
                messages = [await consumer.getone() for _ in range(count)]
                await consumer.commit({TopicPartition(topic, 0): messages[-1].offset + 1})
            return seen_by_python(messages)

        return asyncio.run(asyncio.wait_for(read(), TIMEOUT_S))


def seen_by_python(messages: Sequence[Any]) -> list[Seen]:
    """Return the messages of kafka-python and its descendant as `Seen`."""
    return [
        Seen(
            message.offset,
            message.timestamp,
            decoded(message.key),
            decoded(message.value),
            header_texts(message.headers),
        )
        for message in messages
    ]


def program(
    command: Sequence[str | Path], *, stdin: str = "", environ: dict[str, str] | None = None
) -> str:
    """Run a program; return its output. Raises AssertionError with its error output if it fails."""
    done = subprocess.run(
        command,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        env={**os.environ, **(environ or {})},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@dataclass(frozen=True)
class KafkaJs:
    """The protocol in JavaScript, last released in 2023: the oldest API versions in wide use."""

    codecs = ("none", "gzip")
    settings: Settings = field(default_factory=dict)

    def ask(self, address: str, what: str, asked: dict[str, Any]) -> Any:
        script = Path(__file__).with_name("kafkajs_client.js")
        environ = {"KAFKAJS_NO_PARTITIONER_WARNING": "1"}
        words: list[str | Path] = [
            node(),
            script,
            npm_package(KAFKAJS),
            address,
            what,
            json.dumps({**asked, "settings": self.settings}),
        ]
        return json.loads(program(words, environ=environ).splitlines()[-1])

    def produce(self, address: str, topic: str, records: Sequence[Sent], codec: str) -> None:
        asked = {"topic": topic, "records": records, "codec": codec, "idempotent": True}
        (answer,) = self.ask(address, "produce", asked)
        assert (answer["errorCode"], answer["baseOffset"]) == (0, "0")

    def consume(self, address: str, topic: str, group: str, count: int) -> list[Seen]:
        asked = {"topic": topic, "group": group, "count": count}
        return [
            Seen(offset, timestamp, key, value, tuple((name, text) for name, text in headers))
            for _, offset, timestamp, key, value, headers in self.ask(address, "consume", asked)
        ]


@dataclass(frozen=True)
class Kcat:
    """librdkafka 2.0.2, the one that Debian 12 ships: an old client. Headers are one set for all records."""

    codecs = ("none", "gzip", "snappy", "lz4", "zstd")
    words: tuple[str, ...] = ()
    library: Path | None = None
    """A directory with another librdkafka."""

    def run(self, address: str, *words: str, stdin: str = "") -> str:
        root = debian_packages(*KCAT)
        places = [*filter(None, [self.library]), *root.glob("usr/lib/*/")]
        libraries = ":".join(map(str, places))
        command: list[str | Path] = [
            root / "usr" / "bin" / "kcat",
            "-b",
            address,
            *self.words,
            *words,
        ]
        return program(command, stdin=stdin, environ={"LD_LIBRARY_PATH": libraries})

    def produce(self, address: str, topic: str, records: Sequence[Sent], codec: str) -> None:
        headers = [f"-H{name}={value}" for name, value in records[0].headers]
        lines = "".join(f"{record.key or ''}|{record.value or ''}\n" for record in records)
        # -Z: kcat sends empty values as null.
        words = ["-P", "-t", topic, "-p", "0", "-K", "|", "-Z", "-z", codec, *headers]
        self.run(address, *words, stdin=lines)

    def consume(self, address: str, topic: str, group: str, count: int) -> list[Seen]:
        words = ["-J", "-c", str(count), "-X", "auto.offset.reset=earliest", "-G", group, topic]
        return [self.seen(json.loads(line)) for line in self.run(address, *words).splitlines()]

    @staticmethod
    def seen(message: dict[str, Any]) -> Seen:
        flat = message.get("headers", [])
        headers = tuple(zip(flat[::2], flat[1::2], strict=True))
        return Seen(message["offset"], message["ts"], message["key"], message["payload"], headers)


CLIENTS: dict[str, Client] = {
    "confluent-kafka": ConfluentKafka(),
    "kafka-python": KafkaPython(),
    "aiokafka": AioKafka(),
    "kafkajs": KafkaJs(),
    "kcat": Kcat(),
}
