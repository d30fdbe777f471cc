"""Where an empty follower begins: offset, leader epochs and producers at the end of a segment in the bucket."""

import pytest
from tests.faulty_store import Fault, FaultyStore
from tests.unit.tier.segments import closed, log_bytes
from tests.unit.tier.writing.test_tier_writer import FOLDER, archive, objects, tier_of

from stratalog.adapters.object_store import MemoryStore
from stratalog.errors import Corrupt, Unavailable
from stratalog.log.values import TieredHistory
from stratalog.tier.formats.paths import manifest_prefix
from stratalog.tier.reading.archives import ArchiveManifests
from stratalog.tier.reading.tiered_history import history_at_end, tiered_history
from stratalog.tier.writing.tier_writer import Retention

PREFIX = FOLDER.prefix


@pytest.fixture
def store():
    return MemoryStore("memory://history")


def segment(number, epochs):
    """Return a segment of ten records from offset `10 * number` on, whose snapshot has its number."""
    data, end = log_bytes(10 * number, [10], epoch=epochs[-1][0])
    return closed(data, 10 * number, end, epochs=epochs, snapshot=b"producers %d" % number)


def filled(store, each=(((1, 0),), ((1, 0), (4, 15)), ((4, 15),), ((6, 30),))):
    """Archive one segment for each tuple of leader epochs; return its writer."""
    tier = tier_of(store, epoch=6)
    archive(tier, [segment(*one) for one in enumerate(each)], 10 * len(each))
    return tier


def at(store, offset):
    return tiered_history(store, ArchiveManifests(store), PREFIX, offset)


def test_a_replica_begins_at_the_end_of_the_segment_that_has_the_record_before(store):
    filled(store)
    ends = {offset: at(store, offset).end_offset for offset in (1, 10, 11, 20, 21, 40)}
    assert ends == {1: 10, 10: 10, 11: 20, 20: 20, 21: 30, 40: 40}
    assert at(store, 20).producer_snapshot == b"producers 1", "of another segment"


def test_each_epoch_is_named_once_with_its_first_offset_and_none_from_the_end_on(store):
    filled(store)
    epochs = [at(store, end).leader_epochs for end in (10, 20, 30, 40)]
    assert epochs == [((1, 0),), ((1, 0), (4, 15)), ((1, 0), (4, 15)), ((1, 0), (4, 15), (6, 30))]


def test_expired_segments_are_no_part_of_the_history(store):
    tier = filled(store)
    tier.expire(2000, Retention(-1, -1, 20, 0, 1000))
    assert at(store, 40) == TieredHistory(40, ((4, 15), (6, 30)), b"producers 3")
    with pytest.raises(Unavailable, match=r"has offset 9$"):
        at(store, 10)


def test_segments_of_archive_manifests_count(store):
    count = 70
    tier = filled(store, [((1 + number // 20, 200 * (number // 20)),) for number in range(count)])
    assert tier.wants_spill
    tier.spill(20)
    assert tier.manifest.archives
    epochs = ((1, 0), (2, 200), (3, 400), (4, 600))
    assert at(store, 10 * count) == TieredHistory(700, epochs, b"producers 69")
    assert at(store, 205) == TieredHistory(210, ((1, 0), (2, 200)), b"producers 20")


@pytest.mark.parametrize("segments", [0, 2])
def test_an_offset_that_no_manifest_has_yet_is_asked_for_again(store, segments):
    if segments:
        filled(store, [((1, 0),)] * segments)
    missing = 10 * segments
    with pytest.raises(Unavailable, match=rf"{PREFIX}: no manifest .* has offset {missing}$"):
        at(store, missing + 1)


def test_a_stale_list_delays_a_replica_and_never_gives_it_another_state(store):
    stale = FaultyStore(store)
    tier = filled(stale, [((1, 0),)])
    stale.fault = lambda call, _path: Fault.STALE if call == "list" else None
    assert not list(stale.list(manifest_prefix(PREFIX))), "the list is not stale"
    with pytest.raises(Unavailable, match=r"has offset 9$"):
        at(stale, 10)
    stale.fault = lambda _call, _path: None
    assert at(stale, 10) == history_at_end(store, ArchiveManifests(store), tier.manifest)


def test_a_damaged_segment_is_named(store):
    filled(store)
    newest = max(objects(store))
    whole = store.get(newest)
    store.put(newest, [whole[:-1] + bytes([whole[-1] ^ 1])])
    assert at(store, 30).end_offset == 30
    with pytest.raises(Corrupt, match=newest):
        at(store, 40)


def test_without_a_segment_only_the_end_of_what_was_uploaded_is_known(store):
    tier = filled(store)
    archives = ArchiveManifests(store)
    assert history_at_end(store, archives, tier.manifest).end_offset == 40
    tier.expire(2000, Retention(-1, -1, 40, 0, 1000))
    assert history_at_end(store, archives, tier.manifest) == TieredHistory(40, (), b"")
    never = tier_of(MemoryStore("memory://empty"))
    assert history_at_end(store, archives, never.manifest) == TieredHistory(0, (), b"")
