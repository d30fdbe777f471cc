"""`strata get`: the records of one key, or the record at one offset.

In: a topic, a key or an offset. Out: records on standard output, in the forms of `consume`. It reads the bucket past
the brokers where it can, and opens only segments whose key filter may hold the key.
"""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from stratalog.cli.records.consume import Isolation, IsolationLevel, Layout
from stratalog.cli.shared.client_config import client_properties
from stratalog.cli.shared.completing import TopicName
from stratalog.cli.shared.terminal import (
    DEFAULT_BOOTSTRAP,
    BootstrapServer,
    note,
)

if TYPE_CHECKING:
    from stratalog.cli.shared.forms import Printer
    from stratalog.table.metrics import ReadMetrics
    from stratalog.table.options import Options
    from stratalog.table.pruning import Pruning


class Partitioner(StrEnum):
    """Ways in which producers choose a partition by the key."""

    MURMUR2 = "murmur2"


def get(
    topic: TopicName,
    key: Annotated[str | None, typer.Argument(metavar="KEY", show_default=False)] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Print every record of the key, not only the last.")
    ] = False,
    partitioner: Annotated[
        Partitioner | None,
        typer.Option(
            metavar="murmur2",
            help="Look only in the partition that Java's default partitioner chooses for the key.",
        ),
    ] = None,
    partition: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Look only in this partition.")
    ] = None,
    offset: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Print the record at this offset.")
    ] = None,
    tier_url: Annotated[
        str | None,
        typer.Option(
            "--tier-url",
            metavar="URL",
            help="The bucket, as in tier.url; by default the brokers' own. none: read through the brokers alone.",
        ),
    ] = None,
    tier_only: Annotated[
        bool, typer.Option("--tier-only", help="Read the bucket of --tier-url without a broker.")
    ] = False,
    key_separator: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Print the key and this before the value.")
    ] = None,
    headers: Annotated[
        bool, typer.Option("--headers", help="Print NAME=VALUE,… and a tab before each record.")
    ] = False,
    layout: Layout = None,
    isolation_level: IsolationLevel = Isolation.UNCOMMITTED,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object for each record.")
    ] = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
) -> None:
    r"""Print the last record of a key, or the record at an offset.

    Segments in the bucket whose key filter (tier.key.filter) rules the key out stay closed; the tail comes from the
    brokers. If several partitions hold the key, the record with the greatest timestamp counts.

    Example: strata get t k1 --all --format '%p %o %k: %s\n'
    """
    from stratalog.cli.shared.denials import explained
    from stratalog.cli.shared.forms import Printer
    from stratalog.errors import DataLoss, UserError
    from stratalog.table.metrics import ReadMetrics

    wanted = Wanted(topic, key, partition, offset, partitioner)
    printer = Printer(key_separator, headers=headers, as_json=json, layout=layout)
    metrics = ReadMetrics()
    try:
        bootstrap = None if tier_only else bootstrap_server
        with explained():
            options = wanted.options(bootstrap, bucket_of(bootstrap, tier_url), isolation_level)
            look_up(wanted, options, printer, metrics, every=every)
    except (ValueError, DataLoss) as error:
        # An option of `stratalog.read`, which this command has not.
        raise UserError(str(error).partition("; failOnDataLoss")[0]) from None
    note(str(metrics))


class Wanted(NamedTuple):
    """The records to print: those of a key, or the one at an offset."""

    topic: str
    key: str | None
    partition: int | None
    offset: int | None
    partitioner: Partitioner | None

    def options(self, bootstrap: str | None, tier_url: str | None, isolation: str) -> "Options":
        """Return the options of the read. Raises ValueError for arguments that do not fit together."""
        from stratalog.table.options import parse_options

        if (self.key is None) == (self.offset is None):
            raise ValueError("name a KEY, or a record by --partition and --offset")
        if self.offset is not None and self.partition is None:
            raise ValueError("--offset: each partition has its own; name one with --partition")
        given = {"subscribe": self.topic} if self.partition is None else self._place(self.partition)
        given["kafka.isolation.level"] = isolation
        given["kafka.client.id"] = "strata-get"
        given["kafka.default.api.timeout.ms"] = "5000"  # a wrong address is an error soon
        places = {"kafka.bootstrap.servers": bootstrap, "tier.url": tier_url}
        given |= {name: at for name, at in places.items() if at is not None}
        given |= {f"kafka.{name}": text for name, text in client_properties().items()}
        return parse_options(given, literal_secrets=True)

    def _place(self, partition: int) -> dict[str, str]:
        """Return the options of Spark's that choose a partition, and the offset if one is wanted."""
        from json import dumps

        chosen = {"assign": dumps({self.topic: [partition]})}
        if self.offset is not None:
            places = (("startingOffsets", self.offset), ("endingOffsets", self.offset + 1))
            for name, offset in places:
                chosen[name] = dumps({self.topic: {partition: offset}})
        return chosen

    def pruning(self) -> "Pruning":
        """Return the condition on the key. Raises ValueError for a partitioner without a key."""
        from os import fsencode

        from stratalog.table.pruning import Pruning

        if self.key is None:
            if self.partitioner is not None:
                raise ValueError("--partitioner chooses a partition by the key, and none is named")
            return Pruning()
        # The argument's own bytes, text or not.
        return Pruning(
            keys=frozenset([fsencode(self.key)]), by_murmur2=self.partitioner is not None
        )

    def __str__(self) -> str:
        if self.key is None:
            return f"{self.topic}-{self.partition} has no record at offset {self.offset}"
        place = self.topic if self.partition is None else f"{self.topic}-{self.partition}"
        return f"{place} has no record with the key {self.key}"


def bucket_of(bootstrap: str | None, tier_url: str | None) -> str | None:
    """Return the bucket to read; None for none. Raises UserError where the brokers' own cannot be opened from here."""
    from stratalog.adapters.blocking_socket import BlockingNetwork
    from stratalog.client.blocking import BlockingClient
    from stratalog.client.calls import BROKER, describe_configs
    from stratalog.client.security import security_of
    from stratalog.errors import Unavailable, UserError
    from stratalog.table.places import store_at
    from stratalog.tier.reading.reader import open_bucket

    if bootstrap is None and tier_url in {None, "none"}:
        raise UserError("--tier-only: name the bucket with --tier-url")
    if bootstrap is None or tier_url is not None:
        return None if tier_url == "none" else tier_url
    security = security_of(client_properties())
    with BlockingClient(
        BlockingNetwork(), bootstrap, client_id="strata-get", security=security
    ) as client:
        node = min(client.metadata([]).brokers)
        found = client.call(describe_configs([(BROKER, str(node))]), node)
    entries = (entry for resource in found for entry in resource.entries)
    url = next((entry.value for entry in entries if entry.name == "tier.url"), None)
    if not url or url.startswith("memory:"):
        return None
    try:
        open_bucket(store_at(url))
    except (UserError, Unavailable) as error:
        raise UserError(f"{error}; --tier-url none reads through the brokers alone") from None
    return url


def look_up(
    wanted: Wanted, options: "Options", printer: "Printer", metrics: "ReadMetrics", *, every: bool
) -> None:
    """Print the records. Raises UserError where there is none."""
    from stratalog.errors import UserError
    from stratalog.table.partitioners import misplaced
    from stratalog.table.records import all_records, newest_records
    from stratalog.wire.ids import TopicPartition

    pruning = wanted.pruning()
    if every or wanted.key is None:
        for found in all_records(options, pruning, metrics):
            printer.print(TopicPartition(wanted.topic, found.partition), found.record)
    elif newest := newest_records(options, pruning, metrics):
        last = max(newest, key=lambda one: one.record.timestamp)
        printer.print(TopicPartition(wanted.topic, last.partition), last.record)
        others = ", ".join(str(one.partition) for one in newest if one is not last)
        if others:
            note(f"older records of the key are in partition {others}: --all prints them")
    if not printer.count:
        doubt = misplaced(options) if pruning.by_murmur2 else None
        raise UserError(f"{wanted}; {doubt}" if doubt else str(wanted))
