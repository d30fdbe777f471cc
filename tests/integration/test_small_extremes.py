"""The door serves numbers at the ends of their ranges as the handlers do: ids, epochs, sequences, offsets, times.

Each batch has one to three fields at an extreme, and a CRC that holds. Sound batches before it lend its connection.
"""

import random
from itertools import product

import pytest
from tests.fuzz.poison import record, with_fields, with_records
from tests.integration.test_small_requests import COMPILED, NOW, compiled, rows, run
from tests.produce import produce_body
from tests.sim.door import PythonDoor

from stratalog.wire.envelope import encode_request
from stratalog.wire.records import Record, build_batch

__all__ = ["compiled", "rows"]

LARGEST, LEAST = (1 << 63) - 1, -(1 << 63)
FAR = 1 << 61
"""The crate and the handlers do not add to such a time; see tests/integration/test_compiled_check.py."""
BASE_OFFSET, LEADER_EPOCH, DELTA, FIRST_TIME, LAST_TIME = 0, 2, 6, 7, 8
PRODUCER, EPOCH, SEQUENCE, COUNT = 9, 10, 11, 12
EXTREMES = {
    BASE_OFFSET: (LEAST, -1, LARGEST),
    LEADER_EPOCH: (-(1 << 31), (1 << 31) - 1),
    DELTA: (-(1 << 31), -1, 1, (1 << 31) - 1),
    FIRST_TIME: (LEAST, -2, -1, 0, FAR - 1, FAR, LARGEST),
    LAST_TIME: (LEAST, -2, -1, 0, FAR - 1, FAR, LARGEST),
    PRODUCER: (LEAST, -2, -1, 0, LARGEST),
    EPOCH: (-(1 << 15), -1, 0, (1 << 15) - 1),
    SEQUENCE: (-(1 << 31), -1, 0, (1 << 31) - 2, (1 << 31) - 1),
    COUNT: (-(1 << 31), -1, 0, 2, (1 << 31) - 1),
}
TOPICS = {
    "far": {"message.timestamp.after.max.ms": str(LARGEST)},
    "near": {},
}


def chains() -> list[list[bytes]]:
    """Return groups of batches that belong together: sequences that pass 2^31 - 1, epochs that end, times that end."""
    groups = []
    for producer, epoch in product((0, LARGEST), (0, (1 << 15) - 1)):
        group = []
        # Two records from 2^31 - 2 on fill the range; the next sequence is 0. Then a repeat, and a gap.
        for sequence in ((1 << 31) - 4, (1 << 31) - 2, 0, 0, 2, (1 << 31) - 1):
            made = build_batch([Record(0, NOW, b"k", b"v")] * 2)
            group.append(with_fields(made, {PRODUCER: producer, EPOCH: epoch, SEQUENCE: sequence}))
        groups.append(group)
    for first, delta in product((-1, 0, FAR - 2, FAR - 1, FAR, LARGEST), (-1, 0, 1, FAR - 1, FAR)):
        last = min(max(first + delta, first), LARGEST)
        made = with_records(0, record(timestamp_delta=delta), 1)
        groups.append([with_fields(made, {FIRST_TIME: first, LAST_TIME: last})])
    return groups


def streams(chance: random.Random, ids: dict, topic: str, index: int) -> list[list[bytes]]:
    """Return the frames of each connection."""
    sound = bytes(build_batch([Record(0, NOW, b"k", b"v")]))
    groups = chains()
    for _ in range(150):
        places = chance.sample(list(EXTREMES), k=chance.randint(1, 3))
        changes = {place: chance.choice(EXTREMES[place]) for place in places}
        if FIRST_TIME in changes and LAST_TIME not in changes:
            changes[LAST_TIME] = changes[FIRST_TIME]  # so that it is true of the only record
        groups.append([with_fields(sound, changes)])
    chance.shuffle(groups)
    made = []
    for group in groups:
        frames = []
        for number, data in enumerate([sound, sound, sound, *group, sound]):
            version = chance.choice((3, 8, 9, 13))
            named = ids[topic] if version == 13 else topic
            body = produce_body(named, data, acks=chance.choice((1, -1)), index=index)
            correlation = chance.choice((number, number - (1 << 31), (1 << 31) - 1 - number))
            pieces = encode_request(version, correlation, "me", body)
            frames.append(b"".join(bytes(one) for one in pieces))
        made.append(frames)
    return made


@pytest.mark.parametrize("kind", ["compiled", "python"])
def test_numbers_at_the_ends_of_their_ranges_are_served_alike(kind, tmp_path, monkeypatch, rows):
    served = {"topics_of": TOPICS, "streams_of": streams}
    expected = run(tmp_path, "handlers", 1, {"small.requests.compiled": "false"}, **served)
    assert not rows
    if kind == "python":
        monkeypatch.setattr("stratalog.adapters.system.open_door", PythonDoor)
    found = run(tmp_path, "door", 1, COMPILED, **served)
    assert sum(rows) > 200, "many requests are rows"
    for place, answers in expected["answers"].items():
        assert found["answers"][place] == answers, place
    assert found["counted"] == expected["counted"]
    assert found["files"] == expected["files"]
