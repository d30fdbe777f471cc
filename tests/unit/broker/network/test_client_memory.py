"""Clients that hold half requests do not keep the others waiting: before a login, after it, or from one address.

Method: the broker's own connections above a transport that keeps what they do. A request grows old by its own clock.
"""

import asyncio
from collections.abc import Callable, Coroutine
from time import perf_counter_ns
from typing import Any

from stratalog.broker.network.answers import Later, as_it_is
from stratalog.broker.network.client_memory import ClientMemory
from stratalog.broker.network.connection import Connection, Shared
from stratalog.broker.network.sasl import SaslState
from stratalog.broker.network.session import ANONYMOUS, USER, ListenerContext, Principal, Session
from stratalog.broker.network.turns import Turns
from stratalog.config.sasl import SaslListener
from stratalog.wire.frames import SCRATCH_BYTES

MIB = 1 << 20
LIMIT = 64 * MIB
"""So the reserve has 8 MiB, and the pool of unknown clients 4 MiB."""
LARGE, SMALL = 90 * MIB, 100 << 10
OLD_S, VERY_OLD_S = 4.0, 11.0


class Transport(asyncio.Transport):
    """Remembers whether it reads, and whether it was ended."""

    def __init__(self, host: str) -> None:
        super().__init__({"peername": (host, 1)})
        self.reads, self.ended = True, False

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def is_closing(self) -> bool:
        return self.ended

    def abort(self) -> None:
        self.ended = True


class Node:
    """The connections of one node; none of their requests is ever answered."""

    def __init__(self) -> None:
        self.memory = ClientMemory(LIMIT, -1)
        scratch = bytearray(SCRATCH_BYTES)
        self.shared = Shared(100 * MIB, scratch, self.memory, Turns(perf_counter_ns))
        self.open: list[Client] = []

    def client(self, user: str = "", host: str = "h", *, sasl: bool = False) -> "Client":
        found = Client(self, user, host, sasl=sasl)
        self.open.append(found)
        return found

    def holders(self, count: int, size: int, frame: int, **of: str) -> "list[Client]":
        """Return clients that have each sent `size` bytes of a frame, so far as they were read."""
        found = [self.client(**of) for _ in range(count)]
        for one in found:
            one.sends(frame, size)
        return found


class Client:
    def __init__(self, node: Node, user: str, host: str, *, sasl: bool) -> None:
        listener = ListenerContext("T", sasl=SaslListener(("PLAIN",), {}) if sasl else None)
        state = SaslState(listener.logins, listener.bearer) if sasl else None
        session = Session(listener, sasl=state)
        session.principal = Principal(USER, user) if user else ANONYMOUS
        never = asyncio.get_running_loop().create_future
        self.connection = Connection(
            lambda _session, _frame: Later(never(), as_it_is),
            node.shared,
            session,
            opened=lambda _: True,
            closed=lambda _: None,
        )
        self.received = -4
        self.transport = Transport(host)
        self.connection.connection_made(self.transport)

    def sends(self, frame: int, size: int) -> None:
        """Send the head of a frame and `size` of its bytes."""
        self.send(frame.to_bytes(4, "big") + bytes(size))

    def send(self, data: bytes) -> None:
        while data and self.transport.reads and not self.transport.ended:
            room = self.connection.get_buffer(-1)
            count = min(len(room), len(data))
            room[:count] = data[:count]
            self.connection.buffer_updated(count)
            self.received += count
            data = data[count:]

    @property
    def is_served(self) -> bool:
        """Whether a whole request has arrived."""
        return not self.connection.is_idle

    def ages(self, seconds: float) -> None:
        self.connection.began_s -= seconds


def played(tell: Callable[[Node], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        node = Node()
        await tell(node)
        for one in node.open:
            one.connection.connection_lost(None)
        memory = node.memory
        assert (memory.requests, memory.unknown_bytes, memory._held.total) == (0, 0, 0)
        assert not memory.unknown
        assert not memory._large
        assert not memory._waiting

    asyncio.run(whole())


def ended(clients: list[Client]) -> list[bool]:
    return [one.transport.ended for one in clients]


def test_half_requests_before_a_login_end_where_they_hold_most() -> None:
    async def tell(node: Node) -> None:
        login = node.client(sasl=True)
        login.sends(3000, 2000)
        half = 511 << 10
        many = []
        for _ in range(20):
            many.append(node.client(sasl=True))
            many[-1].sends(512 << 10, half)
            assert node.memory.unknown_bytes <= node.memory.unknown_bytes_max
        assert sum(ended(many)) > 10
        assert node.memory.ended["before_login"] == sum(ended(many))
        assert not ended([login])[0]
        open_still = [one.connection for one in many if not one.transport.ended]
        assert list(node.memory.unknown) == [login.connection, *open_still]
        assert not node.memory.requests, "clients with a login have all of theirs"

    played(tell)


def test_a_login_counts_for_the_client_from_then_on() -> None:
    async def tell(node: Node) -> None:
        client = node.client("alice", sasl=True)
        client.sends(MIB // 4, MIB // 8)
        held = client.connection.bytes_held
        assert (node.memory.unknown_bytes, node.memory.requests) == (held, 0)
        client.connection._logged_in()
        assert (node.memory.unknown_bytes, node.memory.requests) == (0, held)
        assert node.memory._held.of(Principal(USER, "alice")) == held

    played(tell)


def test_a_small_request_of_another_principal_passes_at_once() -> None:
    async def tell(node: Node) -> None:
        greedy = node.holders(60, 2 * MIB, LARGE, user="greedy")
        greedy += node.holders(60, 511 << 10, 512 << 10, user="greedy")
        assert node.memory.is_short
        honest = node.client("honest")
        honest.sends(SMALL, SMALL)
        assert honest.is_served
        assert not any(ended(greedy)), "nothing ended yet: no request is old"
        again = node.client("greedy")
        again.sends(SMALL, SMALL)
        assert not again.is_served

    played(tell)


def test_old_half_requests_end_for_a_small_one_of_their_own_address() -> None:
    async def tell(node: Node) -> None:
        greedy = node.holders(150, 511 << 10, 512 << 10)
        held_back = node.client()
        held_back.sends(SMALL, SMALL)
        assert not held_back.is_served
        for place, one in enumerate(greedy):
            one.ages(OLD_S + (1 if place == 7 else 0))
        node.memory._looked_s = 0.0
        honest = node.client()
        honest.sends(SMALL, SMALL)
        assert honest.is_served
        assert ended(greedy)[7], "the oldest first, read or not"
        assert 0 < sum(ended(greedy)) < 20, "no more than it needs"
        assert node.memory.ended["half_request"] == sum(ended(greedy))

    played(tell)


def test_a_small_request_that_waits_passes_once_half_requests_are_old() -> None:
    async def tell(node: Node) -> None:
        greedy = node.holders(150, 511 << 10, 512 << 10)
        honest = node.client()
        honest.sends(SMALL, SMALL)
        assert not honest.is_served
        for one in greedy:
            one.ages(OLD_S)
        while not honest.transport.reads:
            await asyncio.sleep(0)
        honest.send(bytes(SMALL - honest.received))
        assert honest.is_served

    played(tell)


def test_old_half_requests_of_a_client_that_holds_less_stay() -> None:
    async def tell(node: Node) -> None:
        slow = node.holders(1, MIB // 2, MIB, user="slow")
        slow[0].ages(VERY_OLD_S)
        greedy = node.holders(150, 511 << 10, 512 << 10, user="greedy")
        assert not ended(slow)[0]
        for one in greedy[:100]:
            one.ages(OLD_S)
        node.memory._looked_s = 0.0
        again = node.client("greedy")
        again.sends(SMALL, SMALL)
        assert again.is_served
        assert not ended(slow)[0]
        assert any(ended(greedy))

    played(tell)


def test_a_large_request_has_its_turn_before_those_of_the_client_with_most() -> None:
    async def tell(node: Node) -> None:
        greedy = node.holders(60, 2 * MIB, LARGE, user="greedy")
        assert node.memory.is_short
        assert node.memory._turn in [one.connection for one in greedy]
        honest = node.client("honest")
        honest.sends(5 * MIB, 5 * MIB)
        assert honest.is_served
        assert not any(ended(greedy))

    played(tell)


def test_what_stays_half_received_for_long_ends_though_the_broker_does_not_read_it() -> None:
    async def tell(node: Node) -> None:
        greedy = node.holders(60, 2 * MIB, LARGE, user="greedy")
        paused = [one for one in greedy if not one.transport.reads]
        assert paused
        for one in greedy:
            one.ages(OLD_S)
        node.memory.end_slow()
        assert not any(ended(greedy))
        for one in greedy:
            one.ages(VERY_OLD_S + (one in paused))
        node.memory.end_slow()
        assert any(ended(paused))
        assert not node.memory.is_short

    played(tell)
