"""Clients that break the protocol without pause do not fill the log."""

import asyncio

from structlog.testing import capture_logs
from tests.sim.loop import run
from tests.sim.machine import Machine
from tests.sim.raw import Raw
from tests.sim.world import World

from stratalog.broker.network.limited_log import LimitedLog

GARBAGE = (4).to_bytes(4, "big") + b"\xff" * 4


def test_an_event_has_few_lines_in_an_interval_and_then_a_count() -> None:
    async def tell() -> None:
        log = LimitedLog()
        for number in range(80):
            log.warning("closed", number=number)
        log.error("other")
        await asyncio.sleep(11)
        log.warning("closed", number=80)
        await asyncio.sleep(11)

    with capture_logs() as lines:
        run(tell())
    closed = [line["number"] for line in lines if line["event"] == "closed"]
    assert closed == [*range(50), 80]
    assert [line for line in lines if line["event"] == "lines left out"] == [
        {"event": "lines left out", "of": "closed", "count": 30, "log_level": "warning"}
    ]
    assert [line["log_level"] for line in lines if line["event"] == "other"] == ["error"]


def test_connections_that_send_garbage_share_a_few_lines() -> None:
    async def tell() -> None:
        machine = Machine(World(1))
        await machine.start()
        network = machine.world.network
        for _ in range(100):
            raw = await Raw.connect(network)
            raw.send(GARBAGE)
            await raw.closed
        await asyncio.sleep(11)
        await machine.stop()

    with capture_logs() as lines:
        run(tell())
    events = [line["event"] for line in lines]
    assert 0 < events.count("connection closed") < 60
    assert "lines left out" in events
