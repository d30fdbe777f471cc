"""Goal: what stories cannot show: many at once, and the states' table."""

import pytest
from tests.golden.group_script import CountingEntropy

from stratalog.coordinators.group import Group, Member
from stratalog.coordinators.groups import DEADLINES_PER_TICK_MAX, GroupShard
from stratalog.coordinators.messages import JoinGroup, JoinGroupAnswer, Protocol, Step
from stratalog.coordinators.records import group_record
from stratalog.coordinators.states import TRANSITIONS, GroupState
from stratalog.coordinators.turn import GroupSettings
from stratalog.errors import ErrorCode


def join(group_id, client_id="c"):
    return JoinGroup(
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


def loaded_shard(**settings):
    shard = GroupShard(GroupSettings(**settings), CountingEntropy())
    shard.load_complete(0)
    return shard


def test_many_groups_at_once_take_several_ticks():
    shard = loaded_shard()
    groups = 3 * DEADLINES_PER_TICK_MAX // 2
    for number in range(groups):
        assert shard.join(join(f"g{number}"), number, 0) == Step()
    assert shard.next_deadline_ms() == 3_000
    first = shard.tick(3_000)
    assert len(first.answers) == DEADLINES_PER_TICK_MAX
    assert shard.next_deadline_ms() == 3_000
    second = shard.tick(3_000)
    assert sorted(token for token, _ in (*first.answers, *second.answers)) == list(range(groups))
    assert shard.next_deadline_ms() > 3_000


def test_no_rebalance_timeout_is_no_busy_loop():
    """Two static members vanish from a group whose members allow no time at all."""
    shard = loaded_shard()
    members = []
    for name in ("a", "b"):
        request = join("g")
        request = JoinGroup(
            **{one: getattr(request, one) for one in request.__slots__}
            | {"rebalance_timeout_ms": -5, "group_instance_id": name}
        )
        shard.join(request, name, 0)
    step = shard.tick(3_000)
    members = [answer.member_id for _, answer in step.answers]
    now_ms, ticks = 3_000, 0
    while (deadline_ms := shard.next_deadline_ms()) is not None:
        now_ms = max(now_ms, deadline_ms)
        shard.tick(now_ms)
        ticks += 1
        assert ticks < 30, "time stands still"
    assert len(members) == 2
    assert shard.describe("g").state == "Empty"


def test_asked_while_loading_is_a_bug():
    shard = GroupShard(GroupSettings(), CountingEntropy())
    with pytest.raises(AssertionError):
        shard.join(join("g"), 1, 0)


def test_a_member_id_names_its_client():
    shard = loaded_shard(initial_rebalance_delay_ms=0)
    shard.join(join("g", "my-client"), 1, 0)
    [(_, answer)] = shard.tick(0).answers
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


def test_only_the_record_of_its_own_generation_settles_a_group():
    shard = loaded_shard(initial_rebalance_delay_ms=0)
    shard.join(join("g"), 1, 0)
    [(_, answer)] = shard.tick(0).answers
    group = Group("g", generation_id=7, protocol_type="consumer", protocol_name="range")
    group.add(Member(answer.member_id, None, "c", "h", 6_000, 6_000, {"range": b"x"}), "consumer")
    shard.replay(0, *group_record(group, {}))
    assert shard.describe("g").state == "CompletingRebalance"
    group.generation_id = answer.generation_id
    shard.replay(1, *group_record(group, {answer.member_id: b"p0"}))
    assert shard.describe("g").state == "Stable"
    assert shard.describe("g").members[0].assignment == b"p0"
