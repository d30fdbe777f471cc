from msgspec.structs import replace

from stratalog.broker.tier.state_merging import merged
from stratalog.coordinators.placement import partition_for
from stratalog.tier.bucket.cluster_state import (
    ClusterState,
    StateOffset,
    StatePartition,
    StateTopic,
)

OFFSETS = StateTopic(
    name="__consumer_offsets", topic_id="o", partitions=(StatePartition(1, 0, 9),) * 2
)
GROUPS = {
    partition: next(f"g{n}" for n in range(50) if partition_for(f"g{n}", 2) == partition)
    for partition in range(2)
}


def state(ends=(5, 7), offsets=(3, 4), metadata_offset=10):
    """Return a state with a committed offset of one group for each partition of the offsets topic; None: without."""
    partitions = tuple(StatePartition(2, 0 if end >= 0 else -1, end) for end in ends)
    groups = {
        GROUPS[partition]: (StateOffset("t", "i", 0, offset, 2, "", 1, -1),)
        for partition, offset in enumerate(offsets)
        if offset is not None
    }
    return ClusterState(
        cluster_id="c",
        incarnation=0,
        node_id=1,
        written_ms=1,
        topics=(OFFSETS, StateTopic(name="t", topic_id="i", partitions=partitions)),
        groups=groups,
        metadata_offset=metadata_offset,
    )


def test_a_broker_adds_what_it_leads_to_what_the_others_uploaded():
    next_version = merged(state(), state(ends=(-1, 8), offsets=(None, 6)), {1})
    assert next_version == state(ends=(5, 8), offsets=(3, 6))


def test_a_group_without_offsets_goes_where_its_coordinator_says_so():
    assert merged(state(), state(offsets=(None, None)), {0}) == state(offsets=(None, 4))


def test_a_broker_with_older_metadata_uploads_nothing():
    assert merged(state(metadata_offset=11), state(), {0, 1}) is None
    assert merged(state(metadata_offset=10), state(), {0, 1}) == state()


def test_a_topic_that_was_deleted_is_not_carried_over():
    mine = replace(state(metadata_offset=12), topics=(OFFSETS,))
    assert merged(state(), mine, {0, 1}).topics == (OFFSETS,)
