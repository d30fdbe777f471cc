"""`strata metrics`: what people run beside the metrics of a monitor.

In: a directory. Out: Grafana's dashboards and Prometheus' alert rules as files. It asks no server.
"""

from pathlib import Path
from typing import Annotated

import typer

from stratalog.cli.shared.terminal import Json, note, show

metrics_app = typer.Typer(help="Dashboards and alert rules.", no_args_is_help=True)


@metrics_app.callback()
def metrics() -> None:
    """Dashboards and alert rules."""


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
