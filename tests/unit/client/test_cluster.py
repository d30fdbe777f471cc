"""Routing and retries without a network: a program yields requests, and the test answers them."""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

import pytest
from msgspec.structs import replace

from stratalog.client import calls
from stratalog.client.calls import (
    BrokerAddress,
    ClusterInfo,
    ListedOffset,
    PartitionInfo,
    TopicInfo,
)
from stratalog.client.cluster import PAUSES_S, Ask, ClusterView, Pause, Program, parse_bootstrap
from stratalog.client.fetches import FetchedPartition, FetchSpan
from stratalog.errors import ErrorCode, Rejected, Unavailable
from stratalog.wire.ids import TopicPartition

NONE = ErrorCode.none
EPOCH = 7
FETCHED = FetchedPartition(0, 5, memoryview(b""))
FIRST, SECOND = TopicPartition("t", 0), TopicPartition("t", 1)
WANTED = {FIRST: calls.LATEST, SECOND: calls.LATEST}


def info(
    leaders: Mapping[int, int] | None = None, error: ErrorCode = ErrorCode.none
) -> ClusterInfo:
    """Return a cluster of brokers 1 and 2 with a topic `t`."""
    partitions = {
        index: PartitionInfo(index, NONE, leader, EPOCH, (1, 2), (1, 2))
        for index, leader in (leaders or {0: 1, 1: 2}).items()
    }
    brokers = {node: BrokerAddress(node, f"host{node}", 9) for node in (1, 2)}
    return ClusterInfo(
        "c", 1, brokers, {"t": TopicInfo("t", UUID(int=1), error, False, partitions)}
    )


def listed(offset: int, error: ErrorCode = ErrorCode.none) -> ListedOffset:
    return ListedOffset(error, offset, -1, 0)


def play(program: Program[Any], answers: list[Any]) -> tuple[Any, list[int | float | None]]:
    """Run a program to its end; return its result and the nodes of its requests (a float is a pause in seconds)."""
    said: list[int | float | None] = []
    since_s = 0.0
    step = next(program)
    try:
        while True:
            if isinstance(step, Pause):
                said.append(step.seconds)
                since_s += step.seconds
                step = program.send(since_s)
                continue
            assert isinstance(step, Ask)
            said.append(step.node_id)
            answer = answers.pop(0)
            step = program.throw(answer) if isinstance(answer, Exception) else program.send(answer)
    except StopIteration as stop:
        assert not answers, "the program ended early"
        return stop.value, said


def given_up(program: Program[Any]) -> tuple[float, list[str]]:
    """Fail every request; return how long the program waits until it raises, and its lines for the log."""
    since_s, lines = 0.0, []
    step = next(program)
    try:
        while True:
            if isinstance(step, Pause):
                since_s += step.seconds
                lines += [step.says] if step.says else []
                step = program.send(since_s)
            else:
                step = program.throw(Unavailable("gone"))
    except Unavailable:
        return since_s, lines


def view() -> ClusterView:
    return ClusterView(parse_bootstrap("boot:1,other:2"))


def test_offsets_are_asked_of_each_leader() -> None:
    answers = [info(), {FIRST: listed(5)}, {SECOND: listed(6)}]
    found, said = play(view().list_offsets(WANTED, 0), answers)
    assert {key: at.offset for key, at in found.items()} == {FIRST: 5, SECOND: 6}
    assert said == [None, 1, 2]


def test_requests_to_a_leader_name_the_epoch_of_the_metadata() -> None:
    asked = []
    for program in (
        view().list_offsets({FIRST: calls.LATEST}, 0),
        view().fetch(FetchSpan("t", UUID(int=1), 0, 0)),
    ):
        assert isinstance(next(program), Ask), "the metadata"
        step = program.send(info())
        assert isinstance(step, Ask)
        request: Any = step.call.build(9)
        asked.append(request.topics[0].partitions[0].current_leader_epoch)
    assert asked == [EPOCH, EPOCH]


def test_after_a_leader_change_only_unanswered_partitions_are_asked_again() -> None:
    moved = {SECOND: listed(-1, ErrorCode.not_leader_or_follower)}
    later = {SECOND: listed(6)}
    answers = [info(), {FIRST: listed(5)}, moved, info({0: 1, 1: 1}), later]
    found, said = play(view().list_offsets(WANTED, 0), answers)
    assert found["t", 1].offset == 6
    assert said == [None, 1, 2, PAUSES_S[0], None, 1]


def test_an_unreachable_broker_is_retried_after_a_pause() -> None:
    answers = [
        info(),
        Unavailable("gone"),
        info(),
        {FIRST: listed(5), SECOND: listed(6)},
    ]
    answers[2] = info({0: 2, 1: 2})
    found, said = play(view().list_offsets(WANTED, 0), answers)
    assert len(found) == 2
    assert said == [None, 1, PAUSES_S[0], None, 2]


def test_a_broker_that_left_is_asked_no_more_and_all_others_are_asked_again() -> None:
    smaller = replace(info(), brokers={2: BrokerAddress(2, "host2", 9)})
    answers: list[Any] = [info(), Unavailable("gone"), smaller, "second"]
    found, said = play(view().on_each(calls.init_producer_id()), answers)
    assert found == ["second"]
    assert said == [None, 1, PAUSES_S[0], None, 2]


def test_a_program_gives_up_after_its_last_retry() -> None:
    answers = [Unavailable("gone")] * (len(PAUSES_S) + 1)
    with pytest.raises(Unavailable, match="gone"):
        play(view().metadata(["t"]), list(answers))
    with pytest.raises(Unavailable, match="gone"):
        play(view().on_any(calls.init_producer_id()), list(answers))


def test_a_patient_program_tries_again_until_its_time_is_over_and_says_so_once() -> None:
    made = ClusterView(parse_bootstrap("boot:1"), patience_s=60)
    waited_s, lines = given_up(made.list_offsets(WANTED, 0))
    assert 60 <= waited_s <= 60 + 2 * PAUSES_S[-1]
    assert lines == ["gone: trying again for up to 60 s"]
    waited_s, lines = given_up(view().metadata(["t"]))
    assert (waited_s, lines) == (sum(PAUSES_S), [])


def test_a_patient_program_that_fails_for_good_fails_at_once() -> None:
    made = ClusterView(parse_bootstrap("boot:1"), patience_s=60)
    refused = {FIRST: listed(-1, ErrorCode.topic_authorization_failed)}
    with pytest.raises(Rejected, match="topic_authorization_failed"):
        play(made.list_offsets({FIRST: 0}, 0), [info(), refused])


@pytest.mark.parametrize(
    ("metadata", "says"),
    [
        (info(error=ErrorCode.unknown_topic_or_partition), "topic t"),
        (info({0: 1}), "topic t has no partition 1"),
    ],
)
def test_a_topic_or_partition_is_missing_if_fresh_metadata_lack_it_twice(
    metadata: ClusterInfo, says: str
) -> None:
    with pytest.raises(Rejected, match=says) as refused:
        play(view().list_offsets({SECOND: 0}, 0), [metadata, metadata])
    assert refused.value.code is ErrorCode.unknown_topic_or_partition


def known(*indexes: int) -> ClusterView:
    """Return a view with metadata of partitions that broker 1 leads."""
    made = view()
    play(made.metadata(["t"]), [info(dict.fromkeys(indexes, 1))])
    return made


def test_a_partition_that_is_newer_than_the_kept_metadata_is_found_in_fresh_ones() -> None:
    """KAFKA-6833, librdkafka#2917: it must not be taken for unknown."""
    led, said = play(known(0).led("t", 1), [info()])
    assert (led.leader, said) == (2, [None])
    found, said = play(known(0).fetch(FetchSpan("t", UUID(int=1), 1, 0)), [info(), FETCHED])
    assert (found, said) == (FETCHED, [None, 2])


def test_a_topic_that_is_newer_than_the_kept_metadata_is_found_in_fresh_ones() -> None:
    made = view()
    play(made.metadata(["t"]), [info(error=ErrorCode.unknown_topic_or_partition)])
    led, said = play(made.led("t", 1), [info()])
    assert (led.leader, said) == (2, [None])


def test_a_missing_partition_is_looked_up_once() -> None:
    with pytest.raises(Rejected, match="topic t has no partition 2"):
        play(known(0).led("t", 2), [info()])


def test_a_leader_that_does_not_know_its_partition_yet_is_asked_once_more() -> None:
    unknown = ErrorCode.unknown_topic_or_partition
    late = FETCHED._replace(error_code=unknown)
    span = FetchSpan("t", UUID(int=1), 1, 0)
    found, said = play(known(0, 1).fetch(span), [late, info(), FETCHED])
    assert (found, said) == (FETCHED, [1, PAUSES_S[0], None, 2])
    with pytest.raises(Rejected, match="unknown_topic_or_partition"):
        play(known(0, 1).fetch(span), [late, info(), late])
    answers = [info(), {SECOND: listed(-1, unknown)}, info(), {SECOND: listed(6)}]
    offsets, said = play(view().list_offsets({SECOND: 0}, 0), answers)
    assert (offsets["t", 1].offset, said) == (6, [None, 2, PAUSES_S[0], None, 2])


def test_a_permanent_error_is_not_retried() -> None:
    refused = {FIRST: listed(-1, ErrorCode.topic_authorization_failed)}
    with pytest.raises(Rejected, match="topic_authorization_failed"):
        play(view().list_offsets({FIRST: 0}, 0), [info(), refused])


def test_a_broker_that_waited_for_the_controller_is_not_asked_again() -> None:
    """It waited its whole time: eight attempts would take five minutes."""
    late = Rejected(ErrorCode.request_timed_out, "no active controller")
    call = calls.init_producer_id()
    for program, answers in ((view().on_any(call), []), (view().on_controller(call), [info()])):
        with pytest.raises(Rejected, match="no active controller"):
            play(program, [*answers, late])


def test_known_brokers_are_tried_before_the_bootstrap_list() -> None:
    made = view()
    assert [(at.host, at.port) for at in made.candidates(None)] == [("boot", 1), ("other", 2)]
    assert made.candidates(1) == []
    play(made.metadata([]), [info()])
    assert [at.host for at in made.candidates(None)] == ["host1", "host2", "boot", "other"]
    assert [at.host for at in made.candidates(2)] == ["host2"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        " , ",
        "host",
        "host:",
        ":1",
        "host:0",
        "host:65536",
        "host:x",
        "a:1,b",
        "a..b:1",
        f"{'x' * 64}:1",
    ],
)
def test_a_wrong_list_of_servers_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="host:port"):
        parse_bootstrap(text)


def test_a_list_of_servers_is_parsed() -> None:
    assert parse_bootstrap(" a:1, [::1]:2 ,") == [("a", 1), ("::1", 2)]
