"""Goal: test group behaviour that golden stories cannot show: many groups at once, and the table of states."""

import pytest
from msgspec.structs import replace
from tests.golden.group_script import CountingEntropy

from stratalog.coordinators.group import Group, Member
from stratalog.coordinators.groups import (
    DEADLINES_PER_TICK_MAX,
    EXPIRY_PAUSE_MS,
    RECORDS_PER_EXPIRY,
    GroupShard,
)
from stratalog.coordinators.join import METADATA_BYTES_MAX
from stratalog.coordinators.messages import (
    CommitPartition,
    CommitTopic,
    IdsTakenBack,
    JoinGroup,
    JoinGroupAnswer,
    MemberExpired,
    OffsetCommit,
    Outcome,
    Protocol,
    Rebalanced,
    SyncGroup,
)
from stratalog.coordinators.pending import IDS_MAX
from stratalog.coordinators.records import KeptOffset, group_record, offset_record
from stratalog.coordinators.states import TRANSITIONS, GroupState
from stratalog.coordinators.subscriptions import subscribed_topics
from stratalog.coordinators.turn import GroupSettings
from stratalog.errors import ErrorCode
from stratalog.statemachine import Decision, Now
from stratalog.wire.internal.offsets import (
    GroupMetadataKey,
    GroupMetadataValue,
    decode_key,
    decode_value,
)

NOTHING = Decision((), Outcome())


def at(ms):
    return Now(ms, ms)


def join(group_id, client_id="c", **more):
    request = JoinGroup(
        group_id=group_id,
        member_id="",
        client_id=client_id,
        client_host="h",
        session_timeout_ms=6_000,
        rebalance_timeout_ms=6_000,
        protocol_type="consumer",
        protocols=(Protocol("range", b"x"),),
        member_id_required=False,
    )
    return replace(request, **more)


class Shard:
    """A shard whose decisions are applied at once; `ask` returns the answer to its request, or None."""

    def __init__(self, **settings):
        self.shard = loaded_shard(**settings)
        self.news = []

    def ask(self, request):
        return self.take(self.shard.join(request, "token", at(0)))

    def take(self, decision):
        for key, value in decision.records:
            self.shard.replay(0, key, value)
        self.news += decision.answer.news
        return next((answer for token, answer in decision.answer.answers), None)

    def id_for(self, group_id, holder=""):
        """Return a member id for a client that does not join."""
        answer = self.ask(join(group_id, member_id_required=True, holder=holder))
        assert answer.error is ErrorCode.member_id_required
        return answer.member_id

    def knows(self, group_id, member_id):
        answer = self.ask(join(group_id, member_id=member_id))
        return answer is None or answer.error is not ErrorCode.unknown_member_id


def loaded_shard(**settings):
    shard = GroupShard(GroupSettings(**settings), CountingEntropy())
    list(shard.load_complete(at(0)))
    return shard


def test_many_groups_at_once_take_several_ticks():
    shard = loaded_shard()
    groups = 3 * DEADLINES_PER_TICK_MAX // 2
    for number in range(groups):
        assert shard.join(join(f"g{number}"), number, at(0)).answer == Outcome()
    assert shard.next_deadline_ms() == 3_000
    first = shard.tick(at(3_000))
    assert len(first.answer.answers) == DEADLINES_PER_TICK_MAX
    assert shard.next_deadline_ms() == 3_000
    second = shard.tick(at(3_000))
    assert sorted(token for token, _ in (*first.answer.answers, *second.answer.answers)) == list(
        range(groups)
    )
    assert shard.next_deadline_ms() > 3_000


def test_a_new_groups_record_has_no_protocol():
    shard = loaded_shard()
    ((key, value),) = shard.join(join("g"), "a", Now(5, 77)).records
    record = decode_key(key)
    assert record == GroupMetadataKey(group="g")
    assert decode_value(record, value) == GroupMetadataValue(
        protocol_type="",
        generation=0,
        protocol=None,
        leader=None,
        current_state_timestamp=77,
        members=(),
    )
    assert shard.join(join("g"), "b", at(78)).records == ()
    again = GroupShard(GroupSettings(), CountingEntropy())
    again.replay(0, key, value)
    list(again.load_complete(at(100)))
    assert again.describe("g").state == "Empty"


def test_a_group_that_refuses_its_only_member_writes_no_record():
    shard = loaded_shard()
    assert shard.join(replace(join("g"), protocols=()), "a", at(0)).records == ()
    assert shard.list_groups() == []


def test_a_negative_rebalance_timeout_causes_no_busy_loop():
    """Two static members vanish from a group whose members allow no time at all."""
    shard = loaded_shard()
    expiry_ms = shard.next_deadline_ms()
    members = []
    for name in ("a", "b"):
        request = join("g")
        request = JoinGroup(
            **{one: getattr(request, one) for one in request.__slots__}
            | {"rebalance_timeout_ms": -5, "group_instance_id": name}
        )
        shard.join(request, name, at(0))
    step = shard.tick(at(3_000))
    members = [answer.member_id for _, answer in step.answer.answers]
    now_ms, ticks = 3_000, 0
    while (deadline_ms := shard.next_deadline_ms()) < expiry_ms:
        now_ms = max(now_ms, deadline_ms)
        shard.tick(at(now_ms))
        ticks += 1
        assert ticks < 30, "the ticks make no progress"
    assert len(members) == 2
    assert shard.describe("g").state == "Empty"


def test_an_expired_member_is_reported():
    shard = loaded_shard(initial_rebalance_delay_ms=0)
    for name in ("a", "b"):
        shard.join(replace(join("g", name), rebalance_timeout_ms=1_000), name, at(0))
    formed = shard.tick(at(0))
    a, b = (answer.member_id for _, answer in formed.answer.answers)
    assert formed.answer.news == (Rebalanced("g", 1, 2, f"member {a} joined"),)
    step = shard.tick(at(1_000))  # neither has asked for its assignment
    late = "it did not ask for its assignment in time"
    assert step.answer.news[:2] == (MemberExpired("g", a, late), MemberExpired("g", b, late))
    shard = loaded_shard(initial_rebalance_delay_ms=0)
    shard.join(join("g", "a"), 1, at(0))
    [(_, answer)] = shard.tick(at(0)).answer.answers
    sync = SyncGroup("g", answer.generation_id, answer.member_id)
    shard.replay(0, *shard.sync(sync, 2, at(0)).records[0])
    assert shard.tick(at(6_000)).answer.news == (
        MemberExpired("g", answer.member_id, "no heartbeat for 6000 ms"),
        Rebalanced("g", 2, 0, f"member {answer.member_id} expired"),
    )


def test_a_request_while_the_group_loads_is_a_bug():
    shard = GroupShard(GroupSettings(), CountingEntropy())
    with pytest.raises(AssertionError):
        shard.join(join("g"), 1, at(0))


def test_a_member_id_names_its_client():
    shard = loaded_shard(initial_rebalance_delay_ms=0)
    shard.join(join("g", "my-client"), 1, at(0))
    [(_, answer)] = shard.tick(at(0)).answer.answers
    assert isinstance(answer, JoinGroupAnswer)
    assert answer.member_id == "my-client-00000000-0000-0000-0000-000000000001"
    assert answer.error is ErrorCode.none


def test_every_transition_is_in_the_table():
    for start in GroupState:
        for end in GroupState:
            group = Group("g", start)
            if end in TRANSITIONS[start]:
                group.become(end, 7)
                assert (group.state, group.previous_state, group.state_timestamp_ms) == (
                    end,
                    start,
                    7,
                )
            else:
                with pytest.raises(AssertionError):
                    group.become(end, 7)
    assert TRANSITIONS.keys() == set(GroupState)


def test_generations_stay_positive():
    group = Group("g", GroupState.PREPARING_REBALANCE, generation_id=2**31 - 1)
    group.start_generation(0)
    assert group.generation_id == 1


def test_only_the_record_of_its_own_generation_makes_a_group_stable():
    shard = loaded_shard(initial_rebalance_delay_ms=0)
    shard.join(join("g"), 1, at(0))
    [(_, answer)] = shard.tick(at(0)).answer.answers
    group = Group("g", generation_id=7, protocol_type="consumer", protocol_name="range")
    group.add(Member(answer.member_id, None, "c", "h", 6_000, 6_000, {"range": b"x"}), "consumer")
    shard.replay(0, *group_record(group, {}))
    assert shard.describe("g").state == "CompletingRebalance"
    group.generation_id = answer.generation_id
    shard.replay(1, *group_record(group, {answer.member_id: b"p0"}))
    assert shard.describe("g").state == "Stable"
    assert shard.describe("g").members[0].assignment == b"p0"


def test_many_expired_offsets_are_removed_in_several_batches():
    shard = GroupShard(GroupSettings(offsets_retention_minutes=1), CountingEntropy())
    groups = RECORDS_PER_EXPIRY + 5
    for number in range(groups):
        shard.replay(number, *offset_record(f"g{number}", "t", 0, KeptOffset(1)))
    list(shard.load_complete(at(1_000_000)))
    now_ms, sizes = 0, []
    while shard.list_groups():
        now_ms = shard.next_deadline_ms()
        step = shard.tick(at(now_ms))
        sizes.append(len(step.records))
        for key, value in step.records:
            shard.replay(0, key, value)
    assert sizes == [RECORDS_PER_EXPIRY, 5]
    assert now_ms == 1_600_000 + EXPIRY_PAUSE_MS


def test_subscriptions_are_read_with_any_bytes_after_the_topics():
    assert subscribed_topics([]) == frozenset()
    assert subscribed_topics([b"\0\3\0\0\0\2\0\1a\0\2bc..", b"\0\0\0\0\0\1\0\1a"]) == {"a", "bc"}


@pytest.mark.parametrize(
    "metadata", [b"", b"\0", b"\0\0\0\0\0\1", b"\0\0\x7f\0\0\0\0", b"\0\0\0\0\0\1\0\1\xff"]
)
def test_a_damaged_subscription_may_have_any_topic(metadata):
    assert subscribed_topics([b"\0\0\0\0\0\0", metadata]) is None


def test_sessions_use_the_steady_clock_and_records_the_wall_clock():
    shard = loaded_shard(initial_rebalance_delay_ms=0, offsets_retention_minutes=1)
    shard.join(join("g"), 1, Now(0, 5_000_000))
    [(_, answer)] = shard.tick(Now(0, 5_000_000)).answer.answers
    assert shard.describe("g").state == "CompletingRebalance"
    assert shard.tick(Now(5_999, 90_000_000)).answer == Outcome(), "the wall clock ended a session"
    sync = SyncGroup("g", answer.generation_id, answer.member_id)
    [(key, value)] = shard.sync(sync, 2, Now(5_999, 1_000)).records
    assert decode_value(decode_key(key), value).current_state_timestamp == 5_000_000
    topics = (CommitTopic("t", (CommitPartition(0, 7),)),)
    alone = OffsetCommit("alone", topics, -1, "")
    [(key, value)] = shard.commit(alone, 3, Now(5_999, 1_234)).records
    assert decode_value(decode_key(key), value).commit_timestamp == 1_234


def test_a_member_id_has_the_beginning_of_a_long_client_id():
    one = Shard()
    long = "c" * 30_000
    answer = one.ask(join("g", long, member_id_required=True))
    assert answer.member_id.startswith("c" * 255 + "-")
    assert len(answer.member_id) == 255 + 37
    answer = one.ask(join("g", long, member_id_required=True, group_instance_id="i" * 30_000))
    (member,) = one.shard.describe("g").members
    assert (len(member.member_id), len(member.client_id)) == (255 + 37, 255)
    assert answer is None, "it waits for the group"


def test_the_ids_of_one_client_that_never_joins_do_not_grow_and_others_keep_theirs():
    one = Shard()
    honest = [one.id_for(f"h{number}", holder=f"user{number}") for number in range(50)]
    for number in range(3 * IDS_MAX):
        one.id_for(f"g{number % 7}", holder="flood")
    assert one.shard.pending_id_count() <= IDS_MAX
    taken_back = sum(news.count for news in one.news if isinstance(news, IdsTakenBack))
    assert taken_back == 50 + 3 * IDS_MAX - one.shard.pending_id_count()
    assert all(one.knows(f"h{number}", id_) for number, id_ in enumerate(honest))


def test_ids_that_join_at_once_are_never_taken_back():
    one = Shard(new_member_join_timeout_ms=60_000)
    for _ in range(2 * IDS_MAX):
        assert one.knows("g", one.id_for("g"))
    assert not one.news
    assert one.shard.pending_id_count() == 0


def test_a_group_has_as_many_pending_ids_as_it_may_have_members():
    one = Shard(size_max=2)
    first, second, third = (one.id_for("g") for _ in range(3))
    assert [one.knows("g", id_) for id_ in (first, second, third)] == [False, True, True]
    assert one.news == [IdsTakenBack(1)]


def test_a_group_that_waits_for_an_id_that_is_taken_back_goes_on():
    one = Shard(initial_rebalance_delay_ms=0)
    assert one.ask(join("g")) is None
    (answer,) = [found for _, found in one.shard.tick(at(0)).answer.answers]
    waiting = one.id_for("g", holder="flood")
    again = join("g", member_id=answer.member_id)
    assert one.ask(replace(again, protocols=(Protocol("range", b"y"),))) is None, "an id is awaited"
    while one.shard.describe("g").state != GroupState.COMPLETING_REBALANCE.value:
        one.id_for("other", holder="flood")
    assert not one.knows("g", waiting)


def test_an_id_taken_back_leaves_no_timer_and_no_group_without_a_record():
    one = Shard()
    topics = (CommitTopic("t", (CommitPartition(0, 1),)),)
    one.take(one.shard.commit(OffsetCommit("alone", topics, -1, ""), "token", at(0)))
    one.id_for("alone", holder="flood")
    assert "alone" in one.shard._groups
    while "alone" in one.shard._groups:
        one.id_for("other", holder="flood")
    assert one.shard.describe("alone").state == "Empty"
    for _ in range(2 * IDS_MAX):
        one.take(one.shard.tick(at(6_001)))
    assert one.shard.pending_id_count() == 0


def test_a_groups_members_have_a_limit_of_metadata():
    one = Shard()
    half = (Protocol("range", bytes(METADATA_BYTES_MAX // 2)),)
    assert one.ask(join("g", protocols=half)) is None
    assert one.ask(join("g", protocols=half)) is None
    refused = one.ask(join("g"))
    assert refused.error is ErrorCode.group_max_size_reached
    ticks = (one.take(one.shard.tick(at(ms))) for ms in range(1_000, 10_000, 1_000))
    found = next(answer for answer in ticks if answer is not None)
    assert found.error is ErrorCode.none
    again = join("g", member_id=found.member_id, protocols=(Protocol("range", b""),))
    assert one.ask(again) is None, "a member may ask for less"
    assert one.ask(join("g")) is None, "and leaves room"
    assert one.ask(join("h", protocols=half)) is None


def test_a_new_member_goes_with_its_client():
    one = Shard(initial_rebalance_delay_ms=0)
    decision = one.shard.join(join("g"), "gone", at(0))
    one.take(decision)
    member_id = one.shard.new_member("g", "gone")
    assert one.shard.new_member("g", "other") is None
    one.take(one.shard.join(join("g"), "stays", at(0)))
    assert one.shard.new_member("g", "gone") is None, "the newest is another one"
    one.take(one.shard.abandon("g", member_id, "gone", at(1)))
    (left,) = one.shard.describe("g").members
    assert left.member_id != member_id
    found = one.take(one.shard.tick(at(1)))
    assert (found.error, found.leader) == (ErrorCode.none, left.member_id)
    assert one.shard.abandon("g", left.member_id, "stays", at(2)) == NOTHING, "it has its answer"
    assert one.shard.abandon("g", member_id, "gone", at(2)) == NOTHING


def test_a_group_whose_clients_have_gone_is_empty():
    one = Shard(initial_rebalance_delay_ms=0)
    for number in range(3):
        one.take(one.shard.join(join("g"), number, at(0)))
        one.take(one.shard.abandon("g", one.shard.new_member("g", number), number, at(0)))
    assert not one.shard.describe("g").members
    one.take(one.shard.tick(at(1)))
    assert one.shard.describe("g").state == "Empty"
