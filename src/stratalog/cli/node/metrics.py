"""`strata metrics`: what people run beside the metrics of a monitor.

In: a directory, or monitors and a receiver. Out: Grafana's dashboards and Prometheus' alert rules as files; points sent
to the receiver (`pushing.py` sends).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stratalog.cli.shared.terminal import Json, note, run, show

if TYPE_CHECKING:
    from stratalog.adapters.opentsdb import Receiver

OPENTSDB_PORT = 4242

metrics_app = typer.Typer(
    help="Dashboards, alert rules, and points for OpenTSDB.", no_args_is_help=True
)


@metrics_app.callback()
def metrics() -> None:
    """Dashboards, alert rules, and points for OpenTSDB."""


@metrics_app.command()
def dashboards(
    directory: Annotated[
        Path, typer.Argument(metavar="DIRECTORY", help="Where files go; created if missing.")
    ],
    json: Json = False,
) -> None:
    """Write Grafana's dashboards, one JSON file each: overview, brokers, topics, groups, tier.

    Import them in Grafana 10 or newer, or name the directory in its provisioning. Existing files are replaced.

    Example: strata metrics dashboards grafana/dashboards
    """
    from json import dumps

    from stratalog.monitor.dashboards import DASHBOARDS, dashboard_json

    directory.mkdir(parents=True, exist_ok=True)
    rows = []
    for one in DASHBOARDS:
        made = dashboard_json(one)
        path = directory / f"{one.uid}.json"
        path.write_text(dumps(made, indent=1) + "\n")
        panels = sum(panel["type"] != "row" for panel in made["panels"])
        rows.append({"file": str(path), "title": one.title, "panels": panels})
    show(rows, as_json=json)


@metrics_app.command()
def rules() -> None:
    """Print Prometheus' alert rules.

    Example: strata metrics rules
    """
    from importlib.resources import files

    typer.echo((files("stratalog.monitor") / "stratalog.rules.yml").read_text(), nl=False)
    note("name the file in Prometheus' rule_files")


@metrics_app.command()
def push(
    receiver: Annotated[
        str,
        typer.Argument(
            metavar="RECEIVER", help="opentsdb://HOST:PORT for lines, http://HOST:PORT for JSON."
        ),
    ],
    monitor: Annotated[
        list[str],
        typer.Option(metavar="HOST:PORT", help="A broker's monitor.listener; may be repeated."),
    ],
    every: Annotated[
        str, typer.Option(metavar="TIME", help="From one scrape to the next, 1s or more.")
    ] = "15s",
    tag: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A tag of every point; may be repeated."),
    ] = None,
    queue: Annotated[
        str, typer.Option(metavar="BYTES", help="What waits at most for a receiver that is away.")
    ] = "64MB",
    once: Annotated[bool, typer.Option("--once", help="Push one scrape, and end.")] = False,
) -> None:
    """Send the brokers' metrics to OpenTSDB, or to a server that speaks its protocols, such as InfluxDB 1.

    Each point has the tag instance, the monitor's address. While the receiver is away, points wait in memory; beyond
    --queue the oldest are dropped and counted. Ctrl-C sends what waits, and prints the counts.

    Example: strata metrics push http://tsdb:4242 --monitor localhost:9404
    """
    from stratalog.cli.node.pushing import Monitor, Push, until_interrupted
    from stratalog.cli.shared.quantities import parse_bytes, parse_duration_s
    from stratalog.errors import Unavailable, UserError
    from stratalog.monitor.opentsdb import Points

    every_s = parse_duration_s(every, "--every")
    if every_s < 1:
        raise UserError(f"--every: {every!r} is not accepted; accepted: 1s or more")
    to, as_json = receiver_of(receiver)
    tags = tags_of(tag or ())
    pushing = Push(
        [
            Monitor(metrics_url(one), Points(tags | {"instance": one}, as_json=as_json))
            for one in monitor
        ],
        to,
        Points(
            tags | {"receiver": receiver.rpartition("@")[2].rpartition("//")[2]}, as_json=as_json
        ),
        as_json=as_json,
        queue_bytes_max=int(parse_bytes(queue, "--queue")),
    )
    try:
        if once:
            pushing.scrape()
            pushing.send(every_s)
        else:
            run(until_interrupted(pushing, every_s))
    finally:
        to.close()
    note(
        f"{pushing.sent} point(s) sent, {pushing.refused} refused, {pushing.dropped} dropped, "
        f"{pushing.waiting} not sent"
    )
    if once and pushing.trouble:
        raise Unavailable(pushing.trouble)


def receiver_of(text: str) -> "tuple[Receiver, bool]":
    """Return the receiver, and whether it takes JSON. Raises UserError."""
    from urllib.parse import urlsplit

    from stratalog.adapters.http_request import checked_url
    from stratalog.adapters.opentsdb import HttpReceiver, LineReceiver
    from stratalog.errors import UserError

    parts = urlsplit(text)
    if parts.scheme in {"http", "https"}:
        path = parts.path.rstrip("/") or "/api/put"
        return HttpReceiver(checked_url(parts._replace(path=path, query="").geturl())), True
    try:
        if parts.scheme == "opentsdb" and parts.hostname:
            return LineReceiver(parts.hostname, parts.port or OPENTSDB_PORT), False
    except ValueError:  # a port that is none
        pass
    raise UserError(
        f"RECEIVER: {text!r} is not accepted; accepted: opentsdb://HOST:PORT, http://HOST:PORT"
    )


def metrics_url(monitor: str) -> str:
    """Return where a monitor has its metrics. Raises UserError."""
    from stratalog.adapters.http_request import checked_url

    url = monitor if "://" in monitor else f"http://{monitor}"
    return f"{checked_url(url, f'--monitor {monitor!r}').rstrip('/')}/metrics"


def tags_of(texts: Sequence[str]) -> dict[str, str]:
    """Return tags by name. Raises UserError."""
    from stratalog.errors import UserError
    from stratalog.monitor.opentsdb import is_tag

    tags = {}
    for text in texts:
        name, _, value = text.partition("=")
        if not is_tag(name) or not is_tag(value):
            raise UserError(
                f"--tag: {text!r} is not accepted; accepted: NAME=VALUE of letters, digits, - _ . /"
            )
        tags[name] = value
    return tags
