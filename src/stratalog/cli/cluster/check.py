"""`strata check`: look over a running cluster, for a person or a monitor.

In: a cluster, optionally its bucket and its brokers' monitors. Out: a table of findings, and exit code 1 where
something is wrong. It changes nothing; `ops.checking` judges.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stratalog.cli.shared.client_config import client_properties
from stratalog.cli.shared.terminal import (
    DEFAULT_BOOTSTRAP,
    BootstrapServer,
    Json,
    connected,
    note,
    run,
    show,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stratalog.client.aio import Client
    from stratalog.client.calls import ClusterInfo
    from stratalog.ops.checking import Finding

TIMEOUT_S = 10.0
MIN_ISR_TOPICS_MAX = 500
"""Topics with replicas out of sync whose min.insync.replicas is looked up."""


def check(
    tier: Annotated[
        str,
        typer.Option(
            metavar="URL|none",
            help="The cluster's bucket, as in tier.url; by default the brokers' own.",
        ),
    ] = "",
    monitor: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST:PORT",
            help="A broker's monitor.listener: its readiness and clock; may be repeated.",
        ),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit 1 for warnings, too.")] = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Check a running cluster: ports, TLS, controllers, leaders, disks, bucket, clocks, settings that differ.

    Exit 0 where all is well, 1 where something is wrong, 2 where the check could not be made: no broker answers, or
    the command line is wrong. It works with Apache Kafka, too.

    Example: strata check -b localhost:9092 --monitor localhost:9404
    """
    from stratalog.ops.checking import BAD, OK

    found = run(findings(bootstrap_server))
    found += bucket_findings(tier, None if tier else found_bucket(bootstrap_server))
    for address in monitor or ():
        found += monitor_findings(address)
    show(
        [
            {
                "check": one.check,
                "of": one.of,
                "state": one.state,
                "seen": one.seen,
                "remedy": one.remedy,
            }
            for one in found
        ],
        as_json=json,
    )
    bad = sum(one.state == BAD for one in found)
    others = sum(one.state not in {OK, BAD} for one in found)
    note(f"{len(found)} checks: {bad} bad, {others} warning{'' if others == 1 else 's'}")
    if bad or (strict and others):
        raise typer.Exit(1)


async def findings(bootstrap: str) -> "list[Finding]":
    """Ask the cluster, and judge its answers. Raises Unavailable where no broker answers."""
    from stratalog.client.cluster_admin import describe_cluster
    from stratalog.ops import checking

    async with connected(bootstrap, timeout_s=TIMEOUT_S, patience_s=0) as client:
        cluster = await client.metadata()  # and where each broker is
        registered = await client.on_any(describe_cluster())
        alive = [one for one in registered if not one.is_fenced]
        answers = {one.node_id: await reached(client, one.node_id) for one in alive}
        found = checking.of_brokers(registered, answers)
        answering = [node for node, answer in answers.items() if not isinstance(answer, str)]
        if client_properties().get("security.protocol", "").upper().endswith("SSL"):
            found += [await certificate(client, node) for node in answering]
        found += await controllers(client, cluster)
        found += checking.of_partitions(cluster, await min_isr(client, cluster))
        found += await disks(client, answering)
        found += checking.of_settings(await settings(client, answering))
    return found


async def reached(client: "Client", node: int) -> float | str:
    """Return the milliseconds until a broker answered, or why it did not."""
    from asyncio import get_running_loop

    from stratalog.client.calls import api_versions
    from stratalog.errors import Rejected, Unavailable

    now = get_running_loop().time
    before = now()
    try:
        await client.call(api_versions(), node)
    except (Unavailable, Rejected) as error:
        return text_of(error)
    return (now() - before) * 1000


def text_of(error: Exception) -> str:
    """Return a failure of a broker, with Kafka's name of its code."""
    from stratalog.errors import Rejected

    text = str(error)
    if not isinstance(error, Rejected):
        return text
    return text.replace(error.code.name, error.code.name.upper())


async def certificate(client: "Client", node: int) -> "Finding":
    """Judge a broker's certificate, which its connection has verified."""
    from ssl import cert_time_to_seconds

    from stratalog.adapters.system import SystemClock
    from stratalog.ops.checking import WARNING, Finding, of_certificate

    ends = (await client.link_to(node)).certificate.get("notAfter")
    if ends is None:
        return Finding("tls", f"broker {node}", WARNING, "the certificate was not verified")
    now_s = SystemClock().now_ms() / 1000
    return of_certificate(f"broker {node}", cert_time_to_seconds(ends), now_s)


async def controllers(client: "Client", cluster: "ClusterInfo") -> "list[Finding]":
    """Judge the quorum, and the clock of its leader, which stamps the answer."""
    from stratalog.adapters.system import SystemClock
    from stratalog.client.cluster_admin import describe_quorum
    from stratalog.errors import Rejected, Unavailable
    from stratalog.ops import checking

    clock = SystemClock()
    before_ms = clock.now_ms()
    try:
        quorum = await client.on_any(describe_quorum())
    except (Rejected, Unavailable) as error:
        return checking.of_quorum(cluster, text_of(error))
    after_ms = clock.now_ms()
    found = checking.of_quorum(cluster, quorum)
    for one in quorum.replicas:
        if one.node_id == quorum.leader_id and one.is_voter and one.last_fetch_ms > 0:
            ahead_ms = one.last_fetch_ms - (before_ms + after_ms) / 2
            unsure_ms = (after_ms - before_ms) / 2
            found.append(checking.of_clock(f"controller {one.node_id}", ahead_ms, unsure_ms))
    return found


async def min_isr(client: "Client", cluster: "ClusterInfo") -> dict[str, int]:
    """Return min.insync.replicas of the topics that lack an in-sync replica."""
    from stratalog.client.calls import TOPIC

    lacking = [
        topic.name
        for topic in cluster.topics.values()
        if any(
            one.leader >= 0 and len(one.isr) < len(one.replicas)
            for one in topic.partitions.values()
        )
    ]
    if not lacking:
        return {}
    wanted = [(TOPIC, name) for name in sorted(lacking)[:MIN_ISR_TOPICS_MAX]]
    return {
        configs.name: int(entry.value)
        for configs in await client.describe_configs(wanted)
        for entry in configs.entries
        if entry.name == "min.insync.replicas" and entry.value
    }


async def disks(client: "Client", nodes: Sequence[int]) -> "list[Finding]":
    """Judge the log directories of the brokers that answer."""
    from stratalog.client.admin import LogDirectory, log_directories
    from stratalog.errors import Rejected, Unavailable
    from stratalog.ops.checking import of_directories

    answers: dict[int, list[LogDirectory] | str] = {}
    for node in nodes:
        try:
            found = await client.call(log_directories(), node)
            answers[node] = found
        except (Rejected, Unavailable) as error:
            answers[node] = text_of(error)
    return of_directories(answers)


async def settings(client: "Client", nodes: Sequence[int]) -> "Mapping[int, dict[str, str | None]]":
    """Return the settings of each broker, asked at that broker: others know only what the cluster's log has."""
    from stratalog.client.calls import BROKER, describe_configs
    from stratalog.errors import Rejected, Unavailable

    found: dict[int, dict[str, str | None]] = {}
    for node in nodes:
        try:
            (configs,) = await client.call(describe_configs([(BROKER, str(node))]), node)
        except (Rejected, Unavailable):
            continue
        if not configs.error:
            found[node] = {one.name: one.value for one in configs.entries if not one.sensitive}
    return found


def found_bucket(bootstrap: str) -> tuple[str, bool] | None:
    """Return the brokers' tier.url, and whether this machine sees the same bucket.

    None where they have none, or one in their own memory.
    """

    async def ask() -> tuple[str, bool] | None:
        async with connected(bootstrap, timeout_s=TIMEOUT_S, patience_s=0) as client:
            cluster = await client.metadata([])
            for of_broker in (await settings(client, sorted(cluster.brokers)[:1])).values():
                url = of_broker.get("tier.url") or ""
                if url and not url.startswith("memory:"):
                    directories = of_broker.get("log.dirs") or of_broker.get("log.dir") or ""
                    is_here = not url.startswith("file:") or any(
                        is_of_cluster(Path(one.strip()), cluster.cluster_id or "")
                        for one in directories.split(",")
                    )
                    return url, is_here
        return None

    return run(ask())


def is_of_cluster(directory: Path, cluster_id: str) -> bool:
    """Return whether a log directory of this machine is one of the cluster's."""
    try:
        lines = (directory / "meta.properties").read_text().splitlines()
    except (OSError, ValueError):
        return False
    return f"cluster.id={cluster_id}" in lines


def bucket_findings(url: str, of_brokers: tuple[str, bool] | None) -> "list[Finding]":
    """Read the bucket's owner and its topics from this machine: of `url`, or else of the brokers' bucket.

    A cluster claims its bucket when it starts. So a bucket without an owner was removed or emptied, with the history
    that only it had, unless the brokers' directory is that of another machine.
    """
    from stratalog.cli.shared.bucket import opened
    from stratalog.errors import Corrupt, Unavailable, UserError
    from stratalog.ops.checking import BAD, OK, WARNING, Finding
    from stratalog.tier.bucket.identity import read_claim
    from stratalog.tier.reading.reader import open_bucket

    wanted, is_here = of_brokers or (url, False)
    if not wanted or wanted == "none":
        return []
    try:
        if is_here and read_claim(opened(wanted)) is None:
            what = (
                "it has no owner: it was removed or emptied, and what only it had is gone; "
                "or the brokers have not reached it yet"
            )
            remedy = "stop the brokers, put the objects back from a copy, and start them"
            return [Finding("bucket", wanted, BAD, what, remedy)]
        topics = sum(1 for _ in open_bucket(opened(wanted)).topics())
    except UserError as error:
        if url:
            raise
        remedy = "name the bucket with --tier, or set this machine's credentials"
        return [Finding("bucket", wanted, WARNING, f"not readable from here: {error}", remedy)]
    except (Unavailable, Corrupt) as error:
        remedy = (
            "strata tier check says more"
            if isinstance(error, Unavailable)
            else "strata tier verify"
        )
        return [Finding("bucket", wanted, BAD, str(error), remedy)]
    return [Finding("bucket", wanted, OK, f"readable from here; {topics} topics")]


def monitor_findings(address: str) -> "list[Finding]":
    """Judge a node's readiness and clock by its monitor."""
    from email.utils import parsedate_to_datetime

    from stratalog.adapters.http_request import ask, checked_url
    from stratalog.adapters.system import SystemClock
    from stratalog.errors import Unavailable
    from stratalog.ops.checking import BAD, OK, Finding, of_clock

    typed = address if "://" in address else f"http://{address}"
    url = checked_url(typed, f"--monitor {address!r}")
    place, clock = f"monitor {address}", SystemClock()
    before_ms = clock.now_ms()
    try:
        answer = ask(f"{url.rstrip('/')}/readyz", timeout_s=TIMEOUT_S)
    except Unavailable as error:
        remedy = "set monitor.listener, and open its port to this machine"
        return [Finding("ready", place, BAD, str(error), remedy)]
    after_ms = clock.now_ms()
    lines = answer.body.decode("utf-8", "replace").split("\n")
    reasons = "; ".join(line for line in lines if line)[:300]
    remedy = "see the broker's log"
    found = [
        Finding("ready", place, OK, "ready")
        if answer.status == 200
        else Finding("ready", place, BAD, reasons or f"status {answer.status}", remedy)
    ]
    if answer.date:
        # The header has whole seconds, cut off: on average half a second is missing.
        there_ms = parsedate_to_datetime(answer.date).timestamp() * 1000 + 500
        unsure_ms = 500 + (after_ms - before_ms) / 2
        found.append(of_clock(place, there_ms - (before_ms + after_ms) / 2, unsure_ms))
    return found
