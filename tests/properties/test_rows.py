"""Goal: rows that a log decides in one call have the results, and leave the bytes, of the same rows one by one."""

from random import Random

import pytest
from tests.log_steps import Steps

from stratalog.config import LogConfig
from stratalog.errors import Rejected
from stratalog.wire.batch import check_produced
from stratalog.wire.records import Record, build_batch

NOW = 1_700_000_000_000
CONFIGS = {
    "a segment for all": LogConfig(segment_bytes=1 << 20),
    "a segment for few": LogConfig(segment_bytes=700, index_interval_bytes=200),
    "stamped by the broker": LogConfig(segment_bytes=900, message_timestamp_type="LogAppendTime"),
    "flushed often": LogConfig(segment_bytes=2000, flush_messages=4),
    "new segments by age": LogConfig(segment_bytes=1 << 20, segment_ms=50),
}


def random_rows(chance: Random, count: int) -> list[bytes]:
    """Return batches of three producers and of none: most are next in sequence, others repeat, leave a gap, have an
    old epoch or a late timestamp, or are too large.
    """
    following = dict.fromkeys(range(3), 0)
    epochs = dict.fromkeys(range(3), 1)
    rows: list[bytes] = []
    for number in range(count):
        records = chance.randint(1, 3)
        timestamp = NOW + number * 5
        fields = {}
        kind = chance.random()
        producer = chance.randrange(4)
        if kind < 0.15 and rows:
            rows.append(chance.choice(rows[-8:]))
            continue
        if kind < 0.2:
            timestamp = NOW + (1 << 45)
        size = 3000 if kind > 0.97 else chance.randint(1, 80)
        if producer < 3:
            if kind > 0.93:
                epochs[producer] += chance.choice((-1, 1))
                following[producer] = 0
            gap = 1 if 0.2 < kind < 0.25 else 0
            first = following[producer] + gap
            fields = {
                "producer_id": producer,
                "producer_epoch": max(epochs[producer], 0),
                "base_sequence": first,
            }
            if not gap:
                following[producer] = first + records
        made = [Record(0, timestamp, None, bytes(size))] * records
        rows.append(bytes(build_batch(made, **fields)))
    return rows


def decide(steps: Steps, rows: list[bytes]) -> list[object]:
    """Append rows in one call; return the place of each, or its error and message."""
    view = memoryview(bytearray(b"".join(rows)))
    headers = check_produced(view, max_batch_bytes=1 << 30)
    decided, appended = steps.log.append_rows(
        view, headers, leader_epoch=3, now_ms=steps.now_ms, wall_ms=steps.now_ms
    )
    log = steps.log
    steps.decided(appended.effects, lambda: log.performed(appended))
    return [(one.code, one.message) if isinstance(one, Rejected) else one for one in decided]


def state(steps: Steps) -> object:
    log = steps.log
    segments = [(one.base_offset, one.size, one.readable, one.next_offset) for one in log.segments]
    tail = [bytes(one) for one in steps.read(log.log_start_offset, 1 << 20).buffers]
    return segments, log.next_offset, log.log_end_offset, log.producers.encode(), tail


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("seed", range(12))
def test_rows_of_one_call_are_decided_as_if_each_came_alone(config, seed):
    chance = Random(seed)
    alone, together = Steps(config), Steps(config)
    rows = random_rows(chance, 60)
    alone.now_ms = together.now_ms = NOW
    while rows:
        count = chance.choice((1, 2, 5, 16))
        group, rows = rows[:count], rows[count:]
        expected = []
        for one in group:
            expected += decide(alone, [one])
            alone.perform_all()
        found = decide(together, group)
        assert together.log.log_end_offset <= together.log.next_offset
        together.perform_all()
        assert found == expected
        assert state(together) == state(alone)
        alone.now_ms = together.now_ms = alone.now_ms + 7
    assert together.read_all() == alone.read_all()
    assert together.load().log_end_offset == alone.load().log_end_offset
