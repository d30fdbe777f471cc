"""`strata consume`: records of topics, printed as they come.

In: topics and where to begin. Out: records on standard output, in one of several forms. `follow.py` fetches them,
alone or as a member of a group.
"""

from enum import StrEnum
from typing import Annotated

import typer

from stratalog.cli.shared.completing import OnlyPartitions, TopicNames, groups
from stratalog.cli.shared.known_words import words
from stratalog.cli.shared.schemas import RegistryUrl, schemas_at
from stratalog.cli.shared.terminal import (
    DEFAULT_BOOTSTRAP,
    BootstrapServer,
    note,
    run,
)


class Isolation(StrEnum):
    """Kafka's `isolation.level`."""

    UNCOMMITTED = "read_uncommitted"
    COMMITTED = "read_committed"


Layout = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="TEXT",
        help="Print this for each record: %t topic, %p partition, %o offset, %T timestamp, %k key, %s value, "
        "%K and %S their lengths (-1: none), %h headers, %% a percent sign; \\n \\t \\0 as usual.",
    ),
]
Group = Annotated[
    str | None,
    typer.Option(
        metavar="GROUP",
        autocompletion=groups,
        help="Join the group: share partitions, start at its committed offsets (else at "
        "--from), commit.",
    ),
]
Pattern = Annotated[
    bool,
    typer.Option(
        "--regex", "-r", help="TOPIC is a regular expression for the whole name, as 'web-.*'."
    ),
]
Start = Annotated[
    str,
    typer.Option(
        "--from",
        metavar="beginning|end|OFFSET|TIME",
        autocompletion=words("beginning", "end"),
        help="Start position; TIME: @MS, 2026-11-24T10:00Z or '2 hours ago'.",
    ),
]
IsolationLevel = Annotated[
    Isolation,
    typer.Option(help="read_committed: skip aborted transactions, and stop before an open one."),
]


def consume(
    topics: TopicNames,
    regex: Pattern = False,
    start: Start = "end",
    last: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Begin N records before the end of each partition."),
    ] = None,
    partition: OnlyPartitions = None,
    max_messages: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Stop after this many records.")
    ] = None,
    until_end: Annotated[
        bool, typer.Option("--until-end", help="Stop at the log end of the start.")
    ] = False,
    timeout: Annotated[
        float | None,
        typer.Option(min=0, metavar="S", help="Stop after so many seconds without a record."),
    ] = None,
    key_separator: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Print the key and this before the value.")
    ] = None,
    headers: Annotated[
        bool, typer.Option("--headers", help="Print NAME=VALUE,… and a tab before each record.")
    ] = False,
    layout: Layout = None,
    registry: RegistryUrl = "",
    group: Group = None,
    isolation_level: IsolationLevel = Isolation.UNCOMMITTED,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object for each record.")
    ] = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
) -> None:
    r"""Print records until interrupted, or up to a number of records.

    With --registry, keys and values with a schema are printed as JSON, and in --json they are values, not text.
    Records of several topics come in each partition's order; --json and --format say the topic. --regex reads the
    topics that match at the start, without Kafka's own.

    With --group it takes part in the group's rebalances (classic protocol, range assignor), beside consumers of any
    kind. It commits the printed records after each round of reads, so after a crash some may be printed again. With
    --partition it does not join, and a group with members refuses its commits.

    Example: strata consume t --last 10 --until-end

    Example: strata consume -r 'web-.*' --json

    Example: strata consume t --from beginning --format '%p %o %k: %s\n'
    """
    from asyncio import CancelledError

    from stratalog.cli.records.follow import Wanted, follow
    from stratalog.cli.shared.forms import Printer

    decoding = schemas_at(registry) if registry else None
    printer = Printer(key_separator, decoding, headers=headers, as_json=json, layout=layout)
    isolation = int(isolation_level is Isolation.COMMITTED)
    names = tuple(dict.fromkeys(topics))
    wanted = Wanted(
        names, start, partition, group, until_end, max_messages, timeout, isolation, last, regex
    )
    try:
        run(follow(bootstrap_server, wanted, printer))
    except (KeyboardInterrupt, CancelledError):  # SIGINT, SIGTERM
        note("")
    printer.say_undecoded()
    note(f"{printer.count} record(s)")
