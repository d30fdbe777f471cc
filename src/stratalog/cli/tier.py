"""`strata tier`: the bucket, looked at without a broker.

In: a bucket's URL. Out: what it holds, and whether all of it is sound. Only `sweep` changes anything, and only what
belongs to nothing.
"""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from stratalog.cli.terminal import Json, note, run, show, show_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stratalog.ports import ObjectStore
    from stratalog.tier.check import Finding
    from stratalog.tier.manifest import Manifest
    from stratalog.tier.reader import Bucket
    from stratalog.tier.verify import Problem

tier_app = typer.Typer(help="Look at a bucket, and check it.", no_args_is_help=True)

Url = Annotated[str, typer.Argument(metavar="URL", help="As in tier.url: file:///…, s3://….")]


def opened(url: str) -> "ObjectStore":
    """The store at a URL. Raises UserError for one that is not understood or that only its own process sees."""
    from stratalog.adapters.object_store import open_store
    from stratalog.errors import UserError

    if url.startswith("memory://"):
        raise UserError(f"{url}: a bucket in memory is seen by its own process only")
    return open_store(url)


@tier_app.command("list")
def list_bucket(url: Url, json: Json = False) -> None:
    """List the topics that a bucket holds."""
    from stratalog.tier.reader import open_bucket

    bucket = open_bucket(opened(url))
    rows = []
    for topic in bucket.topics():
        manifests = bucket.manifests(topic).values()
        live = [segment.entry for manifest in manifests for segment in manifest.live()]
        rows.append(
            {
                "topic": topic.name,
                "id": topic.topic_id,
                "partitions": topic.partitions,
                "segments": len(live),
                "records": sum(entry.records for entry in live),
                "bytes": sum(entry.size for entry in live),
            }
        )
    show(rows, as_json=json, empty=f"no topics in {url} (cluster {bucket.cluster_id})")


@tier_app.command()
def describe(
    url: Url,
    topic: Annotated[
        str | None, typer.Argument(metavar="[TOPIC]", help="By default all of them.")
    ] = None,
    json: Json = False,
) -> None:
    """Show the segments of each partition that the newest manifests name."""
    from stratalog.tier.reader import open_bucket

    bucket = open_bucket(opened(url))
    if json:
        show_json([manifest_json(manifest) for manifest in manifests_of(bucket, topic)])
        return
    note(f"cluster {bucket.cluster_id}")
    for manifest in manifests_of(bucket, topic):
        typer.echo(
            f"{manifest.topic}-{manifest.partition}  manifest {manifest.version} by node {manifest.node_id}, "
            f"epoch {manifest.leader_epoch}  offsets {manifest.start_offset}-{manifest.tiered_end}"
        )
        show(segment_rows(manifest), as_json=False, empty="no segments")


def manifests_of(bucket: "Bucket", topic: str | None) -> "Iterator[Manifest]":
    """The newest manifest of each partition. Raises UserError for a topic that is not there."""
    from stratalog.errors import UserError

    chosen = [found for found in bucket.topics() if topic in {None, found.name}]
    if topic is not None and not chosen:
        raise UserError(f"topic {topic} is not in {bucket.store.url}")
    for found in chosen:
        yield from bucket.manifests(found).values()


def segment_rows(manifest: "Manifest") -> list[dict[str, Any]]:
    """One row per segment object, those being deleted too."""
    return [
        {
            "offsets": f"{entry.base_offset}-{entry.last_offset}",
            "records": entry.records,
            "bytes": entry.size,
            "epoch": entry.leader_epoch,
            "timestamps": f"{entry.min_timestamp}-{entry.max_timestamp}",
            "state": entry.state.value.removesuffix("_FINISHED").removeprefix("COPY_SEGMENT")
            or "live",
            "object": manifest.path_of(entry),
        }
        for entry in manifest.segments
    ]


def manifest_json(manifest: "Manifest") -> dict[str, Any]:
    """A manifest for JSON."""
    return {
        "topic": manifest.topic,
        "id": manifest.topic_id,
        "partition": manifest.partition,
        "version": manifest.version,
        "node": manifest.node_id,
        "epoch": manifest.leader_epoch,
        "start": manifest.start_offset,
        "end": manifest.tiered_end,
        "segments": segment_rows(manifest),
    }


@tier_app.command()
def verify(url: Url, json: Json = False) -> None:
    """Read every byte of a bucket. Exit 1, naming the objects, where any is missing, altered or nobody's."""
    from stratalog.adapters.system import SystemClock
    from stratalog.tier import verify as tier_verify

    with progress_of(f"verifying {url}", quiet=json) as advance:
        problems = tier_verify.verify(opened(url), now_ms=SystemClock().now_ms(), progress=advance)
    report(problems, as_json=json)
    if problems:
        note(f"{len(problems)} problem(s) in {url}")
        raise typer.Exit(1)
    note(f"{url} is sound")


@tier_app.command()
def sweep(url: Url, json: Json = False) -> None:
    """Remove objects that belong to nothing and are too old to be on their way."""
    from stratalog.adapters.system import SystemClock
    from stratalog.tier import verify as tier_verify

    removed = tier_verify.sweep(opened(url), now_ms=SystemClock().now_ms())
    report(removed, as_json=json)
    note(f"{len(removed)} object(s) removed from {url}")


@tier_app.command()
def check(
    url: Url,
    size: Annotated[
        str, typer.Option("--size", metavar="BYTES", help="Of the object that is timed.")
    ] = "64MiB",
    json: Json = False,
) -> None:
    """Try whether a store may be trusted with a log, before it is. Exit 1 where it may not.

    Twenty writers race for one object, and what is written is read, listed and deleted at once. Works below a prefix
    of its own, and removes what it wrote.
    """
    from stratalog.cli.quantities import parse_bytes
    from stratalog.errors import UserError
    from stratalog.tier.check import LARGE_BYTES_MAX, LARGE_BYTES_MIN

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
    """The findings about the store at a URL."""
    from stratalog.adapters.system import outside
    from stratalog.tier.check import RACERS, check_store

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


def report(problems: "list[Problem]", *, as_json: bool) -> None:
    """One line per object, its whole path first and never folded."""
    if as_json:
        show_json([{"path": p.path, "what": p.what, "orphan": p.orphan} for p in problems])
        return
    for problem in problems:
        typer.echo(f"{problem.path}: {problem.what}")


class progress_of:  # noqa: N801 - used as `with progress_of(...)`
    """A bar on standard error while the block runs, where there is a person to see it."""

    def __init__(self, what: str, *, quiet: bool) -> None:
        from rich.console import Console
        from rich.progress import Progress

        console = Console(stderr=True)
        self._progress = Progress(
            console=console, transient=True, disable=quiet or not console.is_terminal
        )
        self._task = self._progress.add_task(what, total=None)

    def __enter__(self) -> "Callable[[int, int], None]":
        self._progress.start()
        return lambda done, total: self._progress.update(self._task, completed=done, total=total)

    def __exit__(self, *_: object) -> None:
        self._progress.stop()
