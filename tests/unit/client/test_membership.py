"""Range assignment: each partition to one member, in runs of even length; and the encoding of group messages."""

from hypothesis import given
from hypothesis import strategies as st

from stratalog.client.membership import range_assignment
from stratalog.wire.assignment import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)

TOPICS = st.sampled_from(["a", "bé", "c"])


def test_each_member_gets_a_run_of_partitions_and_the_first_get_one_more() -> None:
    # The example in Kafka's range assignor, and one in which a member subscribes to one topic only.
    assert range_assignment({"c0": ["t0", "t1"], "c1": ["t0", "t1"]}, {"t0": 3, "t1": 3}) == {
        "c0": [("t0", 0), ("t0", 1), ("t1", 0), ("t1", 1)],
        "c1": [("t0", 2), ("t1", 2)],
    }
    assert range_assignment({"x": ["a"], "y": ["a", "b"]}, {"a": 1, "b": 2, "gone": 0}) == {
        "x": [("a", 0)],
        "y": [("b", 0), ("b", 1)],
    }


@given(
    st.dictionaries(st.text(max_size=3), st.lists(TOPICS, unique=True), max_size=5),
    st.dictionaries(TOPICS, st.integers(0, 9)),
)
def test_every_partition_is_assigned_to_one_subscribed_member(
    members: dict[str, list[str]], partitions: dict[str, int]
) -> None:
    assigned = range_assignment(members, partitions)
    assert assigned.keys() == members.keys()
    for topic, count in partitions.items():
        shares = {
            member: [index for name, index in keys if name == topic]
            for member, keys in assigned.items()
            if topic in members[member]
        }
        found = sorted(index for share in shares.values() for index in share)
        assert found == (list(range(count)) if shares else [])
        if shares:
            sizes = [len(share) for share in shares.values()]
            assert max(sizes) - min(sizes) <= 1
    wanted = {(member, topic) for member, topics in members.items() for topic in topics}
    assert {(member, topic) for member, keys in assigned.items() for topic, _ in keys} <= wanted


@given(st.lists(st.tuples(TOPICS, st.integers(0, 2**31 - 1))))
def test_an_assignment_is_decoded_as_it_was_encoded(keys: list[tuple[str, int]]) -> None:
    assert sorted(decode_assignment(memoryview(encode_assignment(keys)))) == sorted(keys)


@given(st.lists(TOPICS, unique=True))
def test_a_subscription_is_decoded_as_it_was_encoded(topics: list[str]) -> None:
    encoded = encode_subscription(topics)
    assert decode_subscription(memoryview(encoded)) == tuple(topics)
    # Later versions append fields, as Java's consumers do.
    later = b"\x00\x03" + encoded[2:] + b"\0\0\0\0" + b"\xff\xff\xff\xff" + b"\xff\xff"
    assert decode_subscription(memoryview(later)) == tuple(topics)
    assert decode_subscription(memoryview(encoded[:3])) == ()
