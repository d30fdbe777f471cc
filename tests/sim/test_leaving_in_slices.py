"""Goal: a broker with many partitions leaves their ISRs in many small decisions, however it goes.

Method: decisions of two partitions; what each decision appends to the metadata log is counted.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.sim.machine import Machine
from tests.sim.raw import Raw
from tests.sim.second_broker import DIRECTORY, SecondBroker, create, joined, partition, story

from stratalog.broker.coordination import active_controller, local_controller
from stratalog.broker.coordination.active_controller import ActiveController
from stratalog.client.aio import Client
from stratalog.quorum import brokers
from stratalog.wire.internal.metadata_records import PartitionChangeRecord
from stratalog.wire.messages.unregister_broker import UnregisterBrokerRequest

LED = 7
FOLLOWED = 6
AT_ONCE = 2


async def falls_silent(_raw: Raw, _second: SecondBroker) -> None:
    await asyncio.sleep(12)


async def shuts_down(_raw: Raw, second: SecondBroker) -> None:
    await second.beat(want_shut_down=True)
    assert (await second.beat(want_shut_down=True)).should_shut_down


async def is_unregistered(raw: Raw, _second: SecondBroker) -> None:
    assert (await raw.ask(0, UnregisterBrokerRequest(broker_id=2))).error_code == 0


async def loses_its_directory(_raw: Raw, second: SecondBroker) -> None:
    answer = await second.beat(offline_log_dirs=[DIRECTORY])
    assert not answer.is_fenced, "the next heartbeat decides about its state"


@pytest.mark.parametrize("goes", [falls_silent, shuts_down, is_unregistered, loses_its_directory])
def test_a_broker_leaves_its_partitions_slice_by_slice(
    monkeypatch: pytest.MonkeyPatch, goes: Callable[[Raw, SecondBroker], Coroutine[Any, Any, None]]
) -> None:
    for module in (brokers, local_controller, active_controller):
        monkeypatch.setattr(module, "ELECTED_AT_ONCE", AT_ONCE)
    changes: list[int] = []
    apply = ActiveController.apply

    def count(self: ActiveController, base_offset: int, records: list[Any]) -> Any:
        changes.append(sum(isinstance(one, PartitionChangeRecord) for one in records))
        return apply(self, base_offset, records)

    async def tell(machine: Machine, client: Client, raw: Raw, second: SecondBroker) -> None:
        await joined(second)
        await create(client, "led", dict.fromkeys(range(LED), (2, 1)))
        await create(client, "followed", dict.fromkeys(range(FOLLOWED), (1, 2)))
        monkeypatch.setattr(ActiveController, "apply", count)
        await goes(raw, second)
        monkeypatch.setattr(ActiveController, "apply", apply)
        for name, number in (("led", LED), ("followed", FOLLOWED)):
            for index in range(number):
                found = partition(machine, name, index)
                assert (found.leader, found.isr) == (1, (1,))

    story(tell)
    assert max(changes) == AT_ONCE
    assert sum(changes) == LED + FOLLOWED
