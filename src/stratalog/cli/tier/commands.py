"""`strata tier`: inspect the bucket without a broker.

In: a bucket's URL. Out: its contents, and whether they are sound. Only `sweep` changes anything: it deletes orphans.
"""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from stratalog.cli.shared.bucket import Url, opened, progress_of, report
from stratalog.cli.shared.terminal import Json, note, show, show_json
from stratalog.cli.tier.check import check
from stratalog.cli.tier.export import export
from stratalog.cli.tier.leases import leases
from stratalog.cli.tier.sweep import sweep

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from stratalog.tier.bucket.identity import TierTopic
    from stratalog.tier.formats.manifest import ArchivedManifest, Entry, Manifest
    from stratalog.tier.reading.reader import Bucket

tier_app = typer.Typer(help="Inspect and check a bucket.", no_args_is_help=True)
tier_app.command("check")(check)
tier_app.command("export")(export)
tier_app.command("leases")(leases)
tier_app.command("sweep")(sweep)


@tier_app.command("list")
def list_bucket(url: Url, json: Json = False) -> None:
    """List the topics that a bucket holds.

    Example: strata tier list s3://bucket/prefix
    """
    from stratalog.tier.reading.reader import open_bucket

    bucket = open_bucket(opened(url))
    topics = bucket.topics()
    with progress_of(f"listing {url}", quiet=json) as advance:
        rows = []
        for done, topic in enumerate(topics, 1):
            rows.append(topic_row(topic, bucket.manifests(topic).values()))
            advance(done, len(topics))
    show(rows, as_json=json, empty=f"no topics in {url} (cluster {bucket.cluster_id})")


def topic_row(topic: "TierTopic", manifests: "Iterable[Manifest]") -> dict[str, Any]:
    """Return a row about one topic in the bucket."""
    live = [one for manifest in manifests for one in manifest.live_totals()]
    return {
        "topic": topic.name,
        "id": topic.topic_id,
        "partitions": topic.partitions,
        "segments": sum(one.segments for one in live),
        "records": sum(one.records for one in live),
        "bytes": sum(one.size for one in live),
    }


@tier_app.command()
def describe(
    url: Url,
    topic: Annotated[
        str | None, typer.Argument(metavar="TOPIC", help="By default all of them.")
    ] = None,
    json: Json = False,
) -> None:
    """Show the segments of each partition that the newest manifests name.

    Example: strata tier describe s3://bucket/prefix orders
    """
    from stratalog.tier.reading.reader import open_bucket

    bucket = open_bucket(opened(url))
    topics = chosen_topics(bucket, topic)  # before a line is printed: it may fail
    if json:
        show_json([manifest_json(bucket, manifest) for manifest in manifests_of(bucket, topics)])
        return
    note(f"cluster {bucket.cluster_id}")
    for manifest in manifests_of(bucket, topics):
        typer.echo(
            f"{manifest.topic}-{manifest.partition}  manifest {manifest.version} by node {manifest.node_id}, "
            f"epoch {manifest.leader_epoch}  offsets {manifest.start_offset}-{manifest.tiered_end}"
        )
        for row in archive_rows(manifest):
            typer.echo(
                f"  archive manifest of {row['segments']} segments, offsets {row['offsets']}, "
                f"{row['bytes']} bytes: {row['object']}"
            )
        show(segment_rows(bucket, manifest), as_json=False, empty="no segments")


def chosen_topics(bucket: "Bucket", topic: str | None) -> "list[TierTopic]":
    """Return the topics of this name, or all of them. Raises UserError for a name that the bucket lacks."""
    from stratalog.errors import UserError

    chosen = [found for found in bucket.topics() if topic in {None, found.name}]
    if topic is not None and not chosen:
        url = bucket.store.url
        raise UserError(f"topic {topic} is not in {url}; list topics: strata tier list {url}")
    return chosen


def manifests_of(bucket: "Bucket", topics: "Iterable[TierTopic]") -> "Iterator[Manifest]":
    """Yield the newest manifest of each partition of these topics."""
    for topic in topics:
        yield from bucket.manifests(topic).values()


def archive_rows(manifest: "Manifest") -> list[dict[str, Any]]:
    """Return one row for each part of an archive manifest, including parts that are being deleted."""
    return [
        {
            "offsets": f"{named.base_offset}-{named.last_offset}",
            "segments": named.segments,
            "bytes": named.size,
            "timestamps": f"{named.min_timestamp}-{named.max_timestamp}",
            "state": state_of(named),
            "object": manifest.archive_path(named),
        }
        for named in manifest.archives
    ]


def state_of(named: "Entry | ArchivedManifest") -> str:
    """Return an entry's state as text."""
    return named.state.value.removesuffix("_FINISHED").removeprefix("COPY_SEGMENT") or "live"


def segment_rows(bucket: "Bucket", manifest: "Manifest") -> list[dict[str, Any]]:
    """Return one row per segment object, including objects that are being deleted."""
    return [
        {
            "offsets": f"{entry.base_offset}-{entry.last_offset}",
            "records": entry.records,
            "bytes": entry.size,
            "epoch": entry.leader_epoch,
            "timestamps": f"{entry.min_timestamp}-{entry.max_timestamp}",
            "state": state_of(entry),
            "object": manifest.path_of(entry),
        }
        for entry in bucket.archives.entries(manifest)
    ]


def manifest_json(bucket: "Bucket", manifest: "Manifest") -> dict[str, Any]:
    """Return a manifest for JSON."""
    return {
        "topic": manifest.topic,
        "id": manifest.topic_id,
        "partition": manifest.partition,
        "version": manifest.version,
        "node": manifest.node_id,
        "epoch": manifest.leader_epoch,
        "start": manifest.start_offset,
        "end": manifest.tiered_end,
        "archives": archive_rows(manifest),
        "segments": segment_rows(bucket, manifest),
    }


@tier_app.command()
def verify(url: Url, json: Json = False) -> None:
    """Read every byte of a bucket. Exit 1, naming the objects, if any is missing, altered or an orphan.

    With --json the report is one object: "sound", counts of what was read, and "problems".

    Example: strata tier verify file:///srv/bucket --json
    """
    from dataclasses import asdict

    from stratalog.adapters.system import SystemClock
    from stratalog.tier.checking import verify as tier_verify

    checked = tier_verify.Checked()
    now_ms = SystemClock().now_ms()
    with progress_of(f"verifying {url}", quiet=json) as advance:
        problems = tier_verify.verify(opened(url), now_ms=now_ms, progress=advance, checked=checked)
    if json:
        rows = [problem._asdict() for problem in problems]
        show_json({"sound": not problems, **asdict(checked), "problems": rows})
    else:
        report(problems, as_json=False)
    if problems:
        note(f"{len(problems)} problem(s) in {url}")
        raise typer.Exit(1)
    if checked.segments:
        note(
            f"{url} is sound: {checked.topics:,} topic(s), {checked.segments:,} segment(s), "
            f"{checked.records:,} record(s), {checked.bytes:,} bytes"
        )
    else:
        note(
            f"{url} is sound and empty: no segment is archived there ({checked.topics:,} topic(s))"
        )
