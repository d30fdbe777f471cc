"""Batches that lie, with a CRC that holds: refused with Kafka's code where a header can tell, else stored and harmless.

A broker opens no records, so some poison gets in. It must not keep anyone from what lies behind it.
"""

from random import Random

import pytest
from tests.fuzz.poison import bomb, lying_header, lying_records, sound, with_fields, with_records
from tests.sim.loop import run
from tests.sim.machine import Machine
from tests.sim.world import World

from stratalog.client.calls import NewTopic
from stratalog.errors import ErrorCode, Rejected
from stratalog.kernels.columns import COLUMNS, HEADERS
from stratalog.kernels.decode import Decoder
from stratalog.kernels.rows import Layout
from stratalog.wire.batch import parse_header
from stratalog.wire.compression import compress
from stratalog.wire.records import read_records

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
    "a transaction": ({5: 0x10}, ErrorCode.invalid_txn_state),
    "the broker's timestamps": ({5: 8}, ErrorCode.invalid_timestamp),
    "a timestamp below none": ({7: -2}, ErrorCode.invalid_timestamp),
    "the end of time": ({8: (1 << 63) - 1}, ErrorCode.invalid_timestamp),
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


def test_what_a_header_can_tell_is_refused_with_kafkas_code():
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
def test_stored_poison_hides_nothing_behind_it(poison):
    async def story():
        broker, client = await machine()
        earlier = with_fields(sound("none"), {7: TIMESTAMP - 1000, 8: TIMESTAMP - 996})
        for batch in (earlier, poison, sound("lz4")):
            await client.produce("events", 0, batch)
        for timestamp, offsets in ((TIMESTAMP - 998, {2}), (TIMESTAMP + 2, {5, 12})):
            found = await client.list_offsets({("events", 0): timestamp})
            assert found["events", 0].offset in offsets, "the record, or where the poison begins"
        fetched = await client.fetch("events", 0, 10)
        view = memoryview(fetched.records)
        assert parse_header(view).base_offset == 10
        records = list(read_records(view))
        assert [record.offset for record in records] == [10, 11, 12, 13, 14]
        assert broker.broken_tasks == []
        await broker.stop()

    run(story())


def decoded(batches):
    """The offsets that Spark's kernel gives of these batches, and what it passed over."""
    unreadable = []
    layout = Layout("events", 0, (*COLUMNS, HEADERS))
    decoder = Decoder(layout, 0, 1 << 62, unreadable=unreadable.append)
    tables = list(decoder.decode(b"".join(batches), "events-0", gaps=True))
    tables += decoder.flush()
    offsets = [offset for table in tables for offset in table.column("offset").to_pylist()]
    for table in tables:
        table.validate(full=True)
    return offsets, unreadable, decoder.next_offset


def test_spark_reads_on_behind_whatever_a_broker_stored():
    async def stored():
        broker, client = await machine()
        chance = Random(5)
        for turn in range(400):
            try:
                lie = lying_records if turn % 3 else lying_header
                await client.produce("events", 0, lie(chance))
                await client.produce("events", 0, sound("none"))
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

    batches = run(stored())
    offsets, unreadable, end = decoded(batches)
    assert len(unreadable) > 50, "the poison was strong enough"
    assert end == parse_header(batches[-1]).next_offset
    wanted = {
        parse_header(batch).base_offset + place
        for batch in batches
        if batch[61:] == sound("none")[61:] and parse_header(batch).codec == 0
        for place in range(5)
    }
    assert len(wanted) > 500
    assert wanted <= set(offsets), "nothing that can be read is lost"
    assert offsets == sorted(set(offsets))


def test_a_bomb_costs_spark_one_line():
    batches = [sound("none"), bomb(1), bomb(4), sound("zstd")]
    batches = [
        base.to_bytes(8, "big") + batch[8:]
        for base, batch in zip(range(0, 20, 5), batches, strict=True)
    ]
    offsets, unreadable, end = decoded(batches)
    assert offsets == [*range(5), *range(15, 20)]
    assert len(unreadable) == 2
    assert end == 20
