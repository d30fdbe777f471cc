"""Fetch (key 1), versions 4-18.

v4 isolation level. v5 log start offset. v7 sessions (KIP-227). v9 leader epoch checks. v11 rack, preferred replica. v12
flexible, last fetched epoch. v13 topic ids. v15 replica state. v16 node endpoints. v17 replica directory id.
v18 a follower's high watermark (KIP-1166).

A consumer reads up to the high watermark, from version 11 on from any replica. With `replica.selector.class` a leader
names a follower of the consumer's rack (KIP-392). A follower reads up to the log end, and its offsets say what it has.
"""

import asyncio
from collections.abc import Awaitable, Iterable, Iterator
from typing import Final

from msgspec.structs import replace

from stratalog.broker.fetching.answers import Found, found, found_in_slices, response
from stratalog.broker.fetching.gathering import Gathering, Needs, is_follower
from stratalog.broker.fetching.repeating import expect_next
from stratalog.broker.network.dispatch import Call
from stratalog.broker.network.session import Principal
from stratalog.broker.partitions.purgatory import FetchWait, Shared
from stratalog.errors import Rejected
from stratalog.replication.fetch_sessions import NO_SESSION, PartitionKey
from stratalog.wire.fetch import EncodedResponse, encode_topics
from stratalog.wire.ids import TopicIdPartition, TopicPartition
from stratalog.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic

__all__ = ["Needs", "handle"]

_TOPIC_IDS_FROM: Final = 13
_SHARED_PARTITIONS_MAX: Final = 16
"""A fetch of more partitions hardly ever has the same offsets as another one."""
_AT_ONCE: Final = 200
"""Partitions per slice."""
_Wanted = dict[PartitionKey, FetchPartition]
"""Each partition that a request names, once, with its last entry in the request."""


def handle(
    call: Call[FetchRequest, Needs], times: int = 1
) -> EncodedResponse | Awaitable[EncodedResponse]:
    """Answer at once if enough is in memory, else wait for `min_bytes` or `max_wait_ms`.

    `times` equal requests get this answer: their records are counted so often.
    """
    topics = call.body.topics
    count = len(topics)
    for topic in topics:
        count += len(topic.partitions)
    if count > _AT_ONCE:
        return _handle_many(call)
    by_id = call.version >= _TOPIC_IDS_FROM
    return _handle(call, _wanted(topics, {}, by_id=by_id), by_id, times)


async def _handle_many(call: Call[FetchRequest, Needs]) -> EncodedResponse:
    """Answer as `handle`, for so many partitions that other connections must get turns meanwhile."""
    by_id = call.version >= _TOPIC_IDS_FROM
    wanted: _Wanted = {}
    async for share in call.pace.shares(call.body.topics, lambda topic: topic.partitions):
        some = [replace(topic, partitions=partitions) for _, topic, partitions in share]
        _wanted(some, wanted, by_id=by_id)
    result = _handle(call, wanted, by_id, 1)
    return result if isinstance(result, EncodedResponse) else await result


def _handle(
    call: Call[FetchRequest, Needs],
    wanted: _Wanted,
    by_id: bool,  # noqa: FBT001 - of two callers
    times: int,
) -> EncodedResponse | Awaitable[EncodedResponse]:
    request, needs = call.body, call.needs
    try:
        fetch = needs.fetch_sessions.begin(
            request.session_id,
            request.session_epoch,
            tuple(wanted.items()),
            _forgotten(request, by_id=by_id),
            by_id=by_id,
            now_ms=needs.clock.steady_ms(),
            is_follower=is_follower(call),
            holder=call.session.holder,
        )
    except Rejected as error:
        nothing = encode_topics((), call.version)
        return EncodedResponse(error.code, NO_SESSION, nothing)
    gathering = Gathering(call, fetch)
    fetch.look()
    if len(fetch.requested) > _AT_ONCE:
        return _Waiting(gathering).in_slices()
    gathering.gather()
    if gathering.pending:
        return _Waiting(gathering).for_pending(gathering.marks())
    if gathering.enough:
        expect_next(gathering)
        return response(gathering, found(gathering), times)
    return _Waiting(gathering).for_more()


def _wanted(topics: Iterable[FetchTopic], wanted: _Wanted, *, by_id: bool) -> _Wanted:
    """Return `wanted` with the partitions of these topics, too; one that is named again has its last entry."""
    for topic in topics:
        topic_id, name = topic.topic_id, topic.topic
        for one in topic.partitions:
            index = one.partition
            # Written inline: a function call for each partition costs as much as the key itself.
            key = TopicIdPartition(topic_id, index) if by_id else TopicPartition(name, index)
            wanted[key] = one
    return wanted


def _forgotten(request: FetchRequest, *, by_id: bool) -> Iterator[PartitionKey]:
    """Yield the partitions that leave the session. The session limits their number."""
    for topic in request.forgotten_topics_data:
        topic_id, name = topic.topic_id, topic.topic
        for index in topic.partitions:
            yield TopicIdPartition(topic_id, index) if by_id else TopicPartition(name, index)


class _Waiting:
    """A fetch that cannot be answered at once."""

    __slots__ = ("_gathering", "_reading")

    def __init__(self, gathering: Gathering) -> None:
        self._gathering = gathering
        self._reading: asyncio.Task[None]

    async def in_slices(self) -> EncodedResponse:
        """Answer as `handle` does, for so many partitions that other connections must get turns meanwhile."""
        gathering = self._gathering
        marks = await gathering.gather_in_slices()
        await gathering.read_pending()
        if gathering.enough:
            return response(gathering, await found_in_slices(gathering))
        return await self._when_more(marks)

    async def for_pending(self, marks: list[tuple[int, int]]) -> EncodedResponse:
        """Answer after the pending reads; if they bring too little, wait for records later than `marks`."""
        gathering = self._gathering
        await gathering.read_pending()
        if gathering.enough:
            return response(gathering, found(gathering))
        return await self._when_more(marks)

    async def _when_more(self, marks: list[tuple[int, int]]) -> EncodedResponse:
        wait = self.for_more()
        if marks != self._gathering.marks():
            wait.wake()
        answer: EncodedResponse = await wait
        return answer

    def for_more(self) -> FetchWait:
        """Return the answer as a future: done once the missing bytes have come or `max_wait_ms` is over."""
        gathering = self._gathering
        purgatory = gathering.call.needs.purgatory
        if gathering.follower is not None:
            gathering.follower.is_noted = True
        missing = gathering.min_bytes - gathering.size
        wait = FetchWait(purgatory, missing, gathering.watched(), self._look_again)
        purgatory.hold(wait, gathering.call.body.max_wait_ms)
        return wait

    def _look_again(self, wait: FetchWait, shared: Shared) -> None:
        """Answer with the records that the partitions have now."""
        gathering = self._gathering
        gathering.fetch.look()
        requested = gathering.requested
        if len(requested) > _AT_ONCE:
            self._read_on(wait, self._look_again_in_slices())
            return
        is_for_consumer, version = gathering.follower is None, gathering.call.version
        kind = gathering.read_committed, is_for_consumer, version, _reader(gathering)
        key = (requested, gathering.max_bytes, gathering.rack, kind)
        is_shared = len(requested) <= _SHARED_PARTITIONS_MAX
        answer: Found | None = shared.get(key) if is_shared else None
        if answer is None:
            gathering.gather()
            if gathering.pending:
                self._read_on(wait, self._read_and_answer(wait))
                return
            answer = found(gathering)
            if is_shared:
                shared[key] = answer
        wait.set_result(response(gathering, answer, wait.times))

    def _read_on(self, wait: FetchWait, work: Awaitable[EncodedResponse]) -> None:
        """Answer with the result of `work`, which ends with the wait: a client that is gone needs no read."""
        self._reading = reading = asyncio.create_task(_answer_later(wait, work))
        wait.add_done_callback(lambda _: reading.cancel())

    async def _read_and_answer(self, wait: FetchWait) -> EncodedResponse:
        gathering = self._gathering
        await gathering.read_pending()
        return response(gathering, found(gathering), wait.times)

    async def _look_again_in_slices(self) -> EncodedResponse:
        gathering = self._gathering
        await gathering.gather_in_slices()
        await gathering.read_pending()
        return response(gathering, await found_in_slices(gathering))


def _reader(gathering: Gathering) -> tuple[Principal, str] | None:
    """Return the principal whose rights the answer depends on; None where each client may read everything."""
    call = gathering.call
    if call.authorizer is None:
        return None
    return call.session.principal, call.session.host


async def _answer_later(wait: FetchWait, work: Awaitable[EncodedResponse]) -> None:
    try:
        answer = await work
    except BaseException as error:  # noqa: BLE001 - a cancelled read too, carried to the connection
        if not wait.done():
            wait.set_exception(error)
    else:
        if not wait.done():
            wait.set_result(answer)
