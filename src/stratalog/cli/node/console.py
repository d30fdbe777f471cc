"""`strata console`: a web page for a cluster.

In: a bootstrap list, a bucket's URL, an address. Out: a process that serves pages until SIGTERM, SIGINT or SIGHUP. It
is a client of the cluster, as any other.
"""

import os
import sys
from asyncio import Protocol
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from stratalog.cli.shared.schemas import RegistryUrl
from stratalog.cli.shared.terminal import DEFAULT_BOOTSTRAP, BootstrapServer, note, run

if TYPE_CHECKING:
    from collections.abc import Callable

    from stratalog.console.decoded import Registry
    from stratalog.console.history import History
    from stratalog.console.logins import Logins
    from stratalog.console.measured import Measured
    from stratalog.console.prices import Prices
    from stratalog.console.server import ConsoleServer
    from stratalog.ports import Outside, Security, Tls

DEFAULT_LISTEN = "127.0.0.1:8080"
READING_THREADS = 4
OTHERS = 0o007
"""The bits of a file's mode that let every user in."""
NICENESS = 10
"""A broker or a client beside it goes first: a page takes 20 ms of a core, and a produce 0.1 ms."""
MONITOR_S = 5.0
MONITOR_BYTES = 64 << 20
"""The longest wait for a monitor, and the largest scrape."""
REGISTRY_S = 4.0
"""The longest wait for the registry; a page may take 15 s."""

Monitors = Annotated[
    list[str] | None,
    typer.Option(
        metavar="HOST:PORT",
        help="A broker's monitor.listener, for charts of its metrics; may be repeated.",
    ),
]
Keystore = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Serve https: a PEM file of the key and its certificates."),
]
LoginsFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Ask for a login: lines of USER:PASSWORD, or of a bearer token."
    ),
]


def console(
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    tier: Annotated[
        str,
        typer.Option(
            metavar="URL", help="The cluster's bucket, as in tier.url: its history is shown too."
        ),
    ] = "",
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where to serve; port 0 is a free port.")
    ] = DEFAULT_LISTEN,
    ready_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write {url, pid} as JSON there once pages are served."),
    ] = None,
    allow_changes: Annotated[
        bool,
        typer.Option(
            "--allow-changes",
            help="Allow to create, alter and delete topics, to delete records and to reset offsets.",
        ),
    ] = False,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A further name by which browsers address the console; may be repeated.",
        ),
    ] = None,
    keystore: Keystore = None,
    logins: LoginsFile = None,
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure",
            help="Allow other machines without --keystore and --logins, as by a proxy.",
        ),
    ] = False,
    registry: RegistryUrl = "",
    prices: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Properties storage.gb.month and currency: what the bucket costs."
        ),
    ] = None,
    monitor: Monitors = None,
    while_stdin_open: Annotated[bool, typer.Option("--while-stdin-open", hidden=True)] = False,
) -> None:
    """Serve web pages about a cluster: topics, records, groups, history in the bucket.

    It listens on this machine alone unless --listen says otherwise; other machines need --keystore and --logins.
    Without --allow-changes it changes nothing.

    Example: strata console -b localhost:9092 --tier s3://bucket/prefix
    """
    names = tuple(allow_host or ())
    options = (ready_file, allow_changes, names, while_stdin_open, registry, prices)
    monitors = tuple(monitor or ())
    doors = Doors(keystore, logins, is_open=insecure)
    run(serve(Wanted(bootstrap_server, tier, listen, *options, doors, monitors)))


@dataclass(frozen=True, slots=True)
class Doors:
    """What keeps others out. `is_open`: nothing must."""

    keystore: Path | None
    logins: Path | None
    is_open: bool


@dataclass(frozen=True, slots=True)
class Wanted:
    """The command line."""

    bootstrap: str
    tier: str
    listen: str
    ready_file: Path | None
    allow_changes: bool
    names: tuple[str, ...]
    while_stdin_open: bool
    """Whether to end with the process that started this one: `strata server --console`."""
    registry: str
    prices: Path | None
    doors: Doors
    monitors: tuple[str, ...]


async def serve(wanted: Wanted) -> None:
    """Serve until a signal. Raises UserError for a malformed address, a bucket that is none, a port in use."""
    from stratalog.adapters.system import outside
    from stratalog.cli.shared.client_config import client_properties
    from stratalog.client.cluster import parse_bootstrap
    from stratalog.client.security import security_of
    from stratalog.console.cluster import Cluster
    from stratalog.console.page import Context
    from stratalog.console.server import ConsoleServer
    from stratalog.errors import UserError

    system = outside()
    host, port = address_of(wanted.listen)
    keys, logins = secured(wanted.doors, wanted.listen, host)
    try:
        parse_bootstrap(wanted.bootstrap)
    except ValueError as error:
        raise UserError(f"--bootstrap-server: {error}") from None
    history = history_at(wanted.tier, system) if wanted.tier else None
    security = security_of(client_properties())
    cluster = Cluster(system.network, wanted.bootstrap, system.clock, security)
    decoding = system.workers.start("console-records", 1, background=True)
    token = system.entropy.uuid().hex
    registry = registry_at(wanted.registry, system) if wanted.registry else None
    prices = None if wanted.prices is None else prices_at(wanted.prices)
    context = Context(
        cluster,
        history,
        decoding,
        wanted.allow_changes,
        token,
        registry,
        prices,
        measured_of(wanted.monitors, system),
    )
    server = ConsoleServer(context, host, wanted.names, logins, note)
    bound = await opened(server, system, wanted, port, keys)
    try:
        if keys.tls is not None:
            warn_of_dates(keys.tls, system.clock.now_ms() / 1000)
        await announced(wanted, host, bound)
    finally:
        await server.close()
        await decoding.close()
        if registry is not None:
            await registry.waiting.close()
        if history is not None:
            await history.close()


async def opened(
    server: "ConsoleServer", system: "Outside", wanted: Wanted, port: int, keys: "Security"
) -> int:
    """Return the bound port. Raises UserError for a port in use, and for an unusable keystore."""
    from stratalog.errors import UserError

    try:
        return await server.open(system.network, port, keys)
    except OSError as error:
        raise UserError(
            f"--listen: cannot listen on {wanted.listen}: {error.strerror or error}"
        ) from error
    except UserError as error:  # of the keystore, by the name that it has as a setting
        raise UserError(str(error).replace("--keystore.location", "--keystore")) from None


def warn_of_dates(keys: "Tls", now_s: float) -> None:
    """Print a line for a keystore whose certificate is not valid at `now_s`, or not for much longer."""
    from stratalog.adapters.tls_settings import certificates_of
    from stratalog.broker.network.certificate_dates import problems

    for one in problems(certificates_of(keys), now_s):
        between = f"{one.not_before} to {one.not_after}"
        note(
            f"warning: --keystore {one.file}: {one.problem} ({between}); {one.remedy}, and restart the console"
        )


async def announced(wanted: Wanted, host: str, port: int) -> None:
    """Print the address, write the ready file, and wait for a signal."""
    import asyncio
    import json

    from stratalog.adapters.system import on_stop_signal, write_ready_file

    os.nice(
        NICENESS
    )  # on Linux for this thread, which renders the pages; the others run in the background
    stopping = asyncio.Event()
    on_stop_signal(stopping.set)
    if wanted.while_stdin_open:
        await asyncio.get_running_loop().connect_read_pipe(lambda: Ending(stopping.set), sys.stdin)
    scheme = "http" if wanted.doors.keystore is None else "https"
    url = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
    note(f"The console of {wanted.bootstrap} is at {url}")
    if not is_local(host) and wanted.doors.logins is None:
        note(
            "warning: it has no login: any machine that reaches this address may read every record"
        )
    ready = json.dumps({"url": url, "pid": os.getpid()})
    if wanted.ready_file is not None:
        write_ready_file(str(wanted.ready_file), ready)
    if wanted.while_stdin_open:
        print(ready, flush=True)
    await stopping.wait()


def secured(doors: Doors, listen: str, host: str) -> "tuple[Security, Logins | None]":
    """Return the port's security and its logins. Raises UserError where other machines would reach it without both."""
    from stratalog.console.logins import Logins
    from stratalog.errors import UserError
    from stratalog.ports import PLAINTEXT, Security, Store, Tls

    is_whole = doors.keystore is not None and doors.logins is not None
    if not (is_whole or doors.is_open or is_local(host)):
        raise UserError(
            f"--listen {listen}: other machines reach it; accepted: with --keystore and --logins, or with --insecure"
        )
    logins = None
    if doors.logins is not None:
        try:
            if doors.logins.stat().st_mode & OTHERS:
                raise UserError(f"--logins {doors.logins}: all users can read it; chmod o-rwx")
            text = doors.logins.read_text(encoding="utf-8")
        except (OSError, UnicodeError) as error:
            raise UserError(f"--logins {doors.logins}: cannot be read: {error}") from error
        logins = Logins.read(text, f"--logins {doors.logins}")
    if doors.keystore is None:
        return PLAINTEXT, logins
    return Security("SSL", Tls(own=Store("--keystore", str(doors.keystore)))), logins


def history_at(url: str, system: "Outside") -> "History":
    """Open the bucket. Raises UserError for a URL that is none."""
    from stratalog.cli.shared.bucket import opened
    from stratalog.console.history import History

    reading = system.workers.start("console-bucket", READING_THREADS, background=True)
    verifying = system.workers.start("console-verify", 1, background=True)
    return History(opened(url), reading, verifying, system.clock)


def measured_of(monitors: tuple[str, ...], system: "Outside") -> "Measured | None":
    """Return the scrapes of monitors, not begun; None without monitors. Raises UserError for a malformed address."""
    from stratalog.adapters.http_request import ask, checked_url
    from stratalog.console.measured import Measured
    from stratalog.errors import Unavailable, UserError

    for one in monitors:
        if ":" not in one:
            raise UserError(f"--monitor: {one!r} is not accepted; accepted: host:port")
        checked_url(f"http://{one}/metrics", "--monitor")

    def fetch(address: str) -> str:
        answer = ask(f"http://{address}/metrics", timeout_s=MONITOR_S, bytes_max=MONITOR_BYTES)
        if answer.status != 200:
            raise Unavailable(
                f"it answers with status {answer.status}: is this a monitor.listener?"
            )
        return answer.body.decode("utf-8", "replace")

    return (
        Measured(
            monitors,
            fetch,
            system.workers.start("monitors", len(monitors), background=True),
            system.clock,
        )
        if monitors
        else None
    )


def prices_at(path: Path) -> "Prices":
    """Read a price file. Raises UserError, OSError."""
    from stratalog.config import parse_properties
    from stratalog.console.prices import prices_of

    return prices_of(str(path), parse_properties(path.read_text()))


def registry_at(url: str, system: "Outside") -> "Registry":
    """Return the schema registry at a URL, with a thread that waits for it. Raises UserError for a URL that is none."""
    from stratalog.cli.shared.schemas import schemas_at
    from stratalog.console.decoded import Registry

    return Registry(
        schemas_at(url, timeout_s=REGISTRY_S), system.workers.start("registry", 1, background=True)
    )


class Ending(Protocol):
    """Call `end` at the end of a pipe."""

    def __init__(self, end: "Callable[[], None]") -> None:
        self._end = end

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._end()


class Address(NamedTuple):
    """Where to listen."""

    host: str
    port: int


def address_of(text: str) -> Address:
    """Return host and port of `host:port`, IPv6 in brackets. Raises UserError."""
    from stratalog.errors import UserError

    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise UserError(f"--listen: {text!r} is not accepted; accepted: host:port")
    return Address(host.strip("[]"), int(port))


def is_local(host: str) -> bool:
    """Return whether only this machine reaches an address."""
    from ipaddress import ip_address

    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
