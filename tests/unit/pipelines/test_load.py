"""The loader cuts files into batches: it loses no line, invents none, and segments can roll between batches."""

import asyncio
import gzip
import os
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from load import BATCH_BYTES_MAX, LINE_BYTES_MAX, Survey, check_readable, lines, load, survey

from stratalog.errors import UserError
from stratalog.wire.records import read_records

HOUR_MS = 3_600_000
GZIP_MAGIC = b"\x1f\x8b"


class Pipeline:
    """A producer that keeps the sent batches."""

    def __init__(self):
        self.batches = []

    async def send(self, topic, partition, batch):
        assert (topic, partition) == ("t", 0)
        self.batches.append(batch.build())

    async def drain(self):
        pass


def ignore(_count):
    pass


def sent(*paths):
    """Return (batches of records, the number of counted records)."""
    pipeline = Pipeline()
    seen = survey(paths, ignore)
    count = asyncio.run(load(pipeline, "t", paths, seen, ignore))
    return [list(read_records(batch)) for batch in pipeline.batches], count


def line(hour, text="GET /"):
    return f'1.2.3.4 - - [01/Jan/2020:{hour:02}:00:00 +0000] "{text}" 200 1'.encode()


@settings(max_examples=50)
@given(
    texts=st.lists(st.binary(max_size=40).filter(lambda text: b"\n" not in text), max_size=40),
    packed=st.booleans(),
    ended=st.booleans(),
)
def test_every_line_is_sent_once_and_in_order(tmp_path_factory, texts, packed, ended):
    content = b"\n".join(texts) + (b"\n" if ended and texts else b"")
    # The loader would read such a file as gzip.
    assume(packed or not content.startswith(GZIP_MAGIC))
    path = tmp_path_factory.mktemp("log") / "log"
    path.write_bytes(gzip.compress(content) if packed else content)
    read = []
    found = [one for some in lines(path, read.append) for one in some]
    wanted = content.split(b"\n")
    if not wanted[-1]:
        wanted.pop()
    assert found == [one.removesuffix(b"\r") for one in wanted]
    assert sum(read) == path.stat().st_size or not content


def test_lines_across_blocks_are_whole(tmp_path):
    wanted = [bytes([65 + number % 26]) * (number * 97 % 300_000) for number in range(40)]
    path = tmp_path / "log"
    path.write_bytes(b"\n".join(wanted))
    assert [one for some in lines(path, ignore) for one in some] == wanted


def test_an_endless_line_is_cut_and_loses_no_byte(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"x" * (LINE_BYTES_MAX * 3 + 5))
    pieces = [one for some in lines(path, ignore) for one in some]
    assert len(pieces) == 4
    assert sum(map(len, pieces)) == LINE_BYTES_MAX * 3 + 5
    assert max(map(len, pieces)) == LINE_BYTES_MAX


@pytest.mark.parametrize("packed", [False, True])
def test_a_survey_looks_at_both_ends_of_every_file(tmp_path, packed):
    later, earlier = tmp_path / "log", tmp_path / "log.1"
    for path, hours in ((later, (13, 20)), (earlier, (2, 12))):
        text = b"\n".join([b"no time", line(hours[0]), b"\xff\0", line(hours[1]), b"no time"])
        path.write_bytes(gzip.compress(text) if packed else text)
    seen = survey([later, earlier], ignore)
    assert seen.last_ms - seen.first_ms == 18 * HOUR_MS
    assert seen.file_bytes == later.stat().st_size + earlier.stat().st_size
    assert seen.bytes == 256
    assert seen.segment_ms == 18 * HOUR_MS // 12


def test_segments_keep_to_kafkas_limits():
    assert Survey(0, 0, 5, 5).segment_ms == 1
    assert Survey(0, 0, 5, 5).segment_bytes == 1 << 20
    assert Survey(0, 1 << 40, 0, 5).segment_bytes == 1 << 26


def test_a_line_without_a_time_gets_that_of_the_line_before(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"\n".join([b"first", line(3), b"second", line(4), b"", line(2), b"third"]))
    batches, count = sent(path)
    records = [record for batch in batches for record in batch]
    start = survey([path], ignore).first_ms
    hours = [(record.timestamp - start) / HOUR_MS for record in records]
    assert count == 7
    assert hours == [0, 1, 1, 2, 2, 0, 0]


def test_a_batch_ends_at_a_new_hour_or_at_its_size(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"\n".join(line(hour) for hour in range(24) for _ in range(3)))
    batches, count = sent(path)
    assert count == 72
    assert [len(batch) for batch in batches] == [3] * 24
    path.write_bytes(b"\n".join(line(1, "x" * 1000) for _ in range(1000)))
    batches, count = sent(path)
    assert count == 1000
    assert 4 <= len(batches) <= 5
    assert all(sum(len(one.value) for one in batch) < BATCH_BYTES_MAX for batch in batches)


def test_times_that_go_back_and_forth_do_not_make_small_batches(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"\n".join(line(hour) for hour in [1, 23, 2, 3, 5, 4, 22, 6] * 50))
    batches, count = sent(path)
    assert count == 400
    assert len(batches) < 10


def test_an_unreadable_file_is_one_line(tmp_path):
    for path, reason in (
        (tmp_path / "missing", "No such file or directory"),
        (tmp_path, "not a regular file"),
    ):
        with pytest.raises(UserError, match=reason):
            check_readable(path)
    if os.geteuid() != 0:
        locked = tmp_path / "locked"
        locked.touch(mode=0)
        with pytest.raises(UserError, match="Permission denied"):
            check_readable(locked)


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-20], lambda data: data[:30] + b"?" * 20 + data[50:]]
)
def test_a_damaged_gzip_file_is_named(tmp_path, damage):
    path: Path = tmp_path / "log.gz"
    path.write_bytes(damage(gzip.compress(os.urandom(3000))))
    with pytest.raises(UserError, match=r"log\.gz: damaged gzip file"):
        list(lines(path, ignore))
