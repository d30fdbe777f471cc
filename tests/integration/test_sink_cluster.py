"""The exactly-once sink on three nodes, one of which dies in the middle of a batch: each row is there once.

Method: the steps of a batch run in this process, and a node dies (as by SIGKILL) before or after one of them: the
coordinator of a task's transaction, the leader of a partition with rows, or the leader of the decisions. The batch goes
on by itself, and the node comes back afterwards. `./test --all` runs every step with every node.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from tests.unit.table.test_exactly_once import Query, rows_of

from stratalog.coordinators.placement import partition_for
from stratalog.table.exactly_once import ExactlyOnce
from stratalog.testing.temporary_cluster import TemporaryCluster, cluster

STATES = 3
SETTINGS = {
    "transaction.state.log.num.partitions": str(STATES),
    "transaction.two.phase.commit.enable": "true",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
}
STEPS = ("finish", "begin", "check_open", "decide", "end_decided", "note_ended", "abort_others")
VICTIMS = ("coordinator", "rows", "decisions")
QUICK = {
    ("begin", "after", "rows"),
    ("decide", "before", "decisions"),
    ("end_decided", "before", "coordinator"),
}
ALL = [
    pytest.param(*one, marks=[] if one in QUICK else [pytest.mark.big])
    for step in STEPS
    for when in ("before", "after")
    for victim in VICTIMS
    for one in [(step, when, victim)]
]

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("sink_cluster")]


@pytest.fixture(scope="module")
def nodes() -> Iterator[TemporaryCluster]:
    with cluster(3, SETTINGS) as made:
        yield made


class ReplicatedQuery(Query):
    """A query whose topic has three replicas."""

    def make(self, admin: AdminClient) -> None:
        admin.create_topics([NewTopic(self.topic, 3, 3)])[self.topic].result(30)


def leader(nodes: TemporaryCluster, topic: str, partition: int) -> int:
    found = AdminClient({"bootstrap.servers": nodes.address}).list_topics(topic, timeout=30)
    return int(found.topics[topic].partitions[partition].leader)


def victim_of(nodes: TemporaryCluster, query: Query, victim: str) -> int:
    if victim == "coordinator":
        partition = partition_for(f"stratalog-{query.id}-0-0", STATES)
        return leader(nodes, "__transaction_state", partition)
    return leader(nodes, query.topic if victim == "rows" else "stratalog-decisions", 0)


@contextmanager
def beside(
    monkeypatch: pytest.MonkeyPatch, step: str, when: str, kill: Callable[[], None]
) -> Iterator[None]:
    """Run `kill` before or after the first call of a step."""
    real, calls = getattr(ExactlyOnce, step), []

    async def killing(self: ExactlyOnce, *given: Any) -> Any:
        calls.append(given)
        if when == "before" and len(calls) == 1:
            kill()
        answer = await real(self, *given)
        if when == "after" and len(calls) == 1:
            kill()
        return answer

    with monkeypatch.context() as patched:
        patched.setattr(ExactlyOnce, step, killing)
        yield
    assert calls, f"no batch came to {step}"


@pytest.mark.parametrize(("step", "when", "victim"), ALL)
def test_a_batch_goes_on_when_a_node_dies_at_a_step(
    nodes: TemporaryCluster, monkeypatch: pytest.MonkeyPatch, step: str, when: str, victim: str
) -> None:
    query = ReplicatedQuery(nodes.address)
    query.run(0)
    node = victim_of(nodes, query, victim)
    try:
        with beside(monkeypatch, step, when, lambda: nodes.kill(node)):
            query.run(1)
        query.run(2)
        assert Counter(query.values()) == Counter(rows_of(0) | rows_of(1) | rows_of(2))
    finally:
        nodes.restart(node)
    assert query.open() == []
