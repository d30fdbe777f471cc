"""A replay of a metadata log on top of a snapshot."""

from uuid import UUID

from stratalog.metadata.image import EMPTY
from stratalog.metadata.replay import Replay
from stratalog.quorum.voters import Voter, VoterSet, voters_record
from stratalog.wire.internal.metadata_records import (
    FeatureLevelRecord,
    RemoveTopicRecord,
    TopicRecord,
)

KEPT, GONE = UUID(int=1000), UUID(int=2000)


def test_records_below_the_snapshot_are_ignored():
    first = Replay()
    first.replay(0, 1, TopicRecord(name="kept", topic_id=KEPT))
    first.replay(1, 1, TopicRecord(name="gone", topic_id=GONE))
    again = Replay(first.image())
    again.replay(1, 1, TopicRecord(name="gone", topic_id=GONE))
    assert again.image() == first.image()
    again.replay(2, 1, RemoveTopicRecord(topic_id=GONE))
    assert set(again.image().topic_ids_by_name) == {"kept"}
    assert (first.removed_topics, again.removed_topics) == (set(), {GONE})


def test_an_epoch_never_falls():
    replay = Replay(EMPTY)
    for offset, epoch in enumerate((1, 7, 3)):
        replay.replay(offset, epoch, FeatureLevelRecord(name="f", feature_level=offset + 1))
    assert replay.image().epoch == 7
    assert Replay(replay.image()).image().epoch == 7, (
        "the epoch must stay also if no record follows the snapshot"
    )


def test_the_last_voters_record_counts():
    first, second = (voters_record(VoterSet((Voter(1, directory),))) for directory in (KEPT, GONE))
    replay = Replay(voters=first)
    assert replay.voters == first
    replay.replay(0, 1, second)
    assert replay.voters == second
