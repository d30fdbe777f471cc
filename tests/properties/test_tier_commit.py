"""Two writers commit manifests, one paused anywhere, in every order of requests and with every time-out.

Goal: every later version has each confirmed commit, and no writer gets a confirmation of a version outside the chain.
Method: `interleavings` searches small worlds completely. Boundary groups have two versions, so that a few commits prune
the version that a paused writer is about to write.
"""

from contextlib import suppress
from functools import cache
from itertools import pairwise
from uuid import uuid5

import pytest
from msgspec.structs import replace
from tests.properties.interleavings import Confirmed, World

from stratalog.errors import Fenced, Unavailable
from stratalog.tier.bucket import commit as protocol
from stratalog.tier.bucket.commit import PutAbsent, Writer, commit, load_latest, prune
from stratalog.tier.formats.archive_manifest import decode_archive
from stratalog.tier.formats.manifest import Entry, Manifest, SegmentState, decode, encode
from stratalog.tier.formats.paths import manifest_path
from stratalog.tier.writing import spilling as spilling_rules
from stratalog.tier.writing.spilling import SpillLimits, next_spill, spilled, with_spilled
from stratalog.wire.ids import ZERO_ID, topic_id_text

pytestmark = pytest.mark.timeout(3600)
"""The searches take up to 12 s of CPU each, and however long the machine's other work makes them wait."""
FAN_OUT = 2
LIMITS = SpillLimits(segments=2, kept=1, archive_segments=10)
EMPTY = Manifest(cluster_id="c", topic_id="A" * 22, topic="t", partition=0)
PREFIX = EMPTY.prefix


NAMES = {}
"""Entries and archives by id: an entry's name, the names of an archive's entries."""


def entry(name, offset=0):
    made = topic_id_text(uuid5(ZERO_ID, name))
    NAMES[made] = (name,)
    return Entry(
        id=made,
        base_offset=offset,
        last_offset=offset,
        leader_epoch=0,
        size=1,
        data_size=1,
        records=1,
        min_timestamp=0,
        max_timestamp=0,
        min_timestamp_exact=True,
        data_crc=0,
        footer_crc=0,
        leader_epochs=(),
        state=SegmentState.COPY_FINISHED,
        state_ms=0,
    )


def base_version(number):
    made = replace(EMPTY, version=number, node_id=1, leader_epoch=1, write_id=f"base {number}")
    return replace(made, segments=(entry("first"),))


def bucket_of(*manifests):
    return {manifest_path(PREFIX, made.version): encode(made) for made in manifests}


def names(manifest):
    return tuple(
        name
        for one in manifest.everything()
        if one.state is SegmentState.COPY_FINISHED
        for name in NAMES[one.id]
    )


def adding(name):
    """Return a change that adds an entry, or does nothing if the entry is there."""

    def change(tip):
        tip = tip if tip is not None else EMPTY
        added = entry(name, len(names(tip)))
        return None if name in names(tip) else replace(tip, segments=(*tip.segments, added))

    return change


def committing(base, change, writer, write_id):
    """Commit once, and confirm it to the search."""
    made = yield from commit(PREFIX, base, change, writer, write_id, fan_out=FAN_OUT)
    yield Confirmed(made.version, made.leader_epoch, made.write_id, names(made))
    return made


def old_leader(base, name, attempts=1):
    """The leader of epoch 1 knows `base` and adds one segment; it retries after an unknown outcome."""

    def program():
        tip = base
        for attempt in range(attempts):
            try:
                tip = yield from committing(tip, adding(name), Writer(1, 1), f"old {attempt}")
            except Unavailable:
                if attempt + 1 == attempts:
                    raise
            else:
                return names(tip)
        raise AssertionError

    return program


def new_leader(additions, hint=None, node=2, epoch=2, kept=0):
    """A later leader takes over, adds segments, and then prunes."""

    def program():
        tip = yield from load_latest(PREFIX, hint, fan_out=FAN_OUT)
        writer = Writer(node, epoch)
        write_id = f"new {node}"
        tip = yield from committing(tip, lambda t: t or EMPTY, writer, f"{write_id} takes over")
        for number in range(additions):
            name = f"{node}-{number}"
            tip = yield from committing(tip, adding(name), writer, f"{write_id} {name}")
        boundary = yield from prune(PREFIX, tip, kept=kept, fan_out=FAN_OUT)
        stamp = lambda t: replace(t, boundary=boundary) if t.boundary < boundary else None  # noqa: E731
        tip = yield from committing(tip, stamp, writer, f"{write_id} pruned")
        return names(tip)

    return program


def spilling(tip, writer, write_id, opened=None):
    """Move all but the last entry into an archive manifest, in its own commit, by the product's own rules."""
    spill = next_spill(tip, LIMITS)
    assert spill is not None, "the story has no entry to move"
    assert (opened is not None) == (spill.onto is not None)
    onto = NAMES[spill.onto.id] if spill.onto is not None else ()
    moved = onto + tuple(NAMES[one.id][0] for one in spill.entries)
    object_id = topic_id_text(uuid5(ZERO_ID, f"{write_id} {moved}"))
    NAMES[object_id] = moved
    named, data = spilled(tip, spill, opened, object_id)
    with suppress(Unavailable):  # a manifest may not name an object that may be missing
        yield PutAbsent(tip.archive_path(named), data)
        change = lambda t: with_spilled(t, spill, named, 5)  # noqa: E731
        made = yield from committing(tip, change, writer, write_id)
        archive = decode_archive(data, made.topic_uuid, made.partition, "here")
        return made, archive if named in made.archives else opened
    return tip, opened


def spilling_old_leader(base):
    """The leader of epoch 1 adds one segment, archives two, adds another."""

    def program():
        writer = Writer(1, 1)
        tip = yield from committing(base, adding("a"), writer, "old a")
        before = tip
        tip, _ = yield from spilling(tip, writer, "old spills")
        if tip is before:  # the outcome is unknown
            tip, _ = yield from spilling(tip, writer, "old spills again")
        tip = yield from committing(tip, adding("b"), writer, "old b")
        return names(tip)

    return program


def spilling_new_leader(base):
    """The next leader adds a segment, archives, and then archives again into the same object."""

    def program():
        writer = Writer(2, 2)
        tip = yield from load_latest(PREFIX, base, fan_out=FAN_OUT)
        tip = yield from committing(tip, adding("x"), writer, "new x")
        opened = None
        if any(tip.live_archives()):
            return names(tip)
        tip, opened = yield from spilling(tip, writer, "new spills")
        tip = yield from committing(tip, adding("y"), writer, "new y")
        if opened is not None:
            tip, _ = yield from spilling(tip, writer, "new spills again", opened)
        return names(tip)

    return program


def reader():
    """A reader opens the bucket at some moment."""
    tip = yield from load_latest(PREFIX, fan_out=FAN_OUT)
    return (
        None if tip is None else Confirmed(tip.version, tip.leader_epoch, tip.write_id, names(tip))
    )


@cache
def newest_in(objects):
    """Return the version that a reader finds when no writer runs."""
    world = World(dict(objects), [reader])
    (end,) = world.ends()
    newest = world.value(end, 0)
    assert isinstance(newest, Confirmed), newest
    return newest


def hold(world, state, seen=()):
    """Assert the rules that hold at the end of a run; `seen` are the versions that readers got."""
    chain = sorted({*state.confirmed, *seen}, key=lambda one: one.version)
    for earlier, later in pairwise(chain):
        assert earlier.version < later.version, (earlier, later)
        assert earlier.epoch <= later.epoch, (earlier, later)
        assert set(earlier.entries) <= set(later.entries), (earlier, later)
    newest = newest_in(frozenset(world.objects(state).items()))
    for confirmed in state.confirmed:
        assert confirmed.version <= newest.version
        assert set(confirmed.entries) <= set(newest.entries), (confirmed, newest)
    archives_hold(world.objects(state), newest.version)


def archives_hold(objects, version):
    """Assert that the bucket has each archive manifest that the newest version names, and each entry once."""
    manifest = decode(objects[manifest_path(PREFIX, version)], "the newest")
    for named in manifest.live_archives():
        data = objects[manifest.archive_path(named)]
        archive = decode_archive(data, manifest.topic_uuid, 0, "its archive")
        entries = [archive.entry(at) for at in range(*archive.span_of(named))]
        assert tuple(NAMES[one.id][0] for one in entries) == NAMES[named.id]
    listed = names(manifest)
    assert len(set(listed)) == len(listed), listed


def search(world, readers=()):
    """Check every end of a world; return the set of ways in which the programs ended."""
    outcomes = set()
    for state in world.ends():
        seen = [world.value(state, number) for number in readers]
        hold(world, state, [one for one in seen if isinstance(one, Confirmed)])
        outcomes.add(tuple(world.value(state, n) for n in range(len(world.programs))))
    return outcomes


def test_two_leaders_race_for_the_first_version():
    programs = [old_leader(None, "a", attempts=2), new_leader(0)]
    outcomes = search(World({}, programs, faults=2))
    assert (("a",), ("a",)) in outcomes
    assert ("Fenced", ()) in outcomes


def test_a_leader_that_paused_before_its_put_is_fenced_after_the_pruning():
    base = base_version(1)
    programs = [old_leader(base, "zombie", attempts=2), new_leader(2)]
    world = World(bucket_of(base), programs, faults=1)
    outcomes = search(world)
    assert ("Fenced", ("first", "2-0", "2-1")) in outcomes  # the leader lost the race
    assert (
        ("first", "zombie"),
        ("first", "zombie", "2-0", "2-1"),
    ) in outcomes  # the leader was in time
    assert world.states > 1000


def test_every_pair_of_faults_keeps_the_chain_while_the_first_version_is_pruned():
    programs = [old_leader(None, "zombie", attempts=2), new_leader(1)]
    outcomes = search(World({}, programs, faults=2))
    assert ("Fenced", ("2-0",)) in outcomes


@pytest.mark.big
def test_every_pair_of_faults_keeps_the_chain_while_later_versions_are_pruned():
    base = base_version(1)
    programs = [old_leader(base, "zombie", attempts=2), new_leader(2)]
    search(World(bucket_of(base), programs, faults=2))


def test_a_paused_leader_is_fenced_with_two_levels_of_boundaries():
    """Versions 2 and 3 get a boundary object of the second level, and lose their own, while the old leader pauses."""
    base = base_version(2)
    before = base_version(1)
    programs = [old_leader(base, "zombie"), new_leader(2, hint=base)]
    world = World(bucket_of(before, base), programs, faults=1)
    search(world)
    assert any("boundary/1/" in path for state in world.ends() for path in world.objects(state))


def test_two_new_leaders_that_prune_at_once_keep_the_chain():
    base = base_version(1)
    programs = [new_leader(1, hint=base, node=2), new_leader(1, hint=base, node=3, epoch=3)]
    search(World(bucket_of(base), programs, faults=1))


def test_readers_with_stale_lists_never_see_a_version_outside_the_chain():
    programs = [old_leader(None, "zombie"), new_leader(1), reader]
    outcomes = search(World({}, programs, stale_lists=1), readers=[2])
    assert any(isinstance(outcome[2], Confirmed) for outcome in outcomes)


@pytest.mark.big
def test_readers_with_stale_lists_while_later_versions_are_pruned():
    base = base_version(1)
    programs = [old_leader(base, "zombie"), new_leader(2, hint=base), reader]
    search(World(bucket_of(base), programs, stale_lists=2), readers=[2])


def test_a_new_leader_with_stale_lists_keeps_the_chain():
    base = base_version(1)
    programs = [new_leader(1, node=2), new_leader(1, node=3, epoch=3)]
    search(World(bucket_of(base), programs, stale_lists=3))


def test_a_leader_that_gets_no_answer_to_its_spill_spills_once():
    base = base_version(1)
    outcomes = search(World(bucket_of(base), [spilling_old_leader(base)], faults=2))
    assert (("first", "a", "b"),) in outcomes


def test_two_leaders_that_spill_at_once_lose_no_entry():
    base = base_version(1)
    programs = [spilling_old_leader(base), spilling_new_leader(base)]
    world = World(bucket_of(base), programs, faults=1)
    outcomes = search(world)
    assert ("Fenced", ("first", "x", "y")) in outcomes
    assert (("first", "a", "b"), ("first", "a", "b", "x")) in outcomes


def test_the_search_finds_a_spill_that_does_not_check_its_entries(monkeypatch):
    """The proof can fail: a leader that gets no answer to its spill archives the same entries again."""
    monkeypatch.setattr(spilling_rules, "_same", lambda some, others: True)
    base = replace(base_version(1), segments=(entry("first"), entry("second", 1)))
    with pytest.raises(AssertionError):
        search(World(bucket_of(base), [spilling_old_leader(base)], faults=2))


def no_boundary(prefix, version, *, fan_out):
    return False
    yield


def ignoring_time_outs(prefix, new):
    """Treat a put without an answer as a put that succeeded."""
    try:
        won = yield protocol.PutAbsent(manifest_path(prefix, new.version), encode(new))
    except Unavailable:
        won = True
    if won:
        return new
    found = yield protocol.Get(manifest_path(prefix, new.version))
    return protocol.decode(found, "?") if found is not None else new


@pytest.mark.parametrize(
    ("part", "broken"),
    [
        ("is_pruned", no_boundary),
        ("_refuse_if_fenced", lambda tip, writer: None),
        ("_put_version", ignoring_time_outs),
    ],
)
def test_the_search_finds_a_protocol_without_one_of_its_parts(monkeypatch, part, broken):
    """The proof can fail: without any one of these parts, some run breaks the chain."""
    monkeypatch.setattr(protocol, part, broken)
    base = base_version(1)
    programs = [old_leader(base, "zombie"), new_leader(2)]
    with pytest.raises(AssertionError):
        search(World(bucket_of(base), programs, faults=1))


def test_a_leader_of_the_same_epoch_on_another_node_is_fenced():
    base = base_version(1)
    program = commit(PREFIX, base, adding("x"), Writer(2, 1), "w")
    with pytest.raises(Fenced):
        next(program)
