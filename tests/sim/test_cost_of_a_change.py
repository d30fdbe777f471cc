"""Goal: a change to one topic costs what that topic costs, however many others there are, on every node.

Method: four real nodes with few and with many other topics, in virtual time. While one topic changes, count the
bytecodes of the product that the interpreter executes on all nodes. `tests/unit/metadata/test_layered.py` counts what a
bytecode hides: copies of large maps.
"""

import asyncio
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from types import FrameType
from typing import Any

import pytest
from tests.sim.cluster import Cluster
from tests.sim.loop import run
from tests.sim.world import World

from stratalog.broker.coordination.cluster_image import ClusterImage
from stratalog.client.admin import alter_configs, create_partitions
from stratalog.client.aio import Client
from stratalog.client.calls import TOPIC, NewTopic
from stratalog.client.cluster_admin import alter_reassignments
from stratalog.errors import ErrorCode
from stratalog.quorum.controller import Controller
from stratalog.wire.ids import TopicPartition

FEW, MANY = 50, 300
NODES = 4
WINDOW_S = 1.0
CALM_S = 5.0
"""The followers have begun to fetch all other topics, and have joined their ISRs."""
GROWS = 3
"""A place in the code follows the number of topics if it executes so many times more; other places vary with time."""
NEVER = "3000000"
SETTINGS = {
    "log.flush.offset.checkpoint.interval.ms": NEVER,
    "log.retention.check.interval.ms": NEVER,
    "replica.high.watermark.checkpoint.interval.ms": NEVER,
    "replica.lag.time.max.ms": NEVER,
    "remote.log.manager.task.interval.ms": NEVER,
}
"""No regular look at all partitions falls into the window."""
SOURCES = "/src/stratalog/"
Change = Callable[[Client, Cluster], Awaitable[object]]


class Executed:
    """Counts the product's bytecodes, by their place."""

    def __init__(self) -> None:
        self.at: Counter[str] = Counter()

    def on_call(self, frame: FrameType, _event: str, _arg: Any) -> Any:
        if SOURCES not in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._inside

    def _inside(self, frame: FrameType, event: str, _arg: Any) -> Any:
        if event == "opcode":
            self.at[f"{frame.f_code.co_filename.partition(SOURCES)[2]}:{frame.f_lineno}"] += 1
        return self._inside


async def executed(work: Awaitable[object]) -> Counter[str]:
    """Return what the nodes execute while `work` is done, and for a while after."""
    count = Executed()
    before = sys.gettrace()
    sys.settrace(count.on_call)
    try:
        await work
        await asyncio.sleep(WINDOW_S)
    finally:
        sys.settrace(before)
    return count.at


async def create(client: Client, _cluster: Cluster) -> None:
    (created,) = await client.create_topics([NewTopic("x", 1, 3)])
    assert created.error is ErrorCode.none, created


async def extend(client: Client, _cluster: Cluster) -> None:
    await client.on_controller(create_partitions("x", 2))


async def configure(client: Client, _cluster: Cluster) -> None:
    await client.on_controller(alter_configs(TOPIC, "x", {"max.message.bytes": "1000000"}))


async def move(client: Client, cluster: Cluster) -> None:
    topic = cluster.quorum(1).image.topic("x")
    assert topic is not None
    gone, *kept = topic.partitions[0].replicas
    (new,) = set(range(1, NODES + 1)) - {gone, *kept}
    call = alter_reassignments({TopicPartition("x", 0): (*kept, new)})
    (begun,) = await client.on_controller(call)
    assert begun.error is ErrorCode.none, begun

    def is_over() -> bool:
        found = cluster.quorum(1).image.topic("x")
        return found is not None and gone not in found.partitions[0].replicas

    await cluster.until(is_over, "the end of the move")


async def delete(client: Client, _cluster: Cluster) -> None:
    await client.delete_topics(["x"])


CHANGES: dict[str, Change] = {
    one.__name__: one for one in (create, extend, configure, move, delete)
}


async def costs(others: int, changes: dict[str, Change]) -> dict[str, Counter[str]]:
    """Return what each change executes in a cluster with so many other topics."""
    cluster = Cluster(World(1), NODES, SETTINGS)
    await cluster.start()
    client = await cluster.machines[1].connect()
    for first in range(0, others, 200):
        last = min(first + 200, others)
        topics = [
            NewTopic(f"other.{number}", 1, 3, {"segment.bytes": "2000000"})
            for number in range(first, last)
        ]
        await client.create_topics(topics)
    await cluster.until_equal()
    await asyncio.sleep(CALM_S)
    found = {name: await executed(change(client, cluster)) for name, change in changes.items()}
    await cluster.stop()
    return found


def places_that_follow(changes: dict[str, Change]) -> dict[str, Counter[str]]:
    """Return for each change the places that execute a bytecode or more for each other topic."""
    few, many = (run(costs(others, changes)) for others in (FEW, MANY))
    return {
        name: Counter(
            {
                place: count
                for place, count in many[name].items()
                if count - few[name][place] >= MANY - FEW and count > GROWS * few[name][place]
            }
        )
        for name in changes
    }


@pytest.fixture(autouse=True)
def _layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The maps of few topics have two layers too: the same code runs."""
    monkeypatch.setattr("stratalog.metadata.layered.LAYER_MAX", FEW // 2)


@pytest.mark.timeout(180)
def test_a_change_costs_what_its_topic_costs() -> None:
    assert places_that_follow(CHANGES) == {name: Counter() for name in CHANGES}


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("owner", "method"), [(Controller, "replay_batch"), (ClusterImage, "publish")]
)
def test_the_count_sees_work_for_each_topic(
    owner: type[Any], method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look at every topic is planted in the controller, and on the brokers."""
    real = getattr(owner, method)

    def planted(self: Any, *given: Any) -> Any:
        sum(len(one.partitions) for one in self.image.topics_by_id.values())
        return real(self, *given)

    monkeypatch.setattr(owner, method, planted)
    monkeypatch.setattr(f"{__name__}.SOURCES", "/tests/sim/")  # the planted code is in this module
    assert (
        places_that_follow({"create": create})["create"]
        .most_common(1)[0][0]
        .startswith("test_cost")
    )
