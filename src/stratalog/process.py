"""Run one node as a process of its own.

In: settings, signals. Out: a node that serves until a signal or a fatal error; the ready file. Memory, logging and the
garbage collector are set up for a server. It decides nothing about the node: `node.py` builds it.
"""

import asyncio
import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from typing import Final

from msgspec.structs import asdict

from stratalog.adapters.descriptors import raise_descriptors
from stratalog.adapters.log_output import keep_logging
from stratalog.adapters.memory import (
    FreedMemory,
    collect_seldom,
    keep_freed_memory,
    spare_partitions,
)
from stratalog.adapters.network import event_loop
from stratalog.adapters.system import on_stop_signal, write_ready_file
from stratalog.adapters.system import outside as system
from stratalog.adapters.threads import take_short_turns
from stratalog.config import BrokerConfig
from stratalog.errors import Unavailable
from stratalog.node import Node, Ready

__all__ = ["run_server"]

_FREED_MEMORY_S: Final = 15.0


Beside = Callable[[Ready], AbstractAsyncContextManager[str | None]]
"""Runs a console beside a broker that serves; its value is the console's URL, if it runs."""


def run_server(
    config: BrokerConfig, ready_file: str | None = None, beside: Beside | None = None
) -> None:
    """Start, and serve, until SIGTERM, SIGINT or SIGHUP. Raises UserError for a problem that the operator must fix."""
    keep_logging()
    raise_descriptors()
    keep_freed_memory()
    take_short_turns()
    collect_seldom()  # imported modules stay for ever; loading partitions leaves garbage
    with asyncio.Runner(loop_factory=event_loop()) as runner:
        runner.run(_serve(config, ready_file, beside))


async def _serve(config: BrokerConfig, ready_file: str | None, beside: Beside | None) -> None:
    stopping = asyncio.Event()

    def end() -> None:
        stopping.set()
        node.abandon()

    on_stop_signal(end)
    reasons: list[str] = []

    def fatal(why: str) -> None:
        reasons.append(why)
        end()

    node = Node(config, system(), on_fatal=fatal)
    with spare_partitions(node.partitions):
        try:
            ready = await node.start()
            collect_seldom()
            if ready_file is not None:
                write_ready_file(ready_file, json.dumps(asdict(ready)))
            console = beside(ready) if beside else nullcontext()
            async with console as node.console_url:
                await _until(stopping)
        except Unavailable:
            if not stopping.is_set():
                raise
        finally:
            await node.stop()
    if reasons:
        raise Unavailable(f"stopped: {reasons[0]}")


async def _until(stopping: asyncio.Event) -> None:
    """Give freed memory back from time to time, until the node shall stop."""
    freed = FreedMemory()
    while not stopping.is_set():
        with suppress(TimeoutError):
            async with asyncio.timeout(_FREED_MEMORY_S):
                await stopping.wait()
        freed.give_back()
