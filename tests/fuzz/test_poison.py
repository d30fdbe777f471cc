"""Malformed batches with a valid CRC get Kafka's error code; those that older brokers stored do no harm.

Poison that is in a log nevertheless must not keep readers from the records behind it.
"""

import asyncio
import tracemalloc
from random import Random

import pytest
from tests.fuzz.poison import (
    BOMB_BYTES,
    CODECS,
    UNSOUND,
    bomb,
    lying_header,
    lying_records,
    record,
    sound,
    with_fields,
    with_records,
)
from tests.produce import produce_body
from tests.sim.loop import run
from tests.sim.machine import Machine
from tests.sim.raw import Raw
from tests.sim.world import World

from stratalog.client.calls import NewTopic
from stratalog.errors import ErrorCode, Rejected
from stratalog.kernels.columns import COLUMNS, HEADERS
from stratalog.kernels.decode import Decoder
from stratalog.kernels.rows import Layout
from stratalog.wire.batch import check_produced, crc_holds, parse_header
from stratalog.wire.compression import compress
from stratalog.wire.ids import TopicPartition
from stratalog.wire.records import read_records
from stratalog.wire.validation import RESTORED_BYTES_MAX

TIMESTAMP = 1_700_000_000_000
PRODUCER = {9: 7, 10: 0}
REFUSED = {
    "more records than bytes": ({12: 1 << 30, 6: (1 << 30) - 1}, ErrorCode.invalid_record),
    "more records than deltas": ({12: 6}, ErrorCode.invalid_record),
    "no records": ({12: 0, 6: -1}, ErrorCode.invalid_record),
    "a negative count": ({12: -1, 6: -2}, ErrorCode.invalid_record),
    "a delta beyond its count": ({6: 5}, ErrorCode.invalid_record),
    "a delta of billions": ({6: 0x7FFFFFFF}, ErrorCode.invalid_record),
    "a length past the end": ({1: 1 << 20}, ErrorCode.invalid_record),
    "a length before the header's end": ({1: 48}, ErrorCode.corrupt_message),
    "a negative length": ({1: -1}, ErrorCode.corrupt_message),
    "format 0": ({3: 0}, ErrorCode.invalid_record),
    "format 3": ({3: 3}, ErrorCode.corrupt_message),
    "an unknown codec": ({5: 5}, ErrorCode.unsupported_compression_type),
    "a control batch": ({5: 0x20}, ErrorCode.invalid_record),
    "a transaction": ({5: 0x10}, ErrorCode.transactional_id_authorization_failed),
    "the broker's timestamps": ({5: 8}, ErrorCode.invalid_timestamp),
    "a producer without a sequence": (PRODUCER | {11: -1}, ErrorCode.invalid_record),
    "a producer without an epoch": ({9: 7, 10: -1, 11: 0}, ErrorCode.invalid_record),
}


async def machine():
    """A broker with the topic "events", and a client."""
    started = Machine(World(3))
    await started.start()
    client = await started.connect()
    await client.create_topics([NewTopic("events", partitions=1, configs={})])
    return started, client


async def stored(machine, batch):
    """A batch whose records were not checked, as brokers once accepted it."""
    done = asyncio.get_running_loop().create_future()
    view = memoryview(bytearray(batch))
    hosted = machine.broker.hosting.get("events", 0)
    hosted.append(view, parse_header(view), TIMESTAMP, done.set_result)
    await done


def test_a_malformed_header_is_refused_with_kafkas_code():
    async def story():
        broker, client = await machine()
        for what, (changes, code) in REFUSED.items():
            poison = with_fields(sound("none"), changes)
            with pytest.raises(Rejected) as refused:
                await client.produce("events", 0, poison)
            assert refused.value.code is code, what
        produced = await client.produce("events", 0, sound("none"))
        assert produced.base_offset == 0, "nothing of all that was written"
        await broker.stop()

    run(story())


@pytest.mark.parametrize("codec", range(5), ids=CODECS)
def test_malformed_records_are_refused(codec):
    async def story():
        broker, client = await machine()
        for what, payload in UNSOUND.items():
            poison = with_records(codec, compress(codec, payload), 1)
            with pytest.raises(Rejected) as refused:
                await client.produce("events", 0, poison)
            assert refused.value.code is ErrorCode.invalid_record, what
        produced = await client.produce(
            "events", 0, with_records(codec, compress(codec, record()), 1)
        )
        assert produced.base_offset == 0, "nothing of all that was written"
        assert broker.broken_tasks == []
        await broker.stop()

    run(story())


@pytest.mark.parametrize("codec", [1, 2, 3, 4], ids=CODECS[1:])
def test_records_that_cannot_be_decompressed_are_refused(codec):
    whole = compress(codec, record(value=bytes(range(256)) * 200))
    nonsense = {
        "no such bytes": b"no codec at all",
        "nothing": b"\0",
        "cut short": whole[: len(whole) // 2],
        "turned": whole[:20] + bytes(255 - byte for byte in whole[20:]),
    }

    async def story():
        broker, client = await machine()
        for what, payload in nonsense.items():
            with pytest.raises(Rejected) as refused:
                await client.produce("events", 0, with_records(codec, payload, 1))
            assert refused.value.code is ErrorCode.invalid_record, what
        await client.produce("events", 0, with_records(codec, whole, 1))
        await broker.stop()

    run(story())


@pytest.mark.parametrize("codec", [1, 3, 4], ids=["gzip", "lz4", "zstd"])
def test_a_bomb_is_refused_within_the_memory_limit(codec):
    one = record(value=bytes(2 * BOMB_BYTES))
    bombs = [with_records(codec, compress(codec, one), 1), bomb(codec)]

    async def story():
        broker, client = await machine()
        tracemalloc.start()
        for poison in bombs:
            with pytest.raises(Rejected) as refused:
                await client.produce("events", 0, poison)
            assert refused.value.code in (ErrorCode.message_too_large, ErrorCode.invalid_record)
            del refused  # a traceback keeps the frames' local variables alive
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 2.5 * RESTORED_BYTES_MAX, (
            "decompression must take one buffer and its copy at most"
        )
        await broker.stop()

    run(story())


@pytest.mark.parametrize("topic_type", ["producer", "zstd"])
@pytest.mark.parametrize("codec", [0, 4], ids=["none", "zstd"])
def test_malformed_records_are_named_in_the_answer(codec, topic_type):
    async def story():
        broker, client = await machine()
        configs = {"compression.type": topic_type, "cleanup.policy": "compact"}
        await client.create_topics([NewTopic("keyed", partitions=1, configs=configs)])
        asker = await Raw.connect(broker.world.network)
        far = 1 << 50

        async def refused(*records):
            batch = with_records(codec, compress(codec, b"".join(records)), len(records))
            answer = await asker.ask(9, produce_body("keyed", batch))
            (found,) = answer.responses[0].partition_responses
            assert found.error_message
            named = [one.batch_index for one in found.record_errors]
            assert all(one.batch_index_error_message for one in found.record_errors)
            return found.error_code, named

        keyless = [record(key=None), record(offset_delta=1), record(key=None, offset_delta=2)]
        assert await refused(*keyless) == (ErrorCode.invalid_record, [0, 2])
        late = [record(), record(offset_delta=1, timestamp_delta=far)]
        assert await refused(*late) == (ErrorCode.invalid_timestamp, [1])
        both = [record(key=None), record(offset_delta=1, timestamp_delta=far)]
        assert await refused(*both) == (ErrorCode.invalid_timestamp, [0, 1])
        assert await refused(record(length=3)) == (ErrorCode.invalid_record, [])
        asker.close()
        await broker.stop()

    run(story())


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("lie", [-1, TIMESTAMP - 1, TIMESTAMP + 99, (1 << 63) - 1])
def test_a_wrong_largest_timestamp_is_corrected(codec, lie):
    async def story():
        broker, client = await machine()
        await client.produce("events", 0, with_fields(sound(codec), {8: lie}))
        view = memoryview((await client.fetch("events", 0, 0)).records)
        header = parse_header(view)
        assert header.max_timestamp == TIMESTAMP + 4
        assert crc_holds(view, 0, header)
        found = await client.list_offsets({TopicPartition("events", 0): TIMESTAMP + 3})
        assert found["events", 0].offset == 3
        await broker.stop()

    run(story())


@pytest.mark.parametrize(
    "poison",
    [
        with_records(0, b"\x7f" * 100),
        with_records(0, bytes(100)),
        with_records(4, b"no zstd at all"),
        with_records(1, compress(1, b"\xff" * 100)),
        with_fields(sound("none"), {7: TIMESTAMP + 100}),
        bomb(1),
        bomb(4),
    ],
    ids=["lengths", "zeros", "no zstd", "gzip of lies", "base timestamp", "gzip bomb", "zstd bomb"],
)
def test_stored_poison_hides_no_later_record(poison):
    async def story():
        broker, client = await machine()
        earlier = with_fields(sound("none"), {7: TIMESTAMP - 1000, 8: TIMESTAMP - 996})
        for batch in (earlier, poison, sound("lz4")):
            await stored(broker, batch)
        for timestamp, offsets in ((TIMESTAMP - 998, {2}), (TIMESTAMP + 2, {5, 12})):
            found = await client.list_offsets({TopicPartition("events", 0): timestamp})
            assert found["events", 0].offset in offsets, (
                "the error must name the record, or the offset at which the poison begins"
            )
        fetched = await client.fetch("events", 0, 10)
        view = memoryview(fetched.records)
        assert parse_header(view).base_offset == 10
        records = list(read_records(view))
        assert [record.offset for record in records] == [10, 11, 12, 13, 14]
        assert broker.broken_tasks == []
        await broker.stop()

    run(story())


def decoded(batches):
    """Return the offsets that Spark's kernel reads from these batches, and its reports of skipped ones."""
    unreadable = []
    layout = Layout("events", 0, (*COLUMNS, HEADERS))
    decoder = Decoder(layout, 0, 1 << 62, unreadable=lambda what, _: unreadable.append(what))
    tables = list(decoder.decode(b"".join(batches), "events-0", gaps=True))
    tables += decoder.flush()
    offsets = [offset for table in tables for offset in table.column("offset").to_pylist()]
    for table in tables:
        table.validate(full=True)
    return offsets, unreadable, decoder.next_offset


def test_spark_reads_the_records_behind_any_stored_poison():
    async def filled():
        broker, client = await machine()
        chance = Random(5)
        for turn in range(400):
            try:
                lie = lying_records if turn % 3 else lying_header
                lying = lie(chance)
                check_produced(memoryview(lying), max_batch_bytes=1 << 20)
                await stored(broker, lying)
                await stored(broker, sound("none"))
            except Rejected:
                continue
        log = broker.broker.hosting.get("events", 0).log
        batches = []
        offset = 0
        while offset < log.log_end_offset:
            view = memoryview((await client.fetch("events", 0, offset)).records)
            header = parse_header(view)
            batches.append(bytes(view[: header.size]))
            offset = header.next_offset
        await broker.stop()
        return batches

    batches = run(filled())
    offsets, unreadable, end = decoded(batches)
    assert len(unreadable) > 50, "no batch was malformed: the test proves nothing"
    assert end == parse_header(batches[-1]).next_offset
    wanted = {
        parse_header(batch).base_offset + place
        for batch in batches
        if batch[61:] == sound("none")[61:] and parse_header(batch).codec == 0
        for place in range(5)
    }
    assert len(wanted) > 500
    assert wanted <= set(offsets), "a readable record is missing"
    assert offsets == sorted(set(offsets))


def test_spark_skips_a_bomb_with_one_line():
    batches = [sound("none"), bomb(1), bomb(4), sound("zstd")]
    batches = [
        base.to_bytes(8, "big") + batch[8:]
        for base, batch in zip(range(0, 20, 5), batches, strict=True)
    ]
    offsets, unreadable, end = decoded(batches)
    assert offsets == [*range(5), *range(15, 20)]
    assert len(unreadable) == 2
    assert end == 20
