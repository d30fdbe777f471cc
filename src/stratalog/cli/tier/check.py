"""`strata tier check`: test an object store before use.

In: a store's URL. Out: a line for each property; exit 1 where the store lacks one.
"""

from typing import TYPE_CHECKING, Annotated

import typer

from stratalog.cli.shared.bucket import Url, opened, progress_of
from stratalog.cli.shared.terminal import Json, note, run, show

if TYPE_CHECKING:
    from collections.abc import Callable

    from stratalog.tier.checking.check import Finding


def check(
    url: Url,
    size: Annotated[
        str,
        typer.Option(
            "--size", metavar="BYTES", help="Size of the object for the speed measurement."
        ),
    ] = "64MiB",
    json: Json = False,
) -> None:
    """Check that an object store meets the log's requirements. Exit 1 if not.

    Twenty writers race for one object. Other objects are written and at once read, listed and deleted. The check uses a
    separate prefix, and removes its objects.

    Example: strata tier check s3://bucket/prefix
    """
    from stratalog.cli.shared.quantities import parse_bytes
    from stratalog.errors import UserError
    from stratalog.tier.checking.check import LARGE_BYTES_MAX, LARGE_BYTES_MIN

    large_bytes = int(parse_bytes(size, "--size"))
    if not LARGE_BYTES_MIN <= large_bytes <= LARGE_BYTES_MAX:
        raise UserError(f"--size: {size!r} is not from 1MiB to 1GiB")
    with progress_of(f"checking {url}", quiet=json) as advance:
        findings = run(tried(url, large_bytes, advance))
    show(
        [
            {"check": finding.check, "passed": finding.passed, "seen": finding.seen}
            for finding in findings
        ],
        as_json=json,
    )
    if not all(finding.passed for finding in findings):
        note(f"{url} must not be used")
        raise typer.Exit(1)
    note(f"{url} does what the tier relies on")


async def tried(
    url: str, large_bytes: int, advance: "Callable[[int, int], None]"
) -> "list[Finding]":
    """Return the findings about the store at a URL."""
    from stratalog.adapters.system import outside
    from stratalog.tier.checking.check import RACERS, check_store

    system = outside()
    stores = [opened(url) for _ in range(RACERS)]
    worker = system.workers.start("check", RACERS)
    try:
        return await check_store(
            stores,
            worker,
            system.clock,
            system.entropy,
            large_bytes=large_bytes,
            progress=advance,
        )
    finally:
        await worker.close()
