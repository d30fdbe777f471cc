"""Run the web console in a process beside a broker.

In: the broker's address, its bucket. Out: the console's address, which the console prints on its standard output. The
console ends with this process, however that ends: it reads a pipe that this process holds open. No file is written.
"""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from stratalog.cli.shared.terminal import note

if TYPE_CHECKING:
    from asyncio.subprocess import Process

LISTEN = "127.0.0.1:8080"
PATIENCE_S = 30.0


@asynccontextmanager
async def console_beside(
    address: str, tier_url: str, monitor: str = ""
) -> AsyncIterator[str | None]:
    """Start a console, on port 8080 or a free one; yield its URL, or None where it does not start (with a note)."""
    process, url = await _started(address, (tier_url, monitor), LISTEN)
    if url is None and process.returncode is not None:  # the port is in use, most likely
        process, url = await _started(address, (tier_url, monitor), "127.0.0.1:0")
    if url is None:
        note("warning: the console did not start; the broker serves without it")
    else:
        note(f"The console of {address} is at {url}")
    try:
        yield url
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def _started(
    address: str, places: tuple[str, str], listen: str
) -> "tuple[Process, str | None]":
    """Start the process and wait until it serves; None where it ended or needed too long."""
    import json
    from asyncio import create_subprocess_exec, timeout
    from asyncio.subprocess import DEVNULL, PIPE

    tier_url, monitor = places
    options = ["--listen", listen, "--while-stdin-open"]
    if tier_url and not tier_url.startswith("memory:"):  # only its own process sees that one
        options += ["--tier", tier_url]
    if monitor:
        options += ["--monitor", monitor]
    process = await create_subprocess_exec(
        sys.executable,
        "-m",
        "stratalog.cli.main",
        "--profile",
        "",
        "console",
        "--bootstrap-server",
        address,
        *options,
        stdin=PIPE,
        stdout=PIPE,
        stderr=DEVNULL,
    )
    assert process.stdout is not None
    try:
        async with timeout(PATIENCE_S):
            line = await process.stdout.readline()
            if not line:
                await process.wait()
                return process, None
    except TimeoutError:
        return process, None
    return process, str(json.loads(line)["url"])
