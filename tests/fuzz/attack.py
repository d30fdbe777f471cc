"""A broker under attack: the whole node in virtual time, and hostile frames over its own connections.

In: a seed and the number of a round. Out: counts, or `Broken` with the seed, the round and the fault. A
round is one process of a broker with its own disks, so any round can be repeated alone.

The frames of an API that only controllers' listeners serve go to such a listener, all others to the broker's.

After every frame an honest request follows on the same connection: the broker answers it, or has closed the
connection. From time to time another client produces records and reads them. At the end no client's state is left, the
log has no failure, and the node starts again from its disks.
"""

import asyncio
import gc
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, cast
from uuid import UUID

import structlog
from tests.fuzz.frames import NODE, Frame, Frames, Known
from tests.fuzz.poison import CODECS
from tests.sim.controller_listener import PORT as CONTROLLER_PORT
from tests.sim.controller_listener import listen_as_controller
from tests.sim.loop import run
from tests.sim.machine import ADDRESS, Machine
from tests.sim.world import World

from stratalog.broker.apis import APIS
from stratalog.client.aio import Client
from stratalog.client.calls import NewTopic
from stratalog.errors import Corrupt
from stratalog.wire.apis import PRODUCE, ListenerKind
from stratalog.wire.batch import scan
from stratalog.wire.envelope import decode_response
from stratalog.wire.frames import FrameReader
from stratalog.wire.records import Record, build_batch, read_records

FRAMES_PER_ROUND = 5000
ATTACKERS = 4
HONEST_EVERY = 250
PATIENCE_S = 1.0
"""Virtual seconds until a frame counts as one that waits (a join, a fetch)."""
HONEST = 0x6E000000
KEPT = "kept"
ALARMING = ("failed", "Traceback", "unreadable", "not closed cleanly", "not removed")


class Broken(AssertionError):
    """The broker did what it must not do."""


@dataclass
class Round:
    """The counts of one round."""

    frames: int = 0
    answered: int = 0
    closed: int = 0
    waited: int = 0
    alarms: list[str] = field(default_factory=list)
    apis: Counter[int] = field(default_factory=Counter)
    last: dict[int, Frame] = field(default_factory=dict)
    """The frame that each attacker sent last, for the report."""


class Attacker(asyncio.BufferedProtocol):
    """One hostile connection."""

    def __init__(self) -> None:
        self.closed = False
        self.answers: list[memoryview] = []
        self._reader = FrameReader(1 << 30, bytearray(1 << 16))
        self._wake = asyncio.get_running_loop().create_future()
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        self.answers += self._reader.buffer_updated(nbytes)
        self._changed()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._changed()

    def _changed(self) -> None:
        if not self._wake.done():
            self._wake.set_result(None)

    def send(self, data: bytes) -> None:
        self._transport.write(data)

    def close(self) -> None:
        self._transport.close()

    async def until_answered(self, correlation: int) -> list[memoryview] | None:
        """Return the answers before the honest request's, or None if the connection was closed. Raise TimeoutError."""
        mark = correlation.to_bytes(4, "big")
        async with asyncio.timeout(PATIENCE_S):
            while True:
                for place, answer in enumerate(self.answers):
                    if answer[:4] == mark:
                        before = self.answers[:place]
                        del self.answers[: place + 1]
                        return before
                if self.closed:
                    return None
                self._wake = asyncio.get_running_loop().create_future()
                await self._wake


def framed(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def honest_request(kind: ListenerKind, correlation: int) -> bytes:
    """Among the cheapest to answer.

    Heartbeat version 0 of an unknown member; ApiVersions version 0 on listeners without groups.
    """
    key, body = b"\0\x0c", b"\0\5group" + bytes(4) + b"\0\0"
    if kind is ListenerKind.CONTROLLER:
        key, body = b"\0\x12", b""
    return framed(key + b"\0\0" + correlation.to_bytes(4, "big") + b"\xff\xff" + body)


def listener_of(key: int) -> ListenerKind:
    """Return the listener that gets an API's frames."""
    served = ListenerKind.BROKER in APIS[key].listeners
    return ListenerKind.BROKER if served else ListenerKind.CONTROLLER


async def attack(
    machine: Machine, frames: Frames, known: Known, found: Round, count: int, number: int
) -> None:
    """Send `count` frames, one at a time, on one connection to each kind of listener after another."""
    host, broker_port = ADDRESS.split(":")
    ports = {ListenerKind.BROKER: int(broker_port), ListenerKind.CONTROLLER: CONTROLLER_PORT}
    attackers: dict[ListenerKind, Attacker] = {}
    for turn in range(count):
        frame = next(frames)
        kind = listener_of(frame.key)
        if kind not in attackers or attackers[kind].closed:
            _, protocol = await machine.world.network.connect(host, ports[kind], Attacker)
            attackers[kind] = cast(Attacker, protocol)
        attacker = attackers[kind]
        found.last[number] = frame
        found.frames += 1
        found.apis[frame.key] += 1
        attacker.send(framed(frame.data) + honest_request(kind, HONEST + turn))
        try:
            answers = await attacker.until_answered(HONEST + turn)
        except TimeoutError:
            found.waited += 1
            attackers.pop(kind).close()
            continue
        if answers is None:
            found.closed += 1
            if frame.sound and frame.key != PRODUCE:  # acks=0: closing reports a failure
                found.alarms.append(f"a sound frame closed its connection: {frame}")
        else:
            found.answered += 1
            if frame.sound and answers:
                readable(frame, answers, found, known)
    for attacker in attackers.values():
        attacker.close()


def readable(frame: Frame, answers: list[memoryview], found: Round, known: Known) -> None:
    """A sound request gets an answer that a client of that version can read."""
    try:
        _, answer = decode_response(frame.key, frame.version, answers[0])
    except Corrupt as error:
        found.alarms.append(f"the answer cannot be read: {error}: {frame}")
    else:
        known.learn(frame.key, answer)


class Neighbour:
    """An honest client beside the attackers, on a topic that they do not know."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.count = 0

    async def look(self) -> None:
        """Write one batch and read it back."""
        written = [Record(0, self.count, b"key", b"%d" % self.count, ())]
        codec = CODECS[self.count % len(CODECS)]
        produced = await self.client.produce(KEPT, 0, build_batch(written, codec=codec))
        assert produced.base_offset == self.count, (produced, self.count)
        await self.read(self.count)
        self.count += 1

    async def read(self, offset: int) -> None:
        fetched = await self.client.fetch(KEPT, 0, offset)
        view = memoryview(fetched.records)
        at, header = next(scan(view))
        (record, *_) = read_records(view[at : at + header.size])
        assert (record.offset, record.value) == (offset, b"%d" % offset), record


def listen(alarms: list[str]) -> None:
    """Collect the lines of the broker's log that report a failure."""

    def receive(_logger: Any, method: str, event: Mapping[str, Any]) -> Any:
        words = str(event.get("event"))
        if method == "error" or any(word in words for word in ALARMING):
            alarms.append(f"{words}: {dict(event)}")
        raise structlog.DropEvent

    structlog.configure(processors=[receive], cache_logger_on_first_use=False)


async def _round(seed: int, number: int, count: int) -> Round:
    chance = Random(f"{seed} {number}")
    world = World(chance.getrandbits(32))
    world.network._trace = lambda *_: None
    world.note = lambda *_: None  # type: ignore[method-assign]
    found = Round()
    listen(found.alarms)
    settings = {"node.id": str(NODE), "connections.max.idle.ms": "600000"}
    settings["telemetry.series.enable"] = "true"  # or two APIs are not served
    machine = Machine(world, {"num.partitions": "2", **settings})
    await machine.start()
    await listen_as_controller(machine)
    client = await machine.connect()
    own = {"max.message.bytes": "1000000", "retention.ms": "-1", "compression.type": "producer"}
    own |= {"message.timestamp.type": "CreateTime", "segment.bytes": "1048576"}
    await client.create_topics([NewTopic(KEPT, partitions=1, configs=own)])
    neighbour = Neighbour(client)
    await neighbour.look()
    known = Known()
    sent = 0
    while sent < count:
        await client.create_topics(
            [NewTopic(name, partitions=3, configs={}) for name in ("sound", "other")]
        )
        await machine.broker.groups.ensure_topic()
        known.topic_ids[:] = topic_ids(machine)
        some = min(HONEST_EVERY, count - sent)
        share = [some // ATTACKERS + (place < some % ATTACKERS) for place in range(ATTACKERS)]
        async with asyncio.TaskGroup() as attacks:
            for place, frames in enumerate(share):
                supply = Frames(Random(chance.getrandbits(64)), known)
                attacks.create_task(attack(machine, supply, known, found, frames, place))
        sent += some
        await neighbour.look()
        if found.alarms or machine.broken_tasks:
            break
    await finish(machine, neighbour, found, kill=chance.random() < 0.5)
    return found


def topic_ids(machine: Machine) -> list[UUID]:
    topics = machine.broker.metadata.image.topics_by_id
    return [topic.id for topic in topics.values() if topic.name != KEPT][:20]


async def finish(machine: Machine, neighbour: Neighbour, found: Round, *, kill: bool) -> None:
    """Check after the attack: no connection remains, and the next process finds every acknowledged record."""
    await neighbour.client.close()
    await asyncio.sleep(PATIENCE_S)
    left = machine.node._connections
    if left:
        found.alarms.append(f"{len(left)} connections are left of clients that went away")
    await (machine.kill() if kill else machine.stop())
    await machine.start()
    client = await machine.connect()
    again = Neighbour(client)
    for offset in range(neighbour.count):
        await again.read(offset)
    await machine.stop()
    found.alarms += [repr(error) for error in machine.broken_tasks]


def play(seed: int, number: int, count: int = FRAMES_PER_ROUND) -> Round:
    """One round. Raises Broken."""
    try:
        found = run(_round(seed, number, count))
    except BaseException as error:
        raise Broken(f"seed {seed}, round {number}: {error!r}") from error
    finally:
        structlog.reset_defaults()
        gc.collect()
    if found.alarms:
        last = "\n".join(str(frame) for frame in found.last.values())
        alarms = "\n".join(alarm[:3000] for alarm in found.alarms[:3])
        raise Broken(f"seed {seed}, round {number}:\n{alarms}\nlast frames:\n{last[:3000]}")
    return found
