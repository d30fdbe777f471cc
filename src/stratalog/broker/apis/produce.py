"""Produce (key 0), versions 3-13; 0-2 are advertised but not served.

Advertising 0 keeps older librdkafka from silently dropping compression (KAFKA-18659); Kafka 4 does the same. v3 message
format 2. v4 storage errors. v5 log start offset in the answer. v7 zstd. v8 record errors and message. v9 flexible. v10
current leader (KIP-951; left out, because no leader moves here). v11 and v12 the same fields. v13 topic ids instead of
names (KIP-516).

The rules for a request's content are Kafka's (`ProduceRequest.validateRecords`, `KafkaApis.handleProduceRequest`).
"""

import asyncio
from collections.abc import Awaitable
from functools import partial
from typing import Final, NamedTuple
from uuid import UUID

from msgspec.structs import replace

from stratalog.broker.coordination.cluster_view import ClusterView
from stratalog.broker.coordination.verification import Verification
from stratalog.broker.network.authorizer import Operation, Resource
from stratalog.broker.network.dispatch import Call
from stratalog.broker.network.session import Session
from stratalog.broker.partitions.hosting import Hosting
from stratalog.broker.partitions.partition import HostedPartition
from stratalog.broker.partitions.recompression import Recompression
from stratalog.broker.storage.directory import Failure
from stratalog.errors import ErrorCode, Rejected
from stratalog.log.values import Appended
from stratalog.metadata.image import TRANSACTION_VERSION
from stratalog.ports import Clock
from stratalog.wire.batch import (
    ATTRIBUTES,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    TRANSACTIONAL,
    BatchHeader,
    check_produced,
)
from stratalog.wire.compression import ZSTD
from stratalog.wire.markers import RAISED_FROM
from stratalog.wire.messages.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from stratalog.wire.validation import RecordsRefused

_Answer = ProduceResponse | None
_ALL: Final = -1
_ACKS: Final = (_ALL, 0, 1)
_ZSTD_FROM: Final = 7
_LEADERS_FROM: Final = 10
"""The first version whose response names the current leader (KIP-951)."""
_TOPIC_IDS_FROM: Final = 13
_ABORTABLE_FROM: Final = 11
"""The first version with TRANSACTION_ABORTABLE (KIP-890)."""
_IMPLICIT_FROM: Final = 12
"""From here on a transactional batch adds its partition by itself (KIP-890), where `transaction.version` is 2."""
_AT_ONCE: Final = 200
"""Partitions per slice."""
_NOT_LEADER: Final = ErrorCode.not_leader_or_follower
_Named = dict[str | UUID, dict[int, PartitionProduceData]]
"""Partitions by their topic's name, or id from version 13 on, and by their index."""
_NO_LOG_START: Final = (ErrorCode.record_list_too_large, ErrorCode.kafka_storage_error)
"""Errors of the log that an answer has without a log start offset (Kafka: `ReplicaManager.appendRecordsToLeader`)."""


class Needs(NamedTuple):
    """The parts of the broker that the handler works with."""

    clock: Clock
    cluster: ClusterView
    hosting: Hosting
    recompression: Recompression
    verification: Verification


def handle(call: Call[ProduceRequest, Needs]) -> "_Answer | Awaitable[_Answer]":
    """Append each partition's batch; answer once all are committed, or not at all for acks=0."""
    request = call.body
    topics = request.topic_data
    if len(topics) != 1 or len(topics[0].partition_data) != 1:
        if len(topics) + sum([len(topic.partition_data) for topic in topics]) > _AT_ONCE:
            return _append_in_parts(call)
        request = _each_once(call)
    if not call.needs.recompression.has_room:
        return _append_with_room(call, request)
    for directory in call.needs.hosting.directories:
        if not directory.has_room:
            return _append_with_room(call, request)
    return _append_all(call, request)


def _each_once(call: Call[ProduceRequest, Needs]) -> ProduceRequest:
    """Return the request with each partition once, with its last entry (Kafka: `KafkaApis.handleProduceRequest`)."""
    request = call.body
    named: _Named = {}
    count = 0
    for topic in request.topic_data:
        partitions = named.setdefault(_key(call, topic), {})
        for one in topic.partition_data:
            partitions[one.index] = one
            count += 1
    if count == sum(map(len, named.values())) and len(named) == len(request.topic_data):
        return request
    return replace(request, topic_data=[_topic(*one) for one in named.items()])


def _key(
    call: Call[ProduceRequest, Needs], topic: TopicProduceData | TopicProduceResponse
) -> str | UUID:
    return topic.topic_id if call.version >= _TOPIC_IDS_FROM else topic.name


def _topic(key: str | UUID, partitions: dict[int, PartitionProduceData]) -> TopicProduceData:
    data = list(partitions.values())
    if isinstance(key, UUID):
        return TopicProduceData(topic_id=key, partition_data=data)
    return TopicProduceData(name=key, partition_data=data)


async def _append_in_parts(call: Call[ProduceRequest, Needs]) -> _Answer:
    """Append as `handle`, for so many partitions that other connections must get turns meanwhile."""
    pace, request = call.pace, call.body
    named: _Named = {}
    async for topic in pace.each(request.topic_data):
        partitions = named.setdefault(_key(call, topic), {})
        async for one in pace.each(topic.partition_data):
            partitions[one.index] = one
    rows: dict[str | UUID, list[PartitionProduceResponse]] = {}
    leaders: dict[int, NodeEndpoint] = {}
    once = [_topic(*one) async for one in pace.each(named.items())]
    async for share in pace.shares(once, lambda topic: topic.partition_data):
        topics = [replace(topic, partition_data=list(partitions)) for _, topic, partitions in share]
        answer = await _append_with_room(call, replace(request, topic_data=topics))
        if answer is not None:
            leaders |= {one.node_id: one for one in answer.node_endpoints}
            for produced in answer.responses:
                rows.setdefault(_key(call, produced), []).extend(produced.partition_responses)
    if not request.acks:
        return None
    return ProduceResponse(
        responses=[
            TopicProduceResponse(topic_id=key, partition_responses=partitions)
            if isinstance(key, UUID)
            else TopicProduceResponse(name=key, partition_responses=partitions)
            async for key, partitions in pace.each(rows.items())
        ],
        node_endpoints=list(leaders.values()),
    )


async def _append_with_room(call: Call[ProduceRequest, Needs], request: ProduceRequest) -> _Answer:
    """Wait for room in the directories that the request writes to and, where needed, in the recompression; then
    append.
    """
    needs = call.needs
    for topic in request.topic_data:
        for partition in topic.partition_data:
            try:
                hosted = _hosted(call, topic, partition.index)
            except Rejected:
                continue  # answered in its turn
            await hosted.directory.room()
            if needs.recompression.may_want(hosted, partition.records):
                await needs.recompression.room()
    answered = _append_all(call, request)
    return await answered if isinstance(answered, asyncio.Future) else answered


class _Part:
    """One partition of a request, called when its append is committed or has failed."""

    __slots__ = ("_whole", "appended", "error", "index", "log_start_offset")

    def __init__(self, whole: "_Produce", index: int) -> None:
        self._whole = whole
        self.index = index
        self.appended: Appended | None = None
        self.log_start_offset = -1  # known after the append
        self.error: Failure = None

    def __call__(self, error: Failure) -> None:
        self.error = error
        whole = self._whole
        whole.pending -= 1
        if not whole.pending:
            whole.completed()

    def answer(self) -> PartitionProduceResponse:
        appended = self.appended
        if appended is None:
            return answer_of(self.index, self.error, None, self.log_start_offset)
        base, _, append_time_ms, start = appended[:4]
        return answer_of(self.index, self.error, (base, append_time_ms), start)


def answer_of(
    index: int, error: Failure, placed: tuple[int, int] | None, log_start_offset: int
) -> PartitionProduceResponse:
    """Return one partition's answer. `placed` is the base offset and the append time of a batch that is in the log."""
    if error is None or (isinstance(error, Rejected) and error.code is ErrorCode.request_timed_out):
        # As in Kafka, a timeout's answer has the offsets: this broker's log has the batch.
        assert placed is not None, "without another error the batch was appended"
        return PartitionProduceResponse(
            index=index,
            error_code=0 if error is None else error.code,
            base_offset=placed[0],
            log_append_time_ms=placed[1],
            log_start_offset=log_start_offset,
        )
    assert isinstance(error, Rejected), "another failure ends the connection"
    return PartitionProduceResponse(
        index=index,
        error_code=error.code,
        base_offset=-1,
        log_start_offset=-1 if error.code in _NO_LOG_START else log_start_offset,
        error_message=error.message or None,
        record_errors=[
            BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=reason)
            for index, reason in error.record_errors
        ]
        if isinstance(error, RecordsRefused)
        else [],
    )


class _Produce:
    """A request whose appends are all decided: `answered` has the answer once all are committed or have failed."""

    __slots__ = ("_acks", "_answered", "_call", "pending", "topics")

    def __init__(self, call: Call[ProduceRequest, Needs], acks: int) -> None:
        self._call = call
        self._acks = acks
        self.pending = 1  # itself, until everything is decided
        self.topics: list[tuple[TopicProduceData, list[_Part]]] = []
        self._answered: asyncio.Future[_Answer] | None = None

    def completed(self) -> None:
        """Answer once the last part is complete; `answered` was called before."""
        assert self._answered is not None, "pending until `answered` is called"
        if self._answered.done():
            return
        try:
            self._answered.set_result(self._answer())
        except Exception as error:  # noqa: BLE001 - carried to the connection
            self._answered.set_exception(error)

    def answered(self) -> "_Answer | asyncio.Future[_Answer]":
        """Return the answer, or a future of it, once every append is decided. Raises errors that end the connection."""
        self.pending -= 1
        if not self.pending:
            return self._answer()
        self._answered = asyncio.get_running_loop().create_future()
        return self._answered

    def _answer(self) -> _Answer:
        # The parts refer to this object: a reference cycle would keep their batches.
        topics, self.topics = self.topics, []
        answers = []
        for topic, parts in topics:
            answered = []
            for part in parts:
                error = part.error
                # With acks=0 there is no answer: closing the connection reports a failure, as in Kafka.
                if error is not None and (self._acks == 0 or not isinstance(error, Rejected)):
                    raise error
                answered.append(part.answer())
            answers.append(
                TopicProduceResponse(
                    name=topic.name, topic_id=topic.topic_id, partition_responses=answered
                )
            )
        if not self._acks:
            return None
        call = self._call
        return response(call.needs.cluster, call.session, call.version, answers)


def response(
    cluster: ClusterView, session: Session, version: int, topics: list[TopicProduceResponse]
) -> ProduceResponse:
    """Return the response with the leader of each partition that another broker leads, and the leaders' addresses."""
    errors = [one.error_code for topic in topics for one in topic.partition_responses]
    if version < _LEADERS_FROM or _NOT_LEADER not in errors:
        return ProduceResponse(responses=topics)
    leaders: dict[int, NodeEndpoint] = {}

    def named(
        topic: TopicProduceResponse, one: PartitionProduceResponse
    ) -> PartitionProduceResponse:
        if one.error_code != _NOT_LEADER:
            return one
        key = topic.topic_id if version >= _TOPIC_IDS_FROM else topic.name
        leader = cluster.current_leader(key, one.index)
        if leader is None:
            return one
        broker = cluster.live_broker(leader.node_id, session.listener.name)
        if broker is not None:
            node, host, port, rack = broker
            leaders[node] = NodeEndpoint(node_id=node, host=host, port=port, rack=rack)
        current = LeaderIdAndEpoch(leader_id=leader.node_id, leader_epoch=leader.epoch)
        return replace(one, current_leader=current)

    responses = [
        replace(topic, partition_responses=[named(topic, one) for one in topic.partition_responses])
        for topic in topics
    ]
    return ProduceResponse(responses=responses, node_endpoints=list(leaders.values()))


def _append_all(
    call: Call[ProduceRequest, Needs], request: ProduceRequest
) -> "_Answer | asyncio.Future[_Answer]":
    """Decide every append now; return the answer, or a future until all are committed."""
    now_ms = call.needs.clock.now_ms()
    whole = _Produce(call, request.acks)
    for topic in request.topic_data:
        if not topic.partition_data:
            continue
        parts: list[_Part] = []
        whole.topics.append((topic, parts))
        denied = _denied(call, topic)
        for partition in topic.partition_data:
            part = _Part(whole, partition.index)
            parts.append(part)
            whole.pending += 1
            try:
                if denied is not None:
                    raise denied
                _append(call, topic, partition, part, now_ms)
            except Rejected as error:
                # Its traceback would keep the error and the whole request alive until the garbage collector runs.
                part(error.with_traceback(None))
    return whole.answered()


def _denied(call: Call[ProduceRequest, Needs], topic: TopicProduceData) -> Rejected | None:
    """Return the error of each partition of a topic to which the client may not write."""
    if call.authorizer is None:
        return None
    name = topic.name
    if call.version >= _TOPIC_IDS_FROM:
        found = call.needs.cluster.image.topics_by_id.get(topic.topic_id)
        if found is None:
            return None  # the partition is not found either
        name = found.name
    if call.allows(Operation.WRITE, Resource.TOPIC, name):
        return None
    return Rejected(ErrorCode.topic_authorization_failed, "WRITE TOPIC is not allowed")


def _hosted(
    call: Call[ProduceRequest, Needs], topic: TopicProduceData, index: int
) -> HostedPartition:
    hosting = call.needs.hosting
    if call.version >= _TOPIC_IDS_FROM:
        return hosting.get_by_id(topic.topic_id, index)
    return hosting.get(topic.name, index)


def _append(
    call: Call[ProduceRequest, Needs],
    topic: TopicProduceData,
    partition: PartitionProduceData,
    part: _Part,
    now_ms: int,
) -> None:
    needs, acks = call.needs, call.body.acks
    if acks not in _ACKS:
        raise Rejected(ErrorCode.invalid_required_acks, f"acks is {acks}")
    hosted = _hosted(call, topic, partition.index)
    if hosted.name.topic in needs.cluster.internal_topics:
        raise Rejected(ErrorCode.invalid_topic_exception, f"{hosted.name.topic} is internal")
    records, log = partition.records, hosted.log
    if records is None:
        raise Rejected(ErrorCode.invalid_record, "a produce request without a record batch")
    headers = check_produced(records, max_batch_bytes=log.config.max_message_bytes)
    _check_batch(call, headers)
    if acks == _ALL:
        hosted.replica.check_min_isr()
    part.log_start_offset = log.log_start_offset
    opened = needs.recompression.check(hosted, records, headers[0], now_ms)
    if opened is None:
        # The log decides the offset later, and whether the producer may write.
        then = partial(_append_opened, call, hosted, part)
        needs.recompression.submit(hosted, records, headers[0], now_ms, then, part)
    elif opened[ATTRIBUTES] & TRANSACTIONAL and _needs_coordinator(call, hosted, opened):
        _ask_coordinator(call, hosted, part, records, opened)
    else:
        part.appended = hosted.append(
            records, opened, now_ms, part, commit_timeout_ms=_commit_timeout_ms(call.body)
        )


def _append_opened(
    call: Call[ProduceRequest, Needs],
    hosted: HostedPartition,
    part: _Part,
    view: memoryview,
    header: BatchHeader,
) -> None:
    """Append a batch, in a later turn than its request's."""
    if header[ATTRIBUTES] & TRANSACTIONAL and _needs_coordinator(call, hosted, header):
        _ask_coordinator(call, hosted, part, view, header)
    else:
        _append_later(call, hosted, part, view, header)


def _needs_coordinator(
    call: Call[ProduceRequest, Needs], hosted: HostedPartition, header: BatchHeader
) -> bool:
    """Return whether a transactional batch must wait until its coordinator has the partition (KIP-890)."""
    verification = call.needs.verification
    producer = (header[PRODUCER_ID], header[PRODUCER_EPOCH])
    if not verification.is_needed(hosted, producer, adds=call.version >= _IMPLICIT_FROM):
        return False
    return not verification.is_answered(hosted, call.body.transactional_id or "", producer)


def _ask_coordinator(
    call: Call[ProduceRequest, Needs],
    hosted: HostedPartition,
    part: _Part,
    view: memoryview,
    header: BatchHeader,
) -> None:
    # As in Kafka, a refusal of the coordinator's comes before the log.
    part.log_start_offset = -1
    call.needs.verification.submit(
        hosted,
        call.body.transactional_id or "",
        (header.producer_id, header.producer_epoch),
        partial(_append_later, call, hosted, part, view, header),
        part,
        abortable=call.version >= _ABORTABLE_FROM,
        adds=call.version >= _IMPLICIT_FROM,
    )


def _append_later(
    call: Call[ProduceRequest, Needs],
    hosted: HostedPartition,
    part: _Part,
    view: memoryview,
    header: BatchHeader,
) -> None:
    def later(error: Failure) -> None:
        # Called in a later turn: a part cannot answer before `appended` is known.
        asyncio.get_running_loop().call_soon(part, error)

    now_ms, timeout_ms = call.needs.clock.now_ms(), _commit_timeout_ms(call.body)
    part.log_start_offset = hosted.log.log_start_offset
    part.appended = hosted.append(view, header, now_ms, later, commit_timeout_ms=timeout_ms)


def _commit_timeout_ms(request: ProduceRequest) -> int | None:
    """Return how long the request waits for the in-sync replicas; None where this broker's append is enough."""
    return max(request.timeout_ms, 0) if request.acks == _ALL else None


def _check_batch(call: Call[ProduceRequest, Needs], headers: list[BatchHeader]) -> None:
    header, version = headers[0], call.version
    if len(headers) != 1:
        raise Rejected(
            ErrorCode.invalid_record, f"{len(headers)} record batches where exactly one is allowed"
        )
    if header.attributes & TRANSACTIONAL:
        transactional_id = call.body.transactional_id
        if transactional_id is None:
            raise Rejected(
                ErrorCode.transactional_id_authorization_failed,
                "a transactional batch without a transactional id",
            )
        call.authorize(Operation.WRITE, Resource.TRANSACTIONAL_ID, transactional_id)
        level = call.needs.cluster.image.features.get(TRANSACTION_VERSION, 0)
        if version >= _IMPLICIT_FROM and level < RAISED_FROM:
            # Such a client never names its partitions: nothing would end the transaction here.
            raise Rejected(
                ErrorCode.invalid_txn_state, "transaction.version is below 2: use Produce 11"
            )
    if version < _ZSTD_FROM and header.codec == ZSTD:
        raise Rejected(
            ErrorCode.unsupported_compression_type, f"zstd needs Produce version {_ZSTD_FROM}"
        )
