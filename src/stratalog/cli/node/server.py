"""`strata server`: one node in the foreground.

In: a properties file, overrides, the environment. Out: a broker that serves until SIGTERM, SIGINT or SIGHUP. It never
detaches and writes no file of its own but `--ready-file`.
"""

from pathlib import Path
from typing import Annotated

import typer

from stratalog.cli.node.serving import ServerWords, serve
from stratalog.cli.shared.known_words import words
from stratalog.cli.shared.terminal import Overrides, PropertiesFile


def server(
    properties: PropertiesFile = None,
    override: Overrides = None,
    ready_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write {node_id, host, port, pid, monitor_port} as JSON there once requests are served.",
        ),
    ] = None,
    profile: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Apply a preset of recommended settings (production); explicit values win.",
            autocompletion=words("production"),
        ),
    ] = "",
    console: Annotated[
        bool,
        typer.Option(
            "--console",
            help="Also start the web console, on 127.0.0.1:8080 or a free port, and print its address.",
        ),
    ] = False,
) -> None:
    """Run a broker and controller in this process.

    Settings have Kafka's names. --override beats the environment (STRATA_LOG_RETENTION_MS is log.retention.ms), the
    environment beats the file, the file beats a profile. With listeners=PLAINTEXT://:0 a free port is taken;
    --ready-file reports it.

    Example: strata server server.properties --override num.partitions=3
    """
    serve(ServerWords(properties, override or [], ready_file, profile, console))
