"""Goal: the compiled and the interpreted sift give the results of a plain reader of the records.

Method: batches sound and damaged; the interpreted module is loaded from its text whether or not there is an extension.
"""

import importlib.util
from contextlib import suppress
from pathlib import Path
from types import ModuleType

from hypothesis import given
from hypothesis import strategies as st

from stratalog.errors import Corrupt
from stratalog.wire import sift as imported
from stratalog.wire.batch import HEADER_SIZE, crc_holds, parse_header
from stratalog.wire.records import Record, build_batch, read_records

SOURCE = Path(imported.__file__).with_name("sift.py")


def interpreted() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sift_as_text", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PLAIN = interpreted()
small = st.one_of(st.none(), st.binary(max_size=3), st.binary(min_size=60, max_size=200))
records = st.lists(
    st.builds(
        Record,
        offset=st.just(0),
        timestamp=st.integers(-1, 1 << 41),
        key=small,
        value=small,
        headers=st.lists(st.tuples(st.text(max_size=2), small), max_size=2).map(tuple),
    ),
    min_size=1,
    max_size=12,
)


def body_of(found: list[Record]) -> tuple[bytes, int]:
    batch = build_batch(found)
    return bytes(batch[HEADER_SIZE:]), parse_header(batch).base_timestamp


@given(records, st.integers(0, 14), st.booleans(), st.integers(1, 20))
def test_the_last_record_of_each_key_stays(found, last_noted, tombstones, keys_max):
    body, base = body_of(found)
    for module in (imported, PLAIN):
        keys = module.KeyOffsets(keys_max + 1)
        looked_at = module.note(body, len(found), 0, 0, keys, keys_max)
        last = {}
        for at, record in enumerate(found[:looked_at]):
            if record.key is not None:
                last[record.key] = at
        assert keys.count == len(last) <= keys_max
        assert all(keys.last(key) == at for key, at in last.items())
        assert looked_at == len(found) or len(last) == keys_max
        kept: list[bytes] = []
        noted = min(last_noted, looked_at - 1)
        count, largest, deleted = module.sift(body, len(found), 0, noted, tombstones, keys, kept)
        expected = [
            at
            for at, one in enumerate(found)
            if at > noted
            or (
                one.key is not None
                and last[one.key] <= at
                and (one.value is not None or tombstones)
            )
        ]
        assert count == len(expected)
        assert deleted == sum(found[at].value is None for at in expected)
        if expected:
            assert base + largest == max(found[at].timestamp for at in expected)
        pieces = [_piece(found, at) for at in range(len(found))]
        assert b"".join(kept) == b"".join(pieces[at] for at in expected)


def _piece(found, at):
    """Return the bytes of one record: the difference between a batch with the record and one without."""
    before = b"" if at == 0 else body_of(found[:at])[0]
    return body_of(found[: at + 1])[0][len(before) :]


@given(records, st.integers(-(1 << 42), 1 << 42))
def test_another_base_timestamp_changes_no_record(found, shift):
    batch = build_batch(found)
    body = bytes(batch[HEADER_SIZE:])
    for module in (imported, PLAIN):
        moved = module.restamp(body, len(found), shift)
        assert module.restamp(moved, len(found), -shift) == body
        header = parse_header(batch)
        other = build_batch([one._replace(timestamp=one.timestamp) for one in found])
        other[HEADER_SIZE:] = moved
        other[8:12] = (len(other) - 12).to_bytes(4, "big")
        other[27:35] = (header.base_timestamp - shift).to_bytes(8, "big", signed=True)
        assert list(read_records(other)) == list(read_records(batch))


@given(records, st.binary(min_size=1, max_size=4), st.integers(0, 300))
def test_damage_gives_the_same_error_compiled_and_interpreted(found, damage, at):
    body = bytearray(body_of(found)[0])
    at %= len(body)
    body[at : at + len(damage)] = damage
    said = []
    for module in (imported, PLAIN):
        keys = module.KeyOffsets(100)
        kept: list[bytes] = []
        noted = module.note(bytes(body), len(found), 0, 0, keys, 99)
        sifted = module.sift(bytes(body), len(found), 0, -1, True, keys, kept)
        said.append((noted, sifted, kept, keys.count))
    assert said[0] == said[1]


keyed = st.lists(
    st.builds(
        Record,
        offset=st.just(0),
        timestamp=st.integers(-1, 1 << 41),
        key=st.one_of(st.none(), st.binary(max_size=1), st.binary(min_size=60, max_size=200)),
        value=small,
        headers=st.sampled_from([(), (), (), (("h", None),)]),
    ),
    min_size=1,
    max_size=12,
)


@given(keyed, st.dictionaries(st.binary(max_size=1), st.just(b"before")))
def test_last_values_are_those_of_a_dictionary(found, before):
    body, _ = body_of(found)
    expected = dict(before)
    for one in found:
        if one.value is None:
            expected.pop(one.key, None)
        else:
            expected[one.key] = one.value
    for module in (imported, PLAIN):
        values = module.LastValues()
        for key, value in before.items():
            values.put(key, value)
        is_taken = module.last_values(body, len(found), values)
        assert is_taken == all(one.key is not None and not one.headers for one in found)
        if is_taken:
            assert dict(values.take()) == expected


@given(keyed, st.binary(min_size=1, max_size=4), st.integers(0, 300))
def test_last_values_of_damage_are_those_of_a_plain_reader(found, damage, at):
    batch = build_batch(found)
    at = HEADER_SIZE + at % (len(batch) - HEADER_SIZE)
    batch[at : at + len(damage)] = damage
    body = bytes(batch[HEADER_SIZE:])
    said = []
    for module in (imported, PLAIN):
        values = module.LastValues()
        said.append((module.last_values(body, len(found), values), dict(values.take())))
    assert said[0] == said[1]
    if said[0][0]:
        with suppress(Corrupt):
            read = {one.key: one.value for one in read_records(batch)}
            assert said[0][1] == {key: one for key, one in read.items() if one is not None}


kinds = st.sampled_from(["plain", "plain", "plain", "gzip", "transactional", "control", "damaged"])


def batch_of(found, kind):
    batch = build_batch(
        found,
        codec="gzip" if kind == "gzip" else "none",
        transactional=kind == "transactional",
        control=kind == "control",
    )
    if kind == "damaged":
        batch[-1] ^= 1
    return batch


@given(st.lists(st.tuples(keyed, kinds), max_size=4), st.integers(0, 600), st.integers(0, 70))
def test_plain_values_are_those_of_batches_that_need_no_other_reader(made, stop, cut):
    log, end, expected, is_exact = bytearray(), 0, {}, True
    for found, kind in made:
        at = len(log)
        log += batch_of(found, kind)
        is_readable = all(one.key is not None and not one.headers for one in found)
        if end == at < stop and kind == "plain":
            is_exact = is_readable
            if is_readable:
                end = len(log)
                expected |= {one.key: one.value for one in found}
    expected = {key: value for key, value in expected.items() if value is not None}
    whole = bytes(log) + bytes(build_batch(made[0][0]) if made else b"")[:cut]
    for module in (imported, PLAIN):
        values = module.LastValues()
        assert module.plain_values(whole, 0, min(stop, len(log)), values) == end
        if is_exact:
            assert dict(values.take()) == expected


def test_plain_values_end_before_a_batch_that_is_not_whole():
    batch = bytes(build_batch([Record(0, 0, b"k", b"v")]))
    for module in (imported, PLAIN):
        for size in range(len(batch)):
            assert module.plain_values(batch + batch[:size], 0, 999, module.LastValues()) == len(
                batch
            )


runs = st.lists(st.tuples(records, kinds, st.integers(0, 3)), min_size=1, max_size=5)


def log_of(made):
    """Batches one behind another, with gaps between their offsets; the bytes and the offset behind them."""
    log, offset = bytearray(), 0
    for found, kind, gap in made:
        batch = batch_of(found, kind)
        batch[:8] = (offset + gap).to_bytes(8, "big")
        log += batch
        offset += gap + len(found)
    return log, offset


@given(
    runs,
    st.tuples(
        st.integers(0, 20),
        st.integers(1, 20),
        st.integers(-1, 20),
        st.sampled_from([0, 10, 1 << 60]),
    ),
    st.one_of(st.none(), st.binary(min_size=1, max_size=4)),
    st.data(),
)
def test_runs_are_the_same_compiled_and_interpreted(made, limits, damage, data):
    first_offset, keys_max, last_noted, deletable_end = limits
    log, end = log_of(made)
    if damage is not None:
        at = data.draw(st.integers(0, len(log) - len(damage)))
        log[at : at + len(damage)] = damage
    whole, stop = bytes(log), data.draw(st.integers(0, len(log)))
    said = []
    for module in (imported, PLAIN):
        keys = module.KeyOffsets(keys_max + 1)
        noted = module.note_plain(whole, 0, stop, (0, end), first_offset, keys, keys_max)
        sieve = module.Sieve(
            keys, last_noted, 1 << 40, (1 << 40) + 500, deletable_end, {3, end - 1}
        )
        out, kept = [], []
        sifted = sieve.sift(whole, 0, stop, (0, end), out, kept)
        said.append((noted, keys.count, sifted, b"".join(out), kept))
    assert said[0] == said[1]
    position, (taken, is_changed) = 0, said[0][2]
    for last_offset, size, largest in said[0][4]:
        header = parse_header(said[0][3], position)
        assert (header.last_offset, header.size, header.max_timestamp) == (
            last_offset,
            size,
            largest,
        )
        assert crc_holds(said[0][3], position, header)
        position += size
    assert position == len(said[0][3])
    assert is_changed == (said[0][3] != whole[:taken])
