"""Produce (key 0), versions 3-11; 0-2 are advertised but not served.

Advertising 0 keeps older librdkafka from silently dropping compression (KAFKA-18659); Kafka 4 does the same.
v3 message format 2. v4 storage errors. v5 log start offset in the answer. v7 zstd. v8 record errors and message.
v9 flexible. v10 current leader (KIP-951; left out, no leader moves here). v11 nothing on the wire.
"""

import asyncio
from typing import Any

from stratalog.broker.api import Api, Call
from stratalog.broker.partition import HostedPartition
from stratalog.errors import ErrorCode, Rejected
from stratalog.log.partition_log import Appended
from stratalog.wire.batch import check_produced
from stratalog.wire.produce import ProducePartition, ProduceRequest

_ACKS = (-1, 0, 1)


def handle(call: Call) -> Any:
    """Append each partition's batches; answer once all are committed, or not at all for acks=0."""
    request: ProduceRequest = call.body
    if _must_wait(call, request):
        return _wait_for_room(call, request)
    return _append_all(call, request)


def _must_wait(call: Call, request: ProduceRequest) -> bool:
    hosting = call.broker.hosting
    for topic in request.topics:
        for partition in topic.partitions:
            hosted = hosting.find(topic.name, partition.index)
            if hosted is not None and not hosted.directory.has_room:
                return True
    return False


async def _wait_for_room(call: Call, request: ProduceRequest) -> Any:
    hosting = call.broker.hosting
    for topic in request.topics:
        for partition in topic.partitions:
            hosted = hosting.find(topic.name, partition.index)
            if hosted is not None:
                await hosted.directory.room()
    return await _append_all(call, request)


def _append_all(call: Call, request: ProduceRequest) -> "asyncio.Future[Any]":
    """Decide every append now; the future has the answer once all are committed."""
    now_ms = call.broker.clock.now_ms()
    answers: list[tuple[str, list[tuple[int, asyncio.Future[Appended] | Rejected]]]] = []
    waiting = []
    for topic in request.topics:
        partitions: list[tuple[int, asyncio.Future[Appended] | Rejected]] = []
        for partition in topic.partitions:
            try:
                if request.acks not in _ACKS:
                    raise Rejected(ErrorCode.invalid_required_acks, f"acks is {request.acks}")
                future = _append(call, topic.name, partition, now_ms)
                waiting.append(future)
                partitions.append((partition.index, future))
            except Rejected as error:
                partitions.append((partition.index, error))
        answers.append((topic.name, partitions))
    answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    pending = len(waiting)

    def committed(_future: "asyncio.Future[Appended]") -> None:
        nonlocal pending
        pending -= 1
        if pending == 0 and not answered.done():
            answered.set_result(_answer(call, request.acks, answers))

    for future in waiting:
        future.add_done_callback(committed)
    if not waiting:
        answered.set_result(_answer(call, request.acks, answers))
    return answered


def _append(
    call: Call, topic: str, partition: ProducePartition, now_ms: int
) -> "asyncio.Future[Appended]":
    hosted: HostedPartition = call.broker.hosting.get(topic, partition.index)
    if topic in call.broker.internal_topics:
        raise Rejected(ErrorCode.invalid_topic_exception, f"{topic} is internal")
    if partition.records is None:
        raise Rejected(ErrorCode.corrupt_message, "no records")
    config = hosted.log.config
    headers = check_produced(partition.records, max_batch_bytes=config.max_message_bytes)
    call.broker.check_in_sync_replicas(hosted, call.body.acks)
    return hosted.append(partition.records, headers, now_ms)


def _answer(
    call: Call,
    acks: int,
    answers: list[tuple[str, list[tuple[int, "asyncio.Future[Appended] | Rejected"]]]],
) -> Any:
    if acks == 0:
        return None
    reply = call.reply
    return reply.ProduceResponse(
        responses=[
            reply.TopicProduceResponse(
                name=name,
                partition_responses=[_partition_answer(reply, i, found) for i, found in partitions],
            )
            for name, partitions in answers
        ]
    )


def _partition_answer(reply: Any, index: int, found: "asyncio.Future[Appended] | Rejected") -> Any:
    error = found if isinstance(found, Rejected) else found.exception()
    if error is not None:
        if not isinstance(error, Rejected):
            raise error
        return reply.PartitionProduceResponse(
            index=index,
            error_code=error.code,
            error_message=error.message or None,
            base_offset=-1,
            log_append_time=-1,
            log_start_offset=-1,
            record_errors=[],
        )
    assert isinstance(found, asyncio.Future)
    appended = found.result()
    return reply.PartitionProduceResponse(
        index=index,
        error_code=ErrorCode.none,
        base_offset=appended.base_offset,
        log_append_time=appended.log_append_time_ms,
        log_start_offset=appended.log_start_offset,
        record_errors=[],
    )


API = Api("Produce", 0, (0, 11), handle, served_from=3)
