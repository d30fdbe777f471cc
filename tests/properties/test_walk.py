"""Goal: the walk over records accepts the records that `read_records` accepts, the walk over batches passes those that
`scan` yields, and both give the same results compiled and interpreted.

Method: sound, damaged and malformed batches. The test loads the interpreted module from its text, also beside a
compiled extension.
"""

import importlib.util
from pathlib import Path
from random import Random
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fuzz.poison import lying_records, sound

from stratalog.errors import Corrupt
from stratalog.wire import walk as imported
from stratalog.wire.batch import HEADER_SIZE, parse_header, scan
from stratalog.wire.compression import decompress
from stratalog.wire.records import Record, build_batch, read_records

SOURCE = Path(imported.__file__).with_name("walk.py")
ALWAYS = (-(1 << 63), (1 << 63) - 1, False)


def interpreted() -> ModuleType:
    spec = importlib.util.spec_from_file_location("walk_as_text", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PLAIN = interpreted()
records = st.lists(
    st.builds(
        Record,
        offset=st.just(0),
        timestamp=st.integers(-(1 << 50), 1 << 50),
        key=st.none() | st.binary(max_size=200),
        value=st.none() | st.binary(max_size=200) | st.just(b"v" * 20_000),
        headers=st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=9))).map(
            tuple
        ),
    ),
    min_size=1,
    max_size=9,
)


def walked(data: bytes, count: int, base: int, *demands: int) -> tuple[int, ...]:
    """Return the walk's result, which must be the same compiled and interpreted."""
    asked = (data, 0, 0, count, base, *(demands or ALWAYS))
    plain: tuple[int, ...] = PLAIN.walk(*asked)
    found = imported.walk(*asked)  # type: ignore[arg-type]
    assert found == plain, "compiled of another text? python hatch_build.py"
    return plain


@given(records)
def test_built_batches_are_sound(made: list[Record]) -> None:
    batch = bytes(build_batch(made))
    base = parse_header(batch).base_timestamp
    verdict, position, index, largest = walked(batch[HEADER_SIZE:], len(made), base)
    assert (verdict, position, index) == (PLAIN.FINE, len(batch) - HEADER_SIZE, len(made))
    assert largest == max(-1, *(one.timestamp for one in made))


@given(records, st.data())
def test_the_first_record_against_the_demands_is_named(
    made: list[Record], data: st.DataObject
) -> None:
    batch = bytes(build_batch(made))
    base = parse_header(batch).base_timestamp
    earliest, latest = sorted(data.draw(st.tuples(*[st.integers(-(1 << 50), 1 << 50)] * 2)))
    keyed = data.draw(st.booleans())
    at_fault = [
        (PLAIN.NO_KEY if keyed and one.key is None else PLAIN.OUT_OF_TIME, index)
        for index, one in enumerate(made)
        if (keyed and one.key is None)
        or not (one.timestamp == -1 or earliest <= one.timestamp <= latest)
    ]
    verdict, _, index, found = walked(batch[HEADER_SIZE:], len(made), base, earliest, latest, keyed)
    assert (verdict, index) == (at_fault[0] if at_fault else (PLAIN.FINE, len(made)))
    assert verdict != PLAIN.OUT_OF_TIME or found == made[index].timestamp


@pytest.mark.parametrize("seed", range(20))
def test_every_accepted_batch_can_be_read(seed: int) -> None:
    chance = Random(seed)
    verdicts = []
    for _ in range(200):
        batch = lying_records(chance)
        header = parse_header(batch)
        try:
            data = decompress(header.codec, batch[HEADER_SIZE:])
        except Corrupt:
            continue
        verdict, position, *_ = walked(data, header.record_count, header.base_timestamp)
        passed = verdict == PLAIN.FINE and position == len(data)
        verdicts.append(passed)
        try:
            found = [one.offset for one in read_records(batch)]
        except Corrupt:
            assert not passed
        else:
            assert not passed or found == list(range(header.record_count))
    assert True in verdicts
    assert False in verdicts


@given(st.binary(max_size=60), st.integers(1, 5))
def test_any_bytes_are_accepted_or_refused(data: bytes, count: int) -> None:
    verdict, _, index, _ = walked(data, count, 0)
    assert index <= count
    assert (verdict == PLAIN.FINE) == (index == count)


def test_an_interrupted_walk_continues_where_it_stopped() -> None:
    data = sound("none")[HEADER_SIZE:]
    base = parse_header(sound("none")).base_timestamp
    _, position, index, _ = imported.walk(data, 0, 0, 2, base, *ALWAYS)
    verdict, position, index, largest = imported.walk(data, position, index, 5, base, *ALWAYS)
    assert (verdict, position, index, largest) == (imported.FINE, len(data), 5, base + 4)


def passed(data: bytes, *bounds: int) -> tuple[int, int]:
    """Return the result of a walk over batches, which must be the same compiled and interpreted."""
    plain: tuple[int, int] = PLAIN.pass_batches(data, *bounds)
    assert imported.pass_batches(data, *bounds) == plain
    return plain


@given(st.lists(st.tuples(records, st.booleans()), max_size=4), st.data())
def test_batches_without_a_gap_are_passed(
    made: list[tuple[list[Record], bool]], data: st.DataObject
) -> None:
    log, offset = bytearray(), 7
    for found, has_gap in made:
        log += build_batch(found, base_offset=offset + has_gap)
        offset += has_gap + len(found)
    first = parse_header(log).base_offset if log else 7
    stop = data.draw(st.integers(0, len(log) + 9))
    offset_end = data.draw(st.integers(0, offset + 2))
    expected = (0, first)
    for position, header in scan(log):
        behind = position + header.size
        is_next = header.base_offset == expected[1]
        if not is_next or behind > stop or header.next_offset > offset_end:
            break
        expected = behind, header.next_offset
    assert passed(bytes(log), 0, first, stop, offset_end) == expected


@given(records, st.integers(0, 60), st.binary(min_size=1, max_size=8))
def test_a_damaged_header_ends_the_walk_or_is_one_that_a_reader_accepts(
    made: list[Record], at: int, damage: bytes
) -> None:
    first, second = (build_batch(made, base_offset=base) for base in (0, len(made)))
    second[at : at + len(damage)] = damage
    log = bytes(first + second)
    position, offset = passed(log, 0, 0, len(log), 1 << 40)
    assert (position, offset) >= (len(first), len(made))
    if position > len(first):
        header = parse_header(log, len(first))
        assert header.base_offset == len(made)
        assert (position, offset) == (len(first) + header.size, header.next_offset)
