"""Goal: a cleaning that takes plain batches in runs writes what a cleaning batch by batch writes, byte for byte.

Method: random logs on a simulated disk; each is cleaned both ways, several times, as time passes. Batches are plain,
or of a producer, a transaction, a codec, the broker's time; with tombstones, gaps, or damage.
"""

from collections.abc import Callable
from functools import partial

from hypothesis import given
from hypothesis import strategies as st
from tests.planting import planting
from tests.sim.disk import SimDisk

from stratalog.errors import Corrupt
from stratalog.log.cleaning import cleaner
from stratalog.log.cleaning.cleaner import Cleaned, Plan, clean, places_for
from stratalog.log.cleaning.filtering import NOWHERE_ELSE, BatchFilter
from stratalog.log.effects import run
from stratalog.log.segment import CLEANED, LOG, Segment, segment_path
from stratalog.log.transaction_index import Aborted, entries
from stratalog.wire.batch import parse_header, scan, set_log_append_time
from stratalog.wire.markers import Ended, Marker
from stratalog.wire.records import Record, build_batch

DIRECTORY = "t-0"
RETENTION_MS = 500
TRANSACTIONAL = 9
KINDS = ("plain", "plain", "plain", "producer", "gzip", "append time", "commit", "abort")

values = st.sampled_from([None, b"", b"v", b"value" * 30])
contents = st.lists(
    st.tuples(st.integers(-1, 9), values, st.integers(0, 30)), min_size=1, max_size=5
)
batches = st.tuples(st.sampled_from(KINDS), contents, st.sampled_from([0, 0, 0, 1, 7]))
"""A kind, records (key, value, time), and a gap of offsets before it."""
logs = st.lists(st.lists(batches, min_size=1, max_size=12), min_size=1, max_size=4)
plans = st.fixed_dictionaries(
    {
        "segment_bytes": st.sampled_from([1, 1500, 100_000]),
        "interval": st.sampled_from([0, 300]),
        "keys_max": st.sampled_from([5, 8, 1000]),
    }
)
passes = st.lists(
    st.tuples(
        st.sampled_from([1, RETENTION_MS]), st.sampled_from([NOWHERE_ELSE, NOWHERE_ELSE, 10])
    ),
    min_size=1,
    max_size=5,
)
"""The time since the last cleaning, and the offset from on which tombstones stay."""


class Log:
    """A log's closed segments, their producers and aborted transactions."""

    def __init__(self, made: list, settings: dict) -> None:
        self.settings = settings
        self.data: dict[int, bytes] = {}
        """The bytes of each segment, by its base offset."""
        self.damage: dict[int, bytes] = {}
        """Of these segments, other bytes lie on the disk."""
        self.producers: dict[int, tuple[int, int]] = {}
        self.aborted: list[Aborted] = []
        self.end = self.first_dirty = 0
        for segment in made:
            base, data = self.end, b""
            for kind, content, gap in segment:
                self.end += gap
                data += b"".join(self._batches(kind, content))
            self.data[base] = data

    def _batches(self, kind: str, content: list) -> list[bytes]:
        found = [self._data_batch(kind, content)]
        if kind in {"commit", "abort"}:
            first = self.end - len(content)
            found.append(self._data_batch("plain", content[:1]))
            marker = Ended(TRANSACTIONAL, 0, Marker(kind == "commit", 0)).batch(1000)
            marker[:8] = self.end.to_bytes(8, "big")
            found.append(bytes(marker))
            if kind == "abort":
                self.aborted.append(Aborted(TRANSACTIONAL, first, self.end, self.end + 1))
            self.end += 1
        return found

    def _data_batch(self, kind: str, content: list) -> bytes:
        fields: dict = {"codec": "gzip"} if kind == "gzip" else {}
        if kind == "producer":
            fields = {"producer_id": 3, "producer_epoch": 0, "base_sequence": self.end}
            self.producers[3] = self.end + len(content) - 1, 0
        elif kind in {"commit", "abort"}:
            fields = {"producer_id": TRANSACTIONAL, "producer_epoch": 0, "base_sequence": self.end}
            fields["transactional"] = True
            self.producers[TRANSACTIONAL] = self.end + len(content) - 1, 0
        records = [
            Record(0, 1000 + time, None if key < 0 else b"k%d" % key, value, (("h", b"x"),))
            for key, value, time in content
        ]
        batch = build_batch(records, base_offset=self.end, leader_epoch=2, **fields)
        if kind == "append time":
            set_log_append_time(batch, 0, parse_header(batch), 1040)
        self.end += len(content)
        return bytes(batch)

    def clean(self, wall_ms: int, deletable_end: int) -> tuple[Cleaned | str, dict[str, bytes]]:
        """Return what a cleaning did, or why it failed, and the files that it wrote."""
        disk = SimDisk()
        disk.make_directory(DIRECTORY)
        settings = self.settings
        places, _ = places_for(self.end, 1 << 20, 0.5)
        plan = Plan(
            directory=DIRECTORY,
            segments=tuple(self._segment(disk, base) for base in sorted(self.data)),
            first_dirty=self.first_dirty,
            places=places,
            keys_max=min(settings["keys_max"], places - 1),
            segment_bytes=settings["segment_bytes"],
            segment_index_bytes=100_000,
            index_interval_bytes=settings["interval"],
            delete_retention_ms=RETENTION_MS,
            wall_ms=wall_ms,
            producers=self.producers,
            aborted=tuple(self.aborted),
            deletable_end=deletable_end,
        )
        try:
            done: Cleaned | str = run(disk, clean(plan))
        except Corrupt as error:
            done = str(error)
        written = [one for one in disk.list(DIRECTORY) if one.name.endswith(CLEANED)]
        return done, {
            one.name: disk.read(f"{DIRECTORY}/{one.name}", 0, one.size) for one in written
        }

    def _segment(self, disk: SimDisk, base: int) -> Segment:
        segment, data = Segment(DIRECTORY, base, 0), self.data[base]
        disk.append(segment.path, 0, [self.damage.get(base, data)])
        for _, header in scan(data):
            segment.add(header.last_offset, header.next_offset, header.size, -1, 1 << 20)
        following = [one for one in self.data if one > base]
        segment.next_offset = min(following, default=self.end)
        segment.drop_indexes()
        return segment

    def swap(self, done: Cleaned, files: dict[str, bytes]) -> None:
        """Continue with the cleaned segments."""
        for one in done.rewritten:
            base, marked = one.segment.base_offset, one.segment.transaction_index
            end = one.segment.next_offset
            gone = [old for old in self.aborted if base <= old.last_offset < end]
            self.aborted = [old for old in self.aborted if old not in gone] + [*entries(marked)]
            for old in one.replaced:
                del self.data[old]
            self.data[base] = files[segment_path("", base, LOG + CLEANED).lstrip("/")]
        self.first_dirty = done.end_offset


def batch_by_batch():
    yield BatchFilter, "keep_run", lambda _self, _data, position, *_: (position, False)
    yield cleaner, "note_plain", lambda _data, position, *_: (position, -1)


def as_values(done: Cleaned | str) -> object:
    """What a cleaning did, the segments with all their fields."""
    if isinstance(done, str):
        return done
    fields = [
        {name: getattr(one.segment, name) for name in Segment.__slots__} for one in done.rewritten
    ]
    replaced = [one.replaced for one in done.rewritten]
    numbers = done.end_offset, done.keys, done.bytes_noted, done.bytes_read, done.bytes_written
    return fields, replaced, numbers


def both(cleaning: Callable[[], tuple]) -> tuple[Cleaned | str, dict[str, bytes]]:
    """Clean in runs and batch by batch; return the common result."""
    done, files = cleaning()
    with planting(batch_by_batch):
        other, other_files = cleaning()
    assert files == other_files
    assert as_values(done) == as_values(other)
    return done, files


@given(logs, plans, passes, st.booleans())
def test_runs_and_single_batches_give_the_same_files(made, settings, times, again):
    log, wall_ms = Log(made, settings), 2000
    for wait, deletable_end in times:
        wall_ms += wait
        done, files = both(partial(log.clean, wall_ms, deletable_end))
        if isinstance(done, str):
            assert "too few" in done
            return
        log.swap(done, files)
        if again or log.first_dirty == log.end:
            log.first_dirty = 0


@given(logs, plans, st.integers(0, 1 << 20), st.integers(1, 255))
def test_damage_gives_the_same_error(made, settings, at, flipped):
    log = Log(made, settings)
    base = sorted(log.data)[at % len(log.data)]
    data = bytearray(log.data[base])
    position = at % len(data)
    data[position] ^= flipped
    log.damage[base] = bytes(data)
    log.first_dirty = at // 7 % log.end  # below it, only the second reading meets the damage
    both(partial(log.clean, 2000, NOWHERE_ELSE))
