"""The judgements of `strata check`: what is ok, a warning, or bad, at its limits."""

from uuid import UUID

import pytest

from stratalog.client.admin import LogDirectory
from stratalog.client.calls import BrokerAddress, ClusterInfo, PartitionInfo, TopicInfo
from stratalog.client.cluster_admin import QuorumInfo, QuorumReplica, RegisteredBroker
from stratalog.errors import ErrorCode
from stratalog.ops.checking import (
    BAD,
    OK,
    WARNING,
    of_brokers,
    of_certificate,
    of_clock,
    of_directories,
    of_partitions,
    of_quorum,
    of_settings,
)

DAY_S = 86_400
NONE = ErrorCode.none


def cluster(*partitions: tuple[int, tuple[int, ...], tuple[int, ...]]) -> ClusterInfo:
    """Return a cluster with a topic t of these (leader, replicas, in-sync replicas)."""
    found = {
        index: PartitionInfo(index, NONE, leader, 0, replicas, isr)
        for index, (leader, replicas, isr) in enumerate(partitions)
    }
    topic = TopicInfo("t", UUID(int=1), NONE, is_internal=False, partitions=found)
    return ClusterInfo("c", 1, {1: BrokerAddress(1, "h", 9092, None)}, {"t": topic})


@pytest.mark.parametrize(
    ("partition", "min_isr", "state", "seen"),
    [
        ((1, (1, 2), (1, 2)), 2, OK, "1 with leaders and in sync"),
        ((2, (1, 2), (1, 2)), 2, WARNING, "1 not led by the first replica"),
        ((1, (1, 2), (1,)), 1, BAD, "1 with a replica out of sync"),
        ((1, (1, 2), (1,)), 2, BAD, "1 below min.insync.replicas: acks=all is refused"),
        ((1, (1,), (1,)), 2, OK, "1 with leaders and in sync"),
        ((-1, (1, 2), (1,)), 1, BAD, "1 without a leader"),
    ],
)
def test_a_partition_is_judged_by_its_leader_and_replicas(
    partition: tuple[int, tuple[int, ...], tuple[int, ...]], min_isr: int, state: str, seen: str
) -> None:
    (found,) = of_partitions(cluster(partition), {"t": min_isr})
    assert (found.state, found.seen) == (state, seen)
    assert bool(found.remedy) == (state != OK)


@pytest.mark.parametrize(
    ("free", "state"), [(500, OK), (100, OK), (99, WARNING), (30, WARNING), (29, BAD)]
)
def test_a_disk_is_judged_by_its_free_share(free: int, state: str) -> None:
    directory = LogDirectory("/d", NONE, 1000, free, ())
    (found,) = of_directories({1: [directory]})
    assert (found.of, found.state) == ("broker 1 /d", state)


def test_a_failed_directory_and_a_silent_broker_are_bad() -> None:
    failed = LogDirectory("/d", ErrorCode.kafka_storage_error, -1, -1, ())
    assert [one.state for one in of_directories({1: [failed], 2: "no answer"})] == [BAD, BAD]
    unknown = LogDirectory("/d", NONE, -1, -1, ())
    assert of_directories({1: [unknown]})[0].state == OK


def test_a_broker_is_bad_while_it_is_fenced_or_silent() -> None:
    brokers = [RegisteredBroker(n, "h", 9092, None, is_fenced=n == 3) for n in (3, 2, 1)]
    found = of_brokers(brokers, {1: 1.5, 2: "connection refused"})
    assert [(one.of, one.state) for one in found] == [
        ("broker 1", OK),
        ("broker 2", BAD),
        ("broker 3", BAD),
    ]


def test_a_quorum_is_bad_without_a_leader_or_with_a_silent_voter() -> None:
    def replica(node: int, fetched_ms: int, *, is_voter: bool = True) -> QuorumReplica:
        return QuorumReplica(node, UUID(int=0), is_voter, 10, fetched_ms, fetched_ms)

    one, late = replica(1, 100_000), replica(2, 80_000)
    observer = replica(9, -1, is_voter=False)
    assert of_quorum(cluster(), QuorumInfo(1, 3, 9, (one, observer)))[0].state == OK
    (found,) = of_quorum(cluster(), QuorumInfo(1, 3, 9, (one, late)))
    assert (found.state, "silent: 2" in found.seen) == (BAD, True)
    assert of_quorum(cluster(), QuorumInfo(-1, 3, 9, (one,)))[0].state == BAD
    assert of_quorum(cluster(), "no answer")[0].state == BAD


def test_settings_differ_where_they_should_be_equal() -> None:
    equal = {"a": "1", "node.id": "1", "log.dirs": "/x", "advertised.listeners": "x"}
    other = {"a": "1", "node.id": "2", "log.dirs": "/y", "advertised.listeners": "y"}
    assert [one.state for one in of_settings({1: equal, 2: other})] == [OK]
    (found,) = of_settings({1: equal, 2: other | {"a": "2"}})
    assert (found.of, found.state) == ("a", WARNING)
    assert found.seen == "broker 1: 1, broker 2: 2"


def test_a_broker_whose_certificate_is_refused_is_named_by_its_certificate() -> None:
    why = "broker h:1 unreachable: its certificate is refused: certificate has expired; renew it"
    (found,) = of_brokers([RegisteredBroker(1, "h", 1, None, is_fenced=False)], {1: why})
    assert (found.check, found.state, found.seen) == ("tls", BAD, why)


@pytest.mark.parametrize(("days", "state"), [(15, OK), (13, WARNING)])
def test_a_certificate_is_a_warning_two_weeks_before_its_end(days: int, state: str) -> None:
    assert of_certificate("broker 1", days * DAY_S, 0).state == state


@pytest.mark.parametrize(
    ("ahead_ms", "unsure_ms", "state"),
    [
        (900, 0, OK),
        (-1_400, 500, OK),
        (1_600, 500, WARNING),
        (-1_600, 0, WARNING),
        (61_000, 0, BAD),
    ],
)
def test_a_clock_is_judged_beyond_what_the_comparison_cannot_know(
    ahead_ms: float, unsure_ms: float, state: str
) -> None:
    assert of_clock("controller 1", ahead_ms, unsure_ms).state == state
