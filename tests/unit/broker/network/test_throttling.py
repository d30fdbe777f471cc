"""Request time counts where the event loop spends it; a client over its percentage is muted for a second at most."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.metadata.test_client_quotas import following, record, replayed

from stratalog.broker.network import throttling as throttling_module
from stratalog.broker.network.session import ListenerContext, Principal, Session
from stratalog.broker.network.throttling import Throttling, Usage
from stratalog.config import BrokerConfig
from stratalog.metadata.client_quotas import CLIENT_ID, USER, ClientQuotas
from stratalog.metadata.image import EMPTY
from stratalog.wire.apis import FETCH, PRODUCE
from stratalog.wire.envelope import Received, RequestHeader
from stratalog.wire.messages.fetch import FetchRequest, ReplicaState
from stratalog.wire.messages.metadata import MetadataRequest, MetadataResponse
from stratalog.wire.messages.produce import ProduceResponse

METADATA = 3
PERCENT = "request_percentage"


class Now:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.ns = 0

    def now_ms(self) -> int:
        return self.ns // 1_000_000

    steady_ms = now_ms

    def elapsed_ns(self) -> int:
        return self.ns


class Cluster:
    """The quotas of a cluster."""

    def __init__(self, *records: object) -> None:
        self.on_published: list[Callable[[], None]] = []
        self.client_quotas: ClientQuotas = following(replayed(EMPTY, *records))


class Story:
    """A throttling with one quota of request time, and a client whose mutes are noted."""

    def __init__(self, percent: float = 10) -> None:
        self.now = Now()
        quota = record(((CLIENT_ID, "c"), (USER, None)), percent, PERCENT)
        self.throttling = Throttling(BrokerConfig.load()[0], Cluster(quota), self.now)
        self.muted: list[float] = []
        self.session = Session(ListenerContext("PLAINTEXT"), mute=self.muted.append)

    def usage(self, api: int = METADATA, body: Any = None, *, is_of_node: bool = False) -> Usage:
        header = RequestHeader(api, 9, 1, "c")
        received = Received(header, MetadataRequest(topics=[]) if body is None else body)
        return self.throttling.usage(self.session, received, 100, is_of_node=is_of_node)

    def spend(self, usage: Usage, ms: int) -> Any:
        began_ns = self.now.ns
        self.now.ns += ms * 1_000_000
        return usage.begun(None, began_ns)


def answer() -> MetadataResponse:
    return MetadataResponse(brokers=[], controller_id=1, topics=[])


def test_time_beyond_the_percentage_is_throttled_and_a_second_is_the_most() -> None:
    story = Story(percent=10)
    usage = story.usage()
    story.spend(usage, 1000)  # 10 % of 10 s, and of the fraction of the window that has begun
    assert story.throttling.charge(usage, answer()).throttle_time_ms == 0
    assert story.muted == []
    usage = story.usage()
    story.spend(usage, 50)
    assert 400 < story.throttling.charge(usage, answer()).throttle_time_ms < 600
    usage = story.usage()
    story.spend(usage, 5000)
    assert story.throttling.charge(usage, answer()).throttle_time_ms == 1000
    assert story.muted[1:] == [1.0]
    assert story.throttling.throttled == {PERCENT: 2}


def test_requests_of_nodes_and_without_an_answer_cost_no_time() -> None:
    story = Story(percent=0.1)
    follower = FetchRequest(
        max_wait_ms=0, min_bytes=0, topics=[], replica_state=ReplicaState(replica_id=2)
    )
    older = FetchRequest(max_wait_ms=0, min_bytes=0, topics=[], replica_id=2)
    for usage, body in (
        (story.usage(is_of_node=True), answer()),
        (story.usage(FETCH, follower), answer()),
        (story.usage(FETCH, older), answer()),
        (story.usage(PRODUCE), None),
    ):
        story.spend(usage, 1000)
        assert story.throttling.charge(usage, body) == body
    assert story.muted == []


def test_only_the_steps_of_a_coroutine_count_not_its_waits() -> None:
    story = Story()
    usage = story.usage()

    async def handler() -> str:
        story.now.ns += 3
        await asyncio.sleep(0)
        story.now.ns += 4
        return "answer"

    async def whole() -> str:
        waiting = usage.begun(handler(), story.now.ns)
        task = asyncio.ensure_future(waiting)
        await asyncio.sleep(0)
        story.now.ns += 1_000_000  # other clients
        return await task

    assert asyncio.run(whole()) == "answer"
    assert usage.busy_ns == 7


def test_a_handler_is_cancelled_and_its_errors_are_raised() -> None:
    usage = Story().usage()
    seen: list[str] = []

    async def waits() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    async def fails() -> None:
        await asyncio.sleep(0)
        raise ValueError("as it is")

    async def whole() -> None:
        task = asyncio.ensure_future(usage.begun(waits(), 0))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(ValueError, match="as it is"):
            await usage.begun(fails(), 0)

    asyncio.run(whole())
    assert seen == ["cancelled"]


def test_clients_that_are_gone_are_forgotten() -> None:
    story = Story()
    quota = record(((CLIENT_ID, None),), 1000, "producer_byte_rate")
    throttling = Throttling(BrokerConfig.load()[0], Cluster(quota), story.now)
    for number in range(5000):
        story.now.ns += 10_000_000
        received = Received(RequestHeader(PRODUCE, 9, 1, f"client {number}"), None)
        usage = throttling.usage(story.session, received, 10, is_of_node=False)
        throttling.charge(usage, None)
    assert (
        len(throttling._counted) < 3500
    )  # those of the last 11 s, and as many again until the next look


def test_clients_that_invent_ids_share_one_rate_of_their_user_at_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(throttling_module, "_COUNTED_MAX", 50)
    monkeypatch.setattr(throttling_module, "_SWEEP_FROM", 50)
    story = Story()
    quota = record(((CLIENT_ID, None),), 1000, "producer_byte_rate")
    throttling = Throttling(BrokerConfig.load()[0], Cluster(quota), story.now)

    def produce(session: Session, client_id: str) -> None:
        received = Received(RequestHeader(PRODUCE, 9, 1, client_id), None)
        usage = throttling.usage(session, received, 100, is_of_node=False)
        throttling.charge(usage, ProduceResponse(responses=[]))

    for number in range(500):
        produce(story.session, str(number))
    assert throttling.counted == 51
    assert story.muted, "the shared rate is over its bound"
    muted: list[float] = []
    honest = Session(ListenerContext("PLAINTEXT"), mute=muted.append)
    honest.principal = Principal("User", "honest")
    produce(honest, "own")
    assert not muted, "another user has another rate"
    assert throttling.counted == 52
    story.now.ns += 60_000_000_000
    produce(honest, "own")
    assert throttling.counted == 1, "rates of the past are forgotten"


def test_long_client_ids_are_limited_and_fill_no_memory() -> None:
    now, records = Now(), 100
    quota = record(((CLIENT_ID, None),), 1, "producer_byte_rate")
    throttling = Throttling(BrokerConfig.load()[0], Cluster(quota), now)
    muted: list[float] = []
    session = Session(ListenerContext("PLAINTEXT"), mute=muted.append)
    for number in range(records):
        for _ in range(2):
            header = RequestHeader(PRODUCE, 9, 1, str(number).rjust(30_000, "c"))
            usage = throttling.usage(session, Received(header, None), 100_000, is_of_node=False)
            throttling.charge(usage, ProduceResponse(responses=[]))
    assert len(muted) == 2 * records
    assert len(throttling._counted) == records, "each for itself"
    kept = [text for key in [*throttling._counted, *throttling._limits] for text in key]
    assert max(map(len, kept)) < 256
