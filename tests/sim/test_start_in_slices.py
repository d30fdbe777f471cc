"""Goal: a start with many partitions is many small decisions, and each partition is led in a new leader epoch.

Method: the real node with slices of two partitions. The test counts the records that each decision appends to the
metadata log.
"""

from typing import Any

import pytest
from tests.sim.loop import run
from tests.sim.machine import Machine
from tests.sim.world import World

from stratalog.broker.coordination import cluster_image, local_controller
from stratalog.broker.coordination.active_controller import ActiveController
from stratalog.broker.partitions.hosting import Hosting
from stratalog.client.calls import NewTopic
from stratalog.quorum import brokers
from stratalog.wire.internal.metadata_records import PartitionChangeRecord

PARTITIONS = 7
AT_ONCE = 2


async def epochs(client: Any) -> list[int]:
    found = (await client.metadata(["t"])).topics["t"].partitions
    assert all(found[index].leader == 1 for index in range(PARTITIONS))
    return [found[index].leader_epoch for index in range(PARTITIONS)]


@pytest.mark.parametrize("killed", [False, True])
def test_a_start_leads_its_partitions_again_slice_by_slice(
    monkeypatch: pytest.MonkeyPatch, *, killed: bool
) -> None:
    monkeypatch.setattr(brokers, "ELECTED_AT_ONCE", AT_ONCE)
    monkeypatch.setattr(local_controller, "ELECTED_AT_ONCE", AT_ONCE)
    monkeypatch.setattr(cluster_image, "_PARTITIONS_A_TURN", AT_ONCE)
    changes: list[int] = []
    apply = ActiveController.apply

    def count(self: ActiveController, base_offset: int, records: list[Any]) -> Any:
        changes.append(sum(isinstance(one, PartitionChangeRecord) for one in records))
        return apply(self, base_offset, records)

    acted: list[int] = []
    apply_change = Hosting.apply

    def act(self: Hosting, image: Any, delta: Any) -> Any:
        acted.append(sum(map(len, delta.changed_partitions.values())))
        return apply_change(self, image, delta)

    async def story() -> None:
        machine = Machine(World(5))
        client = await machine.restart()
        await client.create_topics([NewTopic("t", partitions=PARTITIONS)])
        before = await epochs(client)
        if killed:
            await machine.kill()
        else:
            await machine.stop()
        monkeypatch.setattr(ActiveController, "apply", count)
        monkeypatch.setattr(Hosting, "apply", act)
        client = await machine.restart()
        after = await epochs(client)
        assert all(now > then for now, then in zip(after, before, strict=True))
        # Each partition loses its leader and gets it again. A clean stop has taken the leaders before.
        assert sum(changes) == (2 if killed else 1) * PARTITIONS
        await machine.stop()

    run(story())
    assert max(changes) == AT_ONCE
    assert max(acted) == AT_ONCE
