"""`strata restore`: restore a node from the bucket alone.

In: a bucket's URL, an empty directory. Out: a preview of the restore; with `--takeover` a node's log directory. It
starts no broker, and without `--takeover` it changes nothing anywhere.
"""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stratalog.cli.node.storage import locked_disk
from stratalog.cli.shared.bucket import Url, opened, progress_of
from stratalog.cli.shared.quantities import age_text, node_ids
from stratalog.cli.shared.terminal import Json, note, show, show_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from stratalog.ops.restore import Found, FoundTopic
    from stratalog.ops.takeover import Spread, Taken

_CALLS_AT_A_TIME = 8


def restore(
    url: Url,
    takeover: Annotated[
        bool,
        typer.Option(
            "--takeover", help="Take the cluster over: earlier nodes are fenced and stop."
        ),
    ] = False,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data", metavar="DIR", help="The new node's log directory: empty or absent."
        ),
    ] = None,
    node_id: Annotated[
        int | None,
        typer.Option(
            "--node-id",
            metavar="ID",
            min=0,
            help="The new node's id; by default the earlier node's.",
        ),
    ] = None,
    brokers: Annotated[
        str,
        typer.Option(
            metavar="ID,…", help="Brokers for the replicas, the new node among them: 1,2,3."
        ),
    ] = "",
    replication_factor: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Replicas of each partition; by default one on each broker, up to 3."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Show what a bucket can restore; with --takeover, make a node from it.

    Records that were only on a disk are lost. Topics keep their ids, settings and offsets; groups get the offsets in
    the bucket's newest state. docs/recovery.md says how old that state can be.

    Example: strata restore s3://bucket/prefix --takeover --data /data/log
    """
    from stratalog.errors import UserError

    if takeover != (data is not None):
        raise UserError(
            "--takeover needs --data DIR, an empty directory"
            if takeover
            else "--data is for --takeover: without it nothing is written"
        )
    if data is None:
        show_found(url, as_json=json)
    else:
        make_node(url, data, node_id, spread_of(brokers, replication_factor), as_json=json)


def spread_of(brokers: str, replication_factor: int | None) -> "Spread":
    """Return the brokers that an option names. Raises UserError where they are no distinct ids."""
    from stratalog.ops.takeover import Spread

    ids = node_ids("--brokers", brokers)
    factor = min(3, max(1, len(ids))) if replication_factor is None else replication_factor
    return Spread(ids, factor)


def show_found(url: str, *, as_json: bool) -> None:
    """Print a table of topics, then lines about owner, state and missing offsets."""
    from stratalog.adapters.system import SystemClock
    from stratalog.ops.restore import look

    with progress_of(f"reading {url}", quiet=as_json) as advance:
        found = look(opened(url), counted(advance))
    now_ms = SystemClock().now_ms()
    if as_json:
        show_json(found_json(found, now_ms))
        return
    show(
        [topic_row(topic) for topic in found.topics], as_json=False, empty=f"no topics are in {url}"
    )
    for line in lines_of(found, now_ms):
        note(line)
    note("nothing was written; --takeover --data DIR makes a node of this")


def make_node(
    url: str, data: Path, node_id: int | None, spread: "Spread", *, as_json: bool
) -> None:
    """Take over, and print how to start the new node."""
    from stratalog.adapters.system import SystemClock, SystemEntropy
    from stratalog.ops.takeover import take_over

    store = opened(url)
    clock = SystemClock()
    disk = locked_disk(str(data))
    try:
        with progress_of(f"restoring {url}", quiet=as_json) as advance:
            taken = take_over(
                store,
                str(data),
                disk,
                node_id,
                spread=spread,
                entropy=SystemEntropy(),
                now_ms=clock.now_ms(),
                in_order=counted(advance),
            )
    finally:
        disk.close()
    if as_json:
        show_json(taken_json(taken, clock.now_ms()))
        return
    show([topic_row(topic) for topic in taken.found.topics], as_json=False, empty="no topics")
    for line in lines_of(taken.found, clock.now_ms()):
        note(line)
    if taken.moved:
        note(f"{taken.moved} committed offset(s) lay past the end of what is left; now at that end")
    for line in taken.damaged:
        note(f"warning: {line}")
    settings = (f"node.id={taken.node_id}", f"log.dirs={data}", f"tier.url={url}")
    start = ["strata", "server", *(word for one in settings for word in ("--override", one))]
    note(
        f"{data} is node {taken.node_id} of cluster {taken.found.cluster_id}, incarnation {taken.incarnation}; "
        f"start it: {shlex.join(start)}"
    )
    others = [one for one in spread.brokers if one != taken.node_id]
    if others:
        note(
            f"format brokers {', '.join(map(str, others))} with `strata storage format FILE -t "
            f"{taken.found.cluster_id}` and start them: they get their replicas"
        )


class counted:  # noqa: N801 - used as a function
    """Run the calls, eight at a time, and show their progress; return the results in order."""

    def __init__(self, advance: "Callable[[int, int], None]") -> None:
        self._advance = advance

    def __call__(self, calls: "Iterable[Callable[[], Any]]") -> "Iterator[Any]":
        from stratalog.adapters.read_ahead import read_ahead

        waiting = list(calls)
        each = ((1, call) for call in waiting)
        ahead = read_ahead(each, _CALLS_AT_A_TIME, at_once=_CALLS_AT_A_TIME)
        for done, result in enumerate(ahead, 1):
            self._advance(done, len(waiting))
            yield result


def topic_row(topic: "FoundTopic") -> dict[str, Any]:
    """Return a topic and what the bucket has of it."""
    manifests = [one.manifest for one in topic.partitions if one.manifest is not None]
    live = [one for manifest in manifests for one in manifest.live_totals()]
    return {
        "topic": topic.name,
        "id": topic_id(topic),
        "partitions": len(topic.partitions),
        "segments": sum(one.segments for one in live),
        "records": sum(one.records for one in live),
        "bytes": sum(one.size for one in live),
        "missing": topic.missing,
    }


def topic_id(topic: "FoundTopic") -> str:
    """Return a topic's id as text."""
    from stratalog.wire.ids import topic_id_text

    return topic_id_text(topic.id)


def lines_of(found: "Found", now_ms: int) -> "Iterator[str]":
    """Yield lines about the owner, the age of its newest state, and the missing offsets."""
    state = found.state
    yield f"cluster {found.cluster_id}, incarnation {found.incarnation}"
    yield from (f"warning: {line}" for line in found.damaged)
    if state is None:
        yield (
            "the bucket has no state of the cluster: topics are the tiered ones, and no "
            "group's offsets are known"
        )
        return
    offsets = sum(len(kept) for kept in found.groups.values())
    yield (
        f"state of {age_text(now_ms - state.written_ms)} ago, by node {state.node_id}: "
        f"{len(found.groups)} group(s) with {offsets} committed offset(s)"
    )
    missing = sum(topic.missing for topic in found.topics)
    yield (
        f"{missing} offset(s) of that state are not in the bucket (column missing); later ones are unknown"
    )


def found_json(found: "Found", now_ms: int) -> dict[str, Any]:
    """Return the findings for programs. Times are epoch ms, ages ms; null without a state in the bucket."""
    state = found.state
    return {
        "cluster": found.cluster_id,
        "incarnation": found.incarnation,
        "state_ms": state.written_ms if state else None,
        "state_age_ms": now_ms - state.written_ms if state else None,
        "groups": len(found.groups),
        "offsets": sum(len(kept) for kept in found.groups.values()),
        "damaged": list(found.damaged),
        "topics": [topic_row(topic) for topic in found.topics],
    }


def taken_json(taken: "Taken", now_ms: int) -> dict[str, Any]:
    """Return a description of the new node, for programs; `moved` are committed offsets that lay past the end."""
    return {
        **found_json(taken.found, now_ms),
        "incarnation": taken.incarnation,
        "node": taken.node_id,
        "moved": taken.moved,
        "damaged": list(taken.damaged),
    }
