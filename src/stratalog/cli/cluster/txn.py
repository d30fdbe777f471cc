"""`strata txn`: transactions of a running cluster.

In: a transactional id, or a partition. Out: states of transactions; the marker that aborts a hanging one. It never
ends a transaction that has a coordinator: its producer does, or its time-out.
"""

from typing import TYPE_CHECKING, Annotated

import typer

from stratalog.cli.shared.completing import TopicName, topics
from stratalog.cli.shared.terminal import (
    DEFAULT_BOOTSTRAP,
    BootstrapServer,
    Json,
    connected,
    note,
    run,
    show,
    show_json,
)

if TYPE_CHECKING:
    from stratalog.client.aio import Client
    from stratalog.client.calls import Call
    from stratalog.client.transactions import ActiveProducer, ListedTransaction
    from stratalog.wire.ids import TopicPartition

txn_app = typer.Typer(
    help="Transactions: states, and those that no coordinator ends.", no_args_is_help=True
)
LONGEST_S = 900
"""Kafka's longest time-out of a transaction, by default."""
_PARTITIONS_AT_ONCE = 500


@txn_app.command("list")
def list_transactions(
    state: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STATE",
            help="Only this state: Empty, Ongoing, PrepareCommit, PrepareAbort, CompleteCommit, CompleteAbort; "
            "may be repeated.",
        ),
    ] = None,
    longer_than: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Only those that began longer ago.", min=0),
    ] = None,
    pattern: Annotated[
        str | None,
        typer.Option(
            metavar="PATTERN",
            help="Only transactional ids that match this expression of RE2 from their first to their last character.",
        ),
    ] = None,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """List transactional ids with the state of their last transaction.

    Example: strata txn list --state Ongoing --longer-than 60
    """
    from stratalog.client.transactions import list_transactions

    longer_ms = -1 if longer_than is None else round(longer_than * 1000)
    call = list_transactions(states=state or [], longer_than_ms=longer_ms, pattern=pattern)
    run(print_transactions(bootstrap_server, call, json))


async def print_transactions(
    bootstrap: str, call: "Call[list[ListedTransaction]]", as_json: bool
) -> None:
    """Print one row for each transactional id, by name."""
    async with connected(bootstrap) as client:
        found = [one for some in await client.on_each(call) for one in some]
    rows = [
        {"transactional id": one.transactional_id, "producer": one.producer_id, "state": one.state}
        for one in sorted(found, key=lambda one: one.transactional_id)
    ]
    show(rows, as_json=as_json, empty="no transactions")


@txn_app.command()
def describe(
    transactional_id: Annotated[str, typer.Argument(metavar="TRANSACTIONAL_ID")],
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Show the last transaction of a transactional id, and the partitions that have no marker yet.

    Example: strata txn describe billing-1 --json
    """
    run(print_transaction(bootstrap_server, transactional_id, json))


async def print_transaction(bootstrap: str, transactional_id: str, as_json: bool) -> None:
    """Print a transaction as one JSON object, or as one row. Raises UserError where there is no such id."""
    from stratalog.adapters.system import SystemClock
    from stratalog.client.transactions import describe_transaction
    from stratalog.errors import ErrorCode, UserError

    async with connected(bootstrap) as client:
        call = describe_transaction(transactional_id)
        found = await client.on_transaction_coordinator(transactional_id, call)
    if found.error is ErrorCode.transactional_id_not_found:
        raise UserError(f"transactional id {transactional_id} does not exist")
    age_s = (SystemClock().now_ms() - found.started_ms) / 1000 if found.started_ms >= 0 else None
    row = {
        "transactional id": transactional_id,
        "state": found.state,
        "producer": found.producer_id,
        "epoch": found.producer_epoch,
        "timeout_s": found.timeout_ms / 1000,
        "seconds": age_s,
        "partitions": [f"{topic}-{index}" for topic, index in sorted(found.partitions)],
    }
    if as_json:
        show_json(row)
    else:
        show([row], as_json=False)


@txn_app.command("find-hanging")
def find_hanging(
    topic: Annotated[
        str | None,
        typer.Option(metavar="TOPIC", help="Only this topic.", autocompletion=topics),
    ] = None,
    longer_than: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            help="Only those without a record for so long: the longest time-out that producers have.",
            min=0,
        ),
    ] = LONGEST_S,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Find transactions that are open in a partition and that their coordinator does not know: nothing ends them.

    Such a transaction holds back readers of committed records, and the tier. `strata txn abort` ends it.

    Example: strata txn find-hanging --topic orders
    """
    run(print_hanging(bootstrap_server, topic, longer_than, json))


async def print_hanging(
    bootstrap: str, topic: str | None, longer_than_s: float, as_json: bool
) -> None:
    """Print one row for each hanging transaction. Raises UserError where there is no such topic."""
    from stratalog.adapters.system import SystemClock

    async with connected(bootstrap) as client:
        producers = await open_transactions(client, topic)
        before_ms = SystemClock().now_ms() - longer_than_s * 1000
        old = [one for one in producers if one.last_timestamp < before_ms]
        found = await hanging(client, old)
    rows = [
        {
            "topic": one.partition.topic,
            "partition": one.partition.partition,
            "start": one.transaction_start,
            "producer": one.producer_id,
            "epoch": one.producer_epoch,
            "last record_ms": one.last_timestamp,
        }
        for one in found
    ]
    show(rows, as_json=as_json, empty="no hanging transactions")


async def open_transactions(client: "Client", topic: str | None) -> "list[ActiveProducer]":
    """Return each producer with an open transaction, once for each partition."""
    from stratalog.cli.cluster.partition import chosen
    from stratalog.client.transactions import describe_producers

    cluster = await client.metadata(None if topic is None else [topic])
    by_leader: dict[int, list[TopicPartition]] = {}
    for key, one in sorted(chosen(cluster, topic, None).items()):
        if one.leader >= 0:
            by_leader.setdefault(one.leader, []).append(key)
    found: list[ActiveProducer] = []
    for leader, keys in by_leader.items():
        for start in range(0, len(keys), _PARTITIONS_AT_ONCE):
            some = keys[start : start + _PARTITIONS_AT_ONCE]
            producers = await client.call(describe_producers(some), leader)
            found += producers
    return [one for one in found if one.transaction_start >= 0]


async def hanging(client: "Client", producers: "list[ActiveProducer]") -> "list[ActiveProducer]":
    """Return those whose coordinator does not know that the partition is in a transaction."""
    from stratalog.client.transactions import describe_transaction, list_transactions

    if not producers:
        return []
    call = list_transactions(producer_ids={one.producer_id for one in producers})
    ids = {
        one.producer_id: one.transactional_id for some in await client.on_each(call) for one in some
    }
    partitions = {}
    for producer_id, name in ids.items():
        described = await client.on_transaction_coordinator(name, describe_transaction(name))
        partitions[producer_id] = described.partitions
    return [one for one in producers if one.partition not in partitions.get(one.producer_id, ())]


@txn_app.command()
def abort(
    topic: TopicName,
    partition: Annotated[int, typer.Option(metavar="N", help="The partition.", min=0)],
    start: Annotated[
        int, typer.Option(metavar="OFFSET", help="The transaction's first offset.", min=0)
    ],
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
) -> None:
    """Abort a hanging transaction in one partition. First look with `strata txn find-hanging`.

    Records of a producer that still writes are aborted, too.

    Example: strata txn abort orders --partition 0 --start 1234
    """
    run(abort_one(bootstrap_server, topic, partition, start))


async def abort_one(bootstrap: str, topic: str, partition: int, start: int) -> None:
    """Abort one transaction. Raises UserError where none begins at the offset, Rejected where the leader refuses."""
    from stratalog.client.transactions import abort_transaction
    from stratalog.errors import ErrorCode, Rejected, UserError
    from stratalog.wire.ids import TopicPartition

    key = TopicPartition(topic, partition)
    async with connected(bootstrap) as client:
        found = await open_transactions(client, topic)
        for one in found:
            if one.partition == key and one.transaction_start == start:
                leader = await client.leader_of(topic, partition)
                error = await client.call(abort_transaction(one), leader.node_id)
                if error is not ErrorCode.none:
                    raise Rejected(error, f"{key} from offset {start}: {error.name}")
                note(f"aborted the transaction of producer {one.producer_id} in {key}")
                return
    begins = sorted(one.transaction_start for one in found if one.partition == key)
    raise UserError(
        f"no open transaction of {key} begins at offset {start}; "
        + (f"open ones begin at {', '.join(map(str, begins))}" if begins else "none is open")
    )
