"""`strata storage`: format, describe and repair log directories.

In: a broker's settings. Out: a formatted directory, a table, or a repaired log. It never touches a directory that a
broker has locked, and keeps a copy of everything it cuts.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stratalog.cli.node.serving import load_config
from stratalog.cli.shared.terminal import Json, Overrides, PropertiesFile, note, show, show_json

if TYPE_CHECKING:
    from stratalog.broker.storage.first_voters import Begin
    from stratalog.config import BrokerConfig

storage_app = typer.Typer(help="Format log directories and look at them.", no_args_is_help=True)


@storage_app.command("format")
def format_storage(
    properties: PropertiesFile = None,
    override: Overrides = None,
    cluster_id: Annotated[
        str | None,
        typer.Option(
            "--cluster-id", "-t", metavar="ID", help="22 characters; by default a new one."
        ),
    ] = None,
    ignore_formatted: Annotated[
        bool, typer.Option("--ignore-formatted", "-g", help="Leave formatted directories alone.")
    ] = False,
    standalone: Annotated[
        bool,
        typer.Option(
            "--standalone", "-s", help="Begin a quorum with this controller as its voter."
        ),
    ] = False,
    initial_controllers: Annotated[
        str | None,
        typer.Option(
            "--initial-controllers",
            "-I",
            metavar="VOTERS",
            help="Begin a quorum with these voters: id@host:port:directory, separated by commas.",
        ),
    ] = None,
    no_initial_controllers: Annotated[
        bool,
        typer.Option(
            "--no-initial-controllers", "-N", help="Join the quorum that other nodes began."
        ),
    ] = False,
    add_scram: Annotated[
        list[str] | None,
        typer.Option(
            "--add-scram",
            "-S",
            metavar="USER",
            help="A first user: SCRAM-SHA-256=[name=alice,password=…]; may be repeated. On each controller alike.",
        ),
    ] = None,
) -> None:
    """Give empty log directories a cluster id. A broker does this on its first start too.

    Where `controller.quorum.bootstrap.servers` is set, a controller needs one of --standalone, --initial-controllers
    and --no-initial-controllers.

    Example: strata storage format server.properties
    """
    from stratalog.broker.storage.first_voters import Begin

    config = load_config(properties, override)
    if cluster_id is not None:
        check_cluster_id(cluster_id)
    begin = Begin(standalone, initial_controllers, no_initial_controllers)
    for line in format_directories(
        config, cluster_id, begin, add_scram or (), ignore_formatted=ignore_formatted
    ):
        note(line)


def format_directories(
    config: "BrokerConfig",
    cluster_id: str | None,
    begin: "Begin | None" = None,
    users: Sequence[str] = (),
    *,
    ignore_formatted: bool,
) -> list[str]:
    """Format the empty log directories, with a new cluster id for None; print a line for each directory.

    Raises UserError where a broker has locked one, or one is formatted already or of another cluster, and as
    `first_voters`.
    """
    from stratalog.adapters.local_disk import check_distinct
    from stratalog.adapters.system import SystemClock, SystemEntropy
    from stratalog.broker.storage.bootstrap_file import first_users, write_first_users
    from stratalog.broker.storage.claim import format_directory, new_cluster_id, read_meta
    from stratalog.broker.storage.first_voters import Begin, first_voters, write_first_voters
    from stratalog.errors import UserError

    entropy, node_id = SystemEntropy(), config.int("node.id")
    voters = first_voters(config, begin or Begin(), entropy)
    credentials = first_users(users, entropy)
    if credentials and not config.is_controller:
        raise UserError("--add-scram: process.roles is broker; accepted: a controller")
    check_distinct(config.log_dirs)
    disks = {path: locked_disk(path) for path in config.log_dirs}
    lines = []
    try:
        metas = {path: read_meta(path, disk) for path, disk in disks.items()}
        cluster_ids = {meta.cluster_id for meta in metas.values() if meta is not None}
        if cluster_ids and not ignore_formatted:
            path = next(path for path, meta in metas.items() if meta is not None)
            raise UserError(
                f"log directory {path} is formatted already: --ignore-formatted skips it"
            )
        chosen = cluster_id or (
            cluster_ids.pop() if len(cluster_ids) == 1 else new_cluster_id(entropy)
        )
        for path, meta in metas.items():
            if meta is not None and credentials and path == config.metadata_log_dir:
                raise UserError(
                    f"--add-scram: {path} is formatted already; strata user create adds users to a running cluster"
                )
            if meta is not None and meta.cluster_id != chosen:
                raise UserError(
                    f"log directory {path} belongs to cluster {meta.cluster_id}, not to {chosen}"
                )
        for path, disk in disks.items():
            if metas[path] is None:
                mine = voters.voter(node_id) if voters and path == config.metadata_log_dir else None
                directory_id = mine.directory_id if mine else None
                format_directory(path, disk, node_id, chosen, entropy, directory_id)
                if credentials and path == config.metadata_log_dir:
                    write_first_users(disk, credentials, SystemClock().now_ms())
                if voters is not None and mine is not None:
                    write_first_voters(disk, voters, SystemClock().now_ms())
                lines.append(f"formatted {path} for node {node_id} of cluster {chosen}")
            else:
                lines.append(f"left {path} as it is")
    finally:
        for disk in disks.values():
            disk.close()
    return lines


def check_cluster_id(text: str) -> None:
    """Raise UserError unless the text is a cluster id as Kafka makes them."""
    from stratalog.errors import UserError
    from stratalog.wire.ids import topic_id_parse

    try:
        topic_id_parse(text)
    except ValueError:
        raise UserError(
            f"--cluster-id: {text!r} is not accepted; accepted: 22 characters of A-Z a-z 0-9 - _"
        ) from None


def locked_disk(path: str) -> Any:
    """Return a log directory, locked against brokers. Raises UserError if a broker has locked it."""
    from stratalog.adapters.local_disk import LocalDisk
    from stratalog.errors import UserError

    try:
        disk = LocalDisk(path)
    except OSError as error:
        raise UserError(f"log directory {path}: {error.strerror}") from None
    if not disk.lock():
        raise UserError(f"log directory {path} is in use by another process (its .lock is held)")
    return disk


@storage_app.command()
def info(properties: PropertiesFile = None, override: Overrides = None, json: Json = False) -> None:
    """Show the owner and the contents of log directories. Works beside a running broker.

    Example: strata storage info server.properties --json
    """
    config = load_config(properties, override)
    show([describe_directory(path) for path in config.log_dirs], as_json=json)


def describe_directory(path: str) -> dict[str, Any]:
    """Return one log directory as a row, without changing it."""
    from stratalog.adapters.local_disk import LocalDisk
    from stratalog.broker.storage.claim import read_meta
    from stratalog.log.checkpoints import CLEAN_SHUTDOWN
    from stratalog.wire.ids import topic_id_text

    check_exists(path)
    disk = LocalDisk(path)
    try:
        meta = read_meta(path, disk)
        entries = disk.list("")
        names = {entry.name for entry in entries}
        partitions = [
            entry.name for entry in entries if is_partition(entry.name, entry.is_directory)
        ]
        directory_id = meta.directory_id if meta else None
        return {
            "directory": path,
            "formatted": meta is not None,
            "cluster_id": meta.cluster_id if meta else None,
            "node_id": meta.node_id if meta else None,
            "directory_id": topic_id_text(directory_id) if directory_id else None,
            "clean_shutdown": CLEAN_SHUTDOWN in names,
            "partitions": len(partitions),
            "bytes": sum(file.size for name in partitions for file in disk.list(name)),
        }
    finally:
        disk.close()


def check_exists(path: str) -> None:
    """Raise UserError for a missing log directory, because opening it would create one."""
    from pathlib import Path

    from stratalog.errors import UserError

    if not Path(path).is_dir():
        raise UserError(f"log directory {path} does not exist")


def is_partition(name: str, is_directory: bool) -> bool:
    """Return whether a directory's entry is a partition that counts, `topic-N`."""
    return is_directory and name.rpartition("-")[2].isdecimal()


@storage_app.command("repair")
def repair_storage(
    properties: PropertiesFile = None,
    override: Overrides = None,
    accept_loss: Annotated[
        bool,
        typer.Option("--accept-loss", help="Remove the damaged parts; keep a copy of each file."),
    ] = False,
    json: Json = False,
) -> None:
    """Check the metadata log and the offsets of groups, and remove damaged parts. The broker must be stopped.

    Without --accept-loss it only prints the records that would be lost: exit 1 if there are any. A topic whose records
    are removed from the metadata log no longer exists; its directories stay where they are.

    Example: strata storage repair server.properties --accept-loss
    """
    from stratalog.errors import Corrupt

    config = load_config(properties, override)
    rows: list[dict[str, Any]] = []
    for path in config.log_dirs:
        check_exists(path)
        disk = locked_disk(path)
        try:
            rows += repair_directory(path, disk, accept_loss=accept_loss)
        except Corrupt as error:
            raise Corrupt(
                f"{path}/{error}: restore the node from its bucket (docs/recovery.md)"
            ) from error
        finally:
            disk.close()
    if json:
        show_json(rows)
    for row in () if json else rows:
        typer.echo(row["reason"])
        for line in row["goes"]:
            typer.echo(f"  {line}")
        if row["copy"] is not None:
            typer.echo(f"  cut; what it was is in {row['copy']}")
    if not rows:
        note("sound: there is nothing to repair")
    elif not accept_loss:
        note("nothing was changed; with --accept-loss this goes, and a copy of each file is kept")
        raise typer.Exit(1)


def repair_directory(path: str, disk: Any, *, accept_loss: bool) -> list[dict[str, Any]]:
    """Find damaged parts of a log directory and, where the loss is accepted, cut them; return a row for each."""
    from stratalog.ops.repair import losses, repair

    found = losses(disk)
    copies = repair(disk, found) if accept_loss else {}
    return [
        {
            "file": f"{path}/{loss.path}",
            "byte": loss.start,
            "offset": loss.offset,
            "reason": f"{path}/{loss.reason}",
            "goes": list(loss.goes),
            "copy": f"{path}/{copies[loss.path]}" if accept_loss else None,
        }
        for loss in found
    ]
