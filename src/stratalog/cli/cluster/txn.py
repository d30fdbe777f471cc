"""`strata txn`: transactions of a running cluster.

In: a transactional id, a prefix of ids, or a partition. Out: states of transactions; the marker that aborts a hanging
one; the end of all that a Spark query left open. It never aborts what the Spark sink has decided.
"""

from typing import TYPE_CHECKING, Annotated

import typer

from stratalog.cli.shared.completing import topics
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
DECISIONS_TOPIC = "stratalog-decisions"
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
        {"transactional_id": one.transactional_id, "producer": one.producer_id, "state": one.state}
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
        "transactional_id": transactional_id,
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
            "last_record_ms": one.last_timestamp,
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
    topic: Annotated[
        str | None, typer.Argument(metavar="TOPIC", autocompletion=topics, show_default=False)
    ] = None,
    partition: Annotated[
        int | None, typer.Option(metavar="N", help="The partition.", min=0)
    ] = None,
    start: Annotated[
        int | None, typer.Option(metavar="OFFSET", help="The transaction's first offset.", min=0)
    ] = None,
    prefix: Annotated[
        str | None,
        typer.Option(
            metavar="PREFIX",
            help="All open transactions whose transactional ids begin so, instead of one in a partition.",
        ),
    ] = None,
    decisions_topic: Annotated[
        str,
        typer.Option(metavar="TOPIC", help="With --prefix: the decisions of the Spark sink."),
    ] = DECISIONS_TOPIC,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
) -> None:
    """Abort a hanging transaction in one partition, or with --prefix all open ones of a Spark query that is gone.

    First look with `strata txn find-hanging`, or `strata txn list`. Records of a producer that still writes are
    aborted, too. A batch that the Spark sink has decided is committed, not aborted.

    Example: strata txn abort --prefix stratalog-0f8fad5b
    """
    from stratalog.errors import UserError

    one = (topic, partition, start)
    if prefix and one == (None, None, None):
        run(abort_prefix(bootstrap_server, prefix, decisions_topic))
    elif prefix is None and topic is not None and partition is not None and start is not None:
        run(abort_one(bootstrap_server, topic, partition, start))
    else:
        raise UserError("name either TOPIC, --partition and --start, or --prefix")


async def abort_prefix(bootstrap: str, prefix: str, decisions_topic: str) -> None:
    """End the open transactions of ids that begin with `prefix`: commit the decided ones, abort the others.

    Raises UserError at the end where decided ones were aborted before.
    """
    from stratalog.errors import UserError
    from stratalog.table.exactly_once import ExactlyOnce, Guarantee, abort_ids, open_ids, queries_of

    failures = []
    async with connected(bootstrap) as client:
        names = await open_ids(client, prefix)
        for sink_prefix, query in queries_of(names):
            guarantee = Guarantee(sink_prefix, decisions_topic, 0, fail_on_half_committed=True)
            try:
                await ExactlyOnce(client, guarantee, query).finish()
            except UserError as error:
                failures.append(str(error))
        left = await open_ids(client, prefix)
        await abort_ids(client, left)
    note(f"committed {len(names) - len(left)} decided transactions, aborted {len(left)}")
    if failures:
        raise UserError("; ".join(failures))


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
