"""All connections of a node's clients: accept them, limit their number, close idle ones.

In: the settings, opened and closed connections. Out: a protocol for each accepted connection. It knows no request.

Limits are Kafka's: `max.connections` for all listeners and for each, and `max.connections.per.ip` for each address,
with overrides. The broker closes a connection beyond a limit at once. A lower limit closes no existing connection.
Connections beyond `max.connection.creation.rate`, for all listeners or one, are accepted and wait for their turn
(KIP-612).

All connections together have a part of the process's file descriptors at most: the log needs the others. At the limit
of all a new connection takes the place of an old one whose client has not logged in, else of an idle one of the address
that has most. An address with fewer connections does not give way to one with more.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final, cast

from stratalog.broker.network.answers import Serve
from stratalog.broker.network.audit import Audit
from stratalog.broker.network.client_memory import LITTLE_BYTES, ClientMemory
from stratalog.broker.network.connection import Connection, Shared
from stratalog.broker.network.lending import Lender
from stratalog.broker.network.sasl import SaslState
from stratalog.broker.network.session import ListenerContext, Session
from stratalog.broker.network.throttling import Throttling
from stratalog.broker.network.turns import Turns
from stratalog.config import BrokerConfig
from stratalog.config.listeners import items_of, parse_address_limit
from stratalog.ports import Outside
from stratalog.wire.frames import SCRATCH_BYTES

_LOOK_S: Final = 2.0
_DESCRIPTORS: Final = "file descriptors (ulimit -n)"
_BURST_S: Final = 1.0
_LOGIN_S_MAX: Final = 30.0
"""How long a client of a SASL listener may take to authenticate."""
_QUIET_S_MAX: Final = 3.0
"""How long a request may stay without any byte, while memory is short and its client may send.

Well below the 30 s that other clients wait for their answers.
"""
_ENTERED_S: Final = 1.0
"""How long a new client has to log in before it gives its place to another one."""
_KEPT_DESCRIPTORS: Final = 4096
_ASKED_MAX: Final = 64


class Connections:
    """All connections of a node. Create it before the node listens; `accepting` returns a listener's protocol
    factory.
    """

    def __init__(
        self,
        config: BrokerConfig,
        outside: Outside,
        count: Callable[[bool], None],
    ) -> None:
        """`count` is called for each connection, with whether it was accepted."""
        self.memory = ClientMemory(
            config.int("queued.max.request.bytes"), config.int("queued.max.response.bytes")
        )
        self.turns = Turns(outside.clock.elapsed_ns)
        self._shared = Shared(
            config.int("socket.request.max.bytes"),
            bytearray(SCRATCH_BYTES),
            self.memory,
            self.turns,
            unknown_bytes_max=config.int("sasl.server.max.receive.size"),
            buffer=outside.buffer,
        )
        self._count = count
        self._all: set[Connection] = set()
        self._of_host: dict[str, dict[Connection, None]] = {}
        """By address, in the order of their opening."""
        self._descriptors = outside.descriptors
        self._by_listener: Counter[str] = Counter()
        # Time of the next connection by listener, if connections came at an even rate; "" stands for all listeners.
        self._turn_s: dict[str, float] = {}
        self._log = self._shared.log
        self._listeners = {""}
        self._looking: asyncio.TimerHandle | None = None
        self._throttling: Throttling | None = None
        self.configure(config)

    def begin(self, throttling: Throttling, audit: Audit | None) -> None:
        """Limit connections of one address by the client quotas, and audit refused ones, from now on."""
        self._throttling = throttling
        self._shared.audit = audit

    def lend_by(self, lender: Lender | None) -> None:
        """Lend connections to a door from now on; with None lend none, and take back those that are lent."""
        before, self._shared.lender = self._shared.lender, lender
        if before is not None:
            before.return_all()

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Connection]:
        return iter(list(self._all))

    def configure(self, config: BrokerConfig) -> None:
        """Apply the limits of the present settings."""
        self._config = config
        self._max = {one: config.int(_limit(one, "max.connections")) for one in self._listeners}
        kept = min(self._descriptors // 2, _KEPT_DESCRIPTORS)
        self._max[""] = min(self._max[""], self._descriptors - kept)
        self._rate = {
            one: config.int(_limit(one, "max.connection.creation.rate")) for one in self._listeners
        }
        self._max_by_host = config.int("max.connections.per.ip")
        self._max_of_host = dict(
            map(parse_address_limit, items_of(config.str("max.connections.per.ip.overrides")))
        )

    def accepting(self, serve: Serve, listener: ListenerContext) -> Callable[[], Connection]:
        """Return the function that creates a protocol for each connection of a listener; apply its limits from now
        on.
        """
        self._listeners.add(listener.name)
        self.configure(self._config)

        def accept() -> Connection:
            sasl = None if listener.sasl is None else SaslState(listener.logins, listener.bearer)
            return Connection(
                serve,
                self._shared,
                Session(listener, sasl=sasl),
                opened=self._opened,
                closed=self._closed,
            )

        return accept

    def _opened(self, connection: Connection) -> bool:
        session = connection.session
        listener = session.listener.name
        refused_by = self._refused_by(listener, session.host)
        if refused_by == _DESCRIPTORS or refused_by == _limit("", "max.connections"):
            refused_by = None if self._gives_way(session.host) else refused_by
        self._count(refused_by is None)
        if refused_by is not None:
            self._log.warning(f"connection refused: {refused_by}", peer=connection.peer)
            return False
        self._all.add(connection)
        if self._looking is None:
            self._look_later()
        self._of_host.setdefault(session.host, {})[connection] = None
        self._by_listener[listener] += 1
        wait_s = max(self._until_turn(listener), self._until_turn(""))
        if wait_s > 0:
            connection.mute(wait_s)
        if self._throttling is not None:
            refused_ms = self._throttling.connected(session.host)
            if refused_ms:
                # As in Kafka, the address is closed out after a while: it must not come back at once.
                connection.mute(refused_ms / 1000, connection.abort)
        return True

    def _until_turn(self, listener: str) -> float:
        """Return seconds until the broker may serve a new connection at the allowed rate; one second's worth may come
        at once.
        """
        now = asyncio.get_running_loop().time()
        turn_s = max(self._turn_s.get(listener, now), now) + 1 / self._rate[listener]
        self._turn_s[listener] = turn_s
        return turn_s - now - _BURST_S

    def _refused_by(self, listener: str, host: str) -> str | None:
        for one, count in (("", len(self._all)), (listener, self._by_listener[listener])):
            if count >= self._max[one]:
                limit = _limit(one, "max.connections")
                return limit if self._config.int(limit) == self._max[one] else _DESCRIPTORS
            if not self._rate[one]:
                return _limit(one, "max.connection.creation.rate")
        if len(self._of_host.get(host, ())) >= self._max_of_host.get(host, self._max_by_host):
            return "max.connections.per.ip"
        return None

    def _gives_way(self, host: str) -> bool:
        """End a connection for a new one of an address; return whether one gives way.

        An address with more connections gives way at once; another one only the client that had time to log in.
        """
        late_s = asyncio.get_running_loop().time() - _ENTERED_S
        own = len(self._of_host.get(host, ()))
        unknown = cast("dict[Connection, int]", self.memory.unknown)
        gone: Connection | None = None
        for one in islice(unknown, _ASKED_MAX):
            count = len(self._of_host[one.session.host])
            if count > own + 1 or (count >= own and one.opened_s <= late_s):
                gone = one
                break
        if not unknown:
            largest = max(self._of_host.values(), key=len)
            if len(largest) > own + 1:
                gone = next((one for one in islice(largest, _ASKED_MAX) if one.is_idle), None)
        if gone is None:
            return False
        self.memory.ended["displaced"] += 1
        gone.give_up("another client needs its place")
        self._closed(gone)
        return True

    def _closed(self, connection: Connection) -> None:
        if connection not in self._all:
            return  # the connection was refused
        session = connection.session
        self._all.remove(connection)
        if session.on_close is not None:
            session.on_close()
        self._by_listener[session.listener.name] -= 1
        of_host = self._of_host[session.host]
        del of_host[connection]
        if not of_host:
            del self._of_host[session.host]
        if not self._all and self._looking is not None:
            self._looking.cancel()
            self._looking = None

    def _look_later(self) -> None:
        """Look for idle connections regularly, as long as there is any connection."""
        self._looking = asyncio.get_running_loop().call_later(_LOOK_S, self._look)

    def _look(self) -> None:
        self._look_later()
        self._close_idle()

    def _close_idle(self) -> None:
        """Close idle connections and, while memory is short, those that send a request too slowly."""
        limit_s = self._config.int("connections.max.idle.ms") / 1000
        now = asyncio.get_running_loop().time()
        self.memory.end_slow()
        is_short = self.memory.is_short
        for connection in self:
            if limit_s >= 0 and connection.is_idle and now - connection.active_s > limit_s:
                # Otherwise a client that does not read its answers would never be closed.
                (connection.close if connection.is_taken else connection.abort)()
            elif connection.session.is_unknown and now - connection.opened_s > _LOGIN_S_MAX:
                connection.refuse(f"no authentication in {_LOGIN_S_MAX:g} s")
            elif is_short and self._is_slow(connection, now):
                connection.refuse("its request does not come, and memory for requests is short")

    def _is_slow(self, connection: Connection, now: float) -> bool:
        """Return whether the connection holds memory for a request whose client may send and sends nothing."""
        return (
            connection.is_receiving
            and connection.is_reading
            and connection.bytes_held > LITTLE_BYTES
            and now - max(connection.active_s, connection.receiving_since_s) > _QUIET_S_MAX
        )


def _limit(listener: str, setting: str) -> str:
    """Return a setting of all connections, or of those of one listener (KIP-402)."""
    return f"listener.name.{listener.lower()}.{setting}" if listener else setting
