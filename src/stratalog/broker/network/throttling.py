"""Limit clients by their quotas: count what each request uses, and mute its connection until the rate is kept again.

In: requests and answers of clients with a quota, the cluster's quotas. Out: throttle times, in answers and as muted
connections (KIP-219). It delays no answer, and never closes a connection.

Without a quota of users or client ids `is_on` is False, and no request is counted. Kafka: ClientQuotaManager,
ClientRequestQuotaManager, ControllerMutationQuotaManager, ConnectionQuotas.
"""

from collections import Counter
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from hashlib import sha256
from types import CoroutineType, coroutine
from typing import Any, Final, Protocol

from msgspec import Struct
from msgspec.structs import replace

from stratalog.broker.network.session import Session
from stratalog.config import BrokerConfig
from stratalog.errors import ErrorCode, Rejected
from stratalog.metadata.client_quotas import (
    CONNECTION_RATE,
    CONSUMER_BYTE_RATE,
    MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    USER_KEYS,
    ClientQuotas,
    Limit,
)
from stratalog.ports import Clock
from stratalog.quota import SampledRate, TokenBucket
from stratalog.wire.apis import FETCH, PRODUCE
from stratalog.wire.envelope import Received
from stratalog.wire.messages.fetch import FetchRequest

__all__ = ["Mutations", "Throttling", "Usage"]

_PERCENT_OF_NS: Final = 100 / 1e9
_INT_MAX: Final = 2**31 - 1
_LIMITS_MAX: Final = 10_000
"""Clients whose limits are remembered: a client chooses its client id."""
_CLIENT_ID_MAX: Final = 255
"""Characters of a client id that is remembered; of a longer one, of up to 32,767, its hash."""
_SWEEP_FROM: Final = 1000
_COUNTED_MAX: Final = 20_000
"""Rates that are counted: a client chooses its client id. Beyond it all further ids of a user share one rate."""
_OTHERS: Final = "\0others"


class HasClientQuotas(Protocol):
    """The part of the cluster's image that throttling reads."""

    on_published: list[Callable[[], None]]

    @property
    def client_quotas(self) -> ClientQuotas:
        """The quotas now; their `version` grows with each change."""


class Usage(Struct):
    """What one request uses: its bytes, and the time that the event loop spent on it."""

    session: Session
    client_id: str
    api_key: int
    size: int
    is_exempt: bool
    """Whether a node of the cluster asks: its time does not count."""
    elapsed_ns: Callable[[], int]
    busy_ns: int = 0
    charged: tuple[Any] | None = None
    """The answer, once the request is charged."""

    def begun(self, result: Any, began_ns: int) -> Any:
        """Count the time of a handler's call; return its result, of which each further step counts too."""
        self.busy_ns += self.elapsed_ns() - began_ns
        return self._rest(result) if isinstance(result, CoroutineType) else result

    async def _rest(self, work: Coroutine[Any, Any, Any]) -> Any:
        return await self._steps(work)

    @coroutine
    def _steps(self, work: Coroutine[Any, Any, Any]) -> Generator[Any, Any, Any]:
        step = partial(work.send, None)
        while True:
            began_ns = self.elapsed_ns()
            try:
                awaited = step()
            except StopIteration as done:
                return done.value
            finally:
                self.busy_ns += self.elapsed_ns() - began_ns
            try:
                step = partial(work.send, (yield awaited))
            except GeneratorExit:
                work.close()
                raise
            except BaseException as error:  # noqa: BLE001 - a cancellation, for the handler
                step = partial(work.throw, error)


class Throttling:
    """The client quotas in effect on one node."""

    def __init__(self, config: BrokerConfig, metadata: HasClientQuotas, clock: Clock) -> None:
        samples, sample_s = config.int("quota.window.num"), config.int("quota.window.size.seconds")
        self._samples, self._sample_ms = samples, sample_s * 1000
        self._mutations_s = config.int("controller.quota.window.num") * config.int(
            "controller.quota.window.size.seconds"
        )
        self._clock = clock
        self._metadata = metadata
        self._version = -1
        self._limits: dict[tuple[str, str, str], Limit | None] = {}
        self._counted: dict[tuple[str, ...], SampledRate | TokenBucket] = {}
        """What counts, by quota and the clients that share it."""
        self._sweep_at = _SWEEP_FROM
        self._swept_ms = 0
        self.is_on = False
        """Whether a user or a client id has a quota."""
        self.throttled: Counter[str] = Counter()
        """Requests, or connections, that were throttled, by quota."""
        self.throttled_ms: Counter[str] = Counter()
        metadata.on_published.append(self._follow)
        self._follow()

    def usage(self, session: Session, request: Received, size: int, *, is_of_node: bool) -> Usage:
        """Return the account of a request of `size` bytes, for `charge`. `is_of_node`: only nodes use its API."""
        header = request.header
        is_exempt = is_of_node or (header.api_key == FETCH and _is_follower(request.body))
        elapsed_ns = self._clock.elapsed_ns
        client_id = header.client_id or ""
        return Usage(session, client_id, header.api_key, size, is_exempt, elapsed_ns)

    def charge(self, usage: Usage, body: Any) -> Any:
        """Count a request that is answered with `body`; return the answer with its throttle time, and mute the client.

        The time of a request without an answer does not count, as in Kafka. A request is charged once.
        """
        if usage.charged is None:
            usage.charged = (self._charged(usage, body),)
        return usage.charged[0]

    def _charged(self, usage: Usage, body: Any) -> Any:
        now_ms = self._clock.steady_ms()
        session, client_id = usage.session, usage.client_id
        throttle_ms, by = getattr(body, "throttle_time_ms", 0), ""  # of a fetch, of mutations
        if usage.api_key == PRODUCE:
            over_ms = self._over_ms(PRODUCER_BYTE_RATE, session, client_id, usage.size, now_ms)
            if over_ms > throttle_ms:
                throttle_ms, by = over_ms, PRODUCER_BYTE_RATE
        if body is not None and not usage.is_exempt:
            percent = usage.busy_ns * _PERCENT_OF_NS
            over_ms = self._over_ms(REQUEST_PERCENTAGE, session, client_id, percent, now_ms)
            over_ms = min(over_ms, self._sample_ms)
            if over_ms > throttle_ms:
                throttle_ms, by = over_ms, REQUEST_PERCENTAGE
        if throttle_ms <= 0:
            return body
        if by:
            self._note(by, throttle_ms)
        session.mute(throttle_ms / 1000)
        if not by or not hasattr(body, "throttle_time_ms"):
            return body
        return replace(body, throttle_time_ms=throttle_ms)

    def fetch_bytes(self, session: Session) -> float:
        """Return the most bytes of one fetch: those of a window in which the client fetched nothing."""
        limit = self._limit(CONSUMER_BYTE_RATE, session.principal.name, session.client_id)
        if limit is None:
            return _INT_MAX
        return limit.bound * (self._samples - 1) * self._sample_ms / 1000

    def fetched(self, session: Session, size: int) -> int:
        """Count bytes fetched; return how long to throttle, in ms. Then they do not count: no byte is to be sent."""
        now_ms = self._clock.steady_ms()
        client_id = session.client_id
        over_ms = self._over_ms(CONSUMER_BYTE_RATE, session, client_id, size, now_ms)
        if over_ms:
            limit = self._limit(CONSUMER_BYTE_RATE, session.principal.name, client_id)
            assert limit is not None, "a client without a limit is not over it"
            self._rate_of(CONSUMER_BYTE_RATE, session, limit).record(-size, now_ms)
            self._note(CONSUMER_BYTE_RATE, over_ms)
        return over_ms

    def mutations(self, session: Session, *, is_strict: bool) -> "Mutations":
        """Return the account of a request that creates or deletes partitions.

        A strict one is refused while the client's quota is overdrawn; another is throttled after it overdrew.
        """
        limit = self._limit(MUTATION_RATE, session.principal.name, session.client_id)
        if limit is None:
            return Mutations(self._clock, None, 0, self._note, is_strict=is_strict)
        key = (MUTATION_RATE, limit.user, limit.client_id)
        bucket = self._counted.get(key)
        if bucket is None:
            self._sweep()
            bucket = self._counted[key] = TokenBucket(self._mutations_s)
        assert isinstance(bucket, TokenBucket), "by quota"
        return Mutations(self._clock, bucket, limit.bound, self._note, is_strict=is_strict)

    def connected(self, address: str) -> int:
        """Count a connection; return how long it must wait before it is closed, in ms; 0: it is served."""
        bound = self._metadata.client_quotas.connection_rate(address)
        if bound is None:
            return 0
        now_ms = self._clock.steady_ms()
        rate = self._rate(CONNECTION_RATE, address)
        rate.record(1, now_ms)
        over_ms = min(rate.wait_ms(bound, now_ms), self._sample_ms)
        if over_ms:
            rate.record(-1, now_ms)
            self._note(CONNECTION_RATE, over_ms)
        return over_ms

    def _follow(self) -> None:
        quotas = self._metadata.client_quotas
        if quotas.version != self._version:
            self._version = quotas.version
            self._limits.clear()
            self.is_on = not quotas.keys.isdisjoint(USER_KEYS)

    def _over_ms(
        self, key: str, session: Session, client_id: str, amount: float, now_ms: int
    ) -> int:
        limit = self._limit(key, session.principal.name, client_id)
        if limit is None:
            return 0
        rate = self._rate_of(key, session, limit)
        rate.record(amount, now_ms)
        return min(rate.wait_ms(limit.bound, now_ms), _INT_MAX)

    def _limit(self, key: str, user: str, client_id: str) -> Limit | None:
        wanted = (key, user, client_id)
        if wanted in self._limits:
            return self._limits[wanted]
        found = self._metadata.client_quotas.limit(*wanted)
        if len(client_id) > _CLIENT_ID_MAX:
            if found is not None and found.client_id:
                found = found._replace(client_id=sha256(client_id.encode()).hexdigest())
            return found
        if len(self._limits) >= _LIMITS_MAX:
            self._limits.clear()
        self._limits[wanted] = found
        return found

    def _rate_of(self, key: str, session: Session, limit: Limit) -> SampledRate:
        wanted = (key, limit.user, limit.client_id)
        if wanted not in self._counted and len(self._counted) >= _COUNTED_MAX:
            self._sweep()
            if len(self._counted) >= _COUNTED_MAX:
                wanted = (key, limit.user or session.principal.name, _OTHERS)
        return self._rate(*wanted)

    @property
    def counted(self) -> int:
        """How many users, client ids and addresses have a rate that counts for a quota."""
        return len(self._counted)

    def _rate(self, *key: str) -> SampledRate:
        found = self._counted.get(key)
        if found is None:
            self._sweep()
            found = self._counted[key] = SampledRate(self._samples, self._sample_ms)
        assert isinstance(found, SampledRate), "by quota"
        return found

    def _sweep(self) -> None:
        """Drop what counts nothing any more, from time to time."""
        now_ms = self._clock.steady_ms()
        if len(self._counted) < self._sweep_at or now_ms - self._swept_ms < self._sample_ms:
            return
        self._swept_ms = now_ms
        self._counted = {key: one for key, one in self._counted.items() if not one.is_over(now_ms)}
        self._sweep_at = min(2 * len(self._counted) + _SWEEP_FROM, _COUNTED_MAX)

    def _note(self, key: str, throttle_ms: int) -> None:
        self.throttled[key] += 1
        self.throttled_ms[key] += throttle_ms


def _is_follower(fetch: FetchRequest) -> bool:
    return fetch.replica_id >= 0 or fetch.replica_state.replica_id >= 0


class Mutations:
    """The partitions that one request creates or deletes, charged to its client (KIP-599)."""

    def __init__(
        self,
        clock: Clock,
        bucket: TokenBucket | None,
        bound: float,
        note: Callable[[str, int], None],
        *,
        is_strict: bool,
    ) -> None:
        self._clock = clock
        self._bucket = bucket
        self._bound = bound
        self._note = note
        self._is_strict = is_strict
        self._wait_ms = 0
        self._at_ms = 0

    def charge(self, partitions: int) -> None:
        """Charge partitions. Raises Rejected(THROTTLING_QUOTA_EXCEEDED) where the request is strict."""
        bucket, bound = self._bucket, self._bound
        if bucket is None:
            return
        now_ms = self._clock.steady_ms()
        wait_ms = bucket.wait_ms(bound, now_ms)
        if not (self._is_strict and wait_ms):
            bucket.take(partitions, bound, now_ms)
            wait_ms = 0 if self._is_strict else bucket.wait_ms(bound, now_ms)
        if wait_ms:
            self._wait_ms, self._at_ms = min(wait_ms, _INT_MAX), now_ms
            if self._is_strict:
                raise Rejected(
                    ErrorCode.throttling_quota_exceeded,
                    f"{MUTATION_RATE} {bound:g} is exceeded; try again in {wait_ms} ms",
                )

    def throttle_ms(self) -> int:
        """Return how long the client must wait from now on."""
        left_ms = max(self._wait_ms - (self._clock.steady_ms() - self._at_ms), 0)
        if left_ms:
            self._note(MUTATION_RATE, left_ms)
        return left_ms
