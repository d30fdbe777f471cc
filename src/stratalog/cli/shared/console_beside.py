"""Run the web console in a process beside a broker.

In: the broker's address, its bucket. Out: the console's address. The console ends with this process, however that ends:
it reads a pipe that this process holds open.
"""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from stratalog.cli.shared.terminal import note

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from pathlib import Path

LISTEN = "127.0.0.1:8080"
PATIENCE_S = 30.0


@asynccontextmanager
async def console_beside(address: str, tier_url: str) -> AsyncIterator[str | None]:
    """Start a console, on port 8080 or a free one; yield its URL, or None where it does not start (with a note)."""
    from pathlib import Path
    from tempfile import TemporaryDirectory

    with TemporaryDirectory(prefix="strata-console-") as name:
        process, url = await _started(address, tier_url, LISTEN, Path(name))
        if url is None and process.returncode is not None:  # the port is in use, most likely
            process, url = await _started(address, tier_url, "127.0.0.1:0", Path(name))
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
    address: str, tier_url: str, listen: str, place: "Path"
) -> "tuple[Process, str | None]":
    """Start the process and wait until it serves; None where it ended or needed too long."""
    import json
    from asyncio import create_subprocess_exec, get_running_loop, sleep
    from asyncio.subprocess import DEVNULL, PIPE

    ready = place / "ready.json"
    options = ["--listen", listen, "--ready-file", str(ready), "--while-stdin-open"]
    if tier_url and not tier_url.startswith("memory:"):  # only its own process sees that one
        options += ["--tier", tier_url]
    process = await create_subprocess_exec(
        sys.executable,
        "-m",
        "stratalog.cli.main",
        "console",
        "--bootstrap-server",
        address,
        *options,
        stdin=PIPE,
        stdout=DEVNULL,
        stderr=DEVNULL,
    )
    deadline = get_running_loop().time() + PATIENCE_S
    while process.returncode is None and get_running_loop().time() < deadline:
        if ready.exists():
            return process, str(json.loads(ready.read_text())["url"])
        await sleep(0.05)
    return process, None
