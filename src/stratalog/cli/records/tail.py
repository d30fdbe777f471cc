"""`strata tail`: follow files through their rotation, and send their lines to a topic.

In: paths, a topic. Out: each line as a record, once. `tailing.py` sends, `tailed_files.py` reads.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stratalog.cli.shared.completing import topics
from stratalog.cli.shared.known_words import words
from stratalog.cli.shared.terminal import DEFAULT_BOOTSTRAP, BootstrapServer, note, run

if TYPE_CHECKING:
    import re

    from stratalog.cli.records.line_records import LineRules
    from stratalog.cli.records.tailing import Tail

FORMATS = ("raw", "json")
STARTS = ("beginning", "end")

Paths = Annotated[
    list[str],
    typer.Argument(metavar="PATH", help="Files, or patterns in quotes: '/var/log/*.log'."),
]
Identity = Annotated[
    str,
    typer.Option(
        "--id",
        metavar="NAME",
        show_default=False,
        help="The name of this reader in state and cluster; by default TOPIC@HOST.",
    ),
]
StateDirectory = Annotated[
    Path | None,
    typer.Option(
        "--state-dir",
        metavar="DIR",
        help="Where positions are kept; by default ~/.local/state/strata/tail.",
    ),
]


Topic = Annotated[str, typer.Option(metavar="TOPIC", help="Where lines go.", autocompletion=topics)]
Start = Annotated[
    str,
    typer.Option(
        "--from",
        metavar="|".join(STARTS),
        autocompletion=words(*STARTS),
        help="Where files begin that exist at the first start; later ones begin at their beginning.",
    ),
]
Layout = Annotated[
    str,
    typer.Option(
        "--format",
        metavar="|".join(FORMATS),
        autocompletion=words(*FORMATS),
        help="json: an object with line, path, offset and host.",
    ),
]
Key = Annotated[
    str | None,
    typer.Option(metavar="REGEX", help="The key: the first group of its match in a record."),
]
MultiLine = Annotated[
    str | None,
    typer.Option(metavar="REGEX", help="Only a line that begins so begins a record."),
]
Codec = Annotated[
    str,
    typer.Option(
        metavar="CODEC",
        help="none, gzip, snappy, lz4 or zstd.",
        autocompletion=words("none", "gzip", "snappy", "lz4", "zstd"),
    ),
]
AtLeastOnce = Annotated[
    bool,
    typer.Option(
        "--at-least-once",
        help="No transactions: records carry a header strata-tail by which readers drop repeats.",
    ),
]
UntilEnd = Annotated[bool, typer.Option("--until-end", help="Stop at the files' ends.")]
EndsAfter = Annotated[
    float,
    typer.Option(
        metavar="S",
        min=0,
        help="A file ends after so long without a line, once another file has its place.",
    ),
]


def tail(
    paths: Paths,
    topic: Topic,
    identity: Identity = "",
    state_dir: StateDirectory = None,
    start: Start = "beginning",
    layout: Layout = "raw",
    key: Key = None,
    multi_line: MultiLine = None,
    compression: Codec = "none",
    at_least_once: AtLeastOnce = False,
    until_end: UntilEnd = False,
    ends_after: EndsAfter = 5.0,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
) -> None:
    r"""Follow files and send each line once, through rotations, kills and unreachable clusters.

    Rotation by rename, by copy and truncation, and into .gz, .xz, .bz2 and .zst is followed. Readers with
    read_committed see each line once: positions are part of each transaction. Lines of one file stay in one partition,
    unless --key gives them keys.

    Example: strata tail '/var/log/nginx/*.log' --topic visits

    Example: strata tail app.log --topic app --multi-line '\d{4}-'
    """
    from asyncio import CancelledError
    from platform import node

    from stratalog.cli.records.produce import COMPRESSIONS
    from stratalog.cli.records.tail_state import TailState
    from stratalog.cli.records.tailing import Tail, Wanted

    host = node()
    for option, value, accepted in (
        ("--from", start, STARTS),
        ("--format", layout, FORMATS),
        ("--compression", compression, COMPRESSIONS),
    ):
        check(option, value, accepted)
    wanted = Wanted(
        bootstrap_server,
        tuple(paths),
        topic,
        named(identity or f"{topic}@{host}"),
        rules_of(multi_line, key, layout, host),
        start == "end",
        compression,
        not at_least_once,
        until_end,
        0.0 if until_end else ends_after,
    )
    state = TailState.opened(state_dir or default_directory(), wanted.identity, topic)
    sending = Tail(wanted, state)
    try:
        run(interruptible(sending))
    except (KeyboardInterrupt, CancelledError):  # SIGINT, SIGTERM
        note("")
    finally:
        state.close()
    note(f"{sending.records} record(s) to {topic}")


async def interruptible(sending: "Tail") -> None:
    """Send until the files' ends, SIGINT or SIGTERM. Raises as `Tail.run`."""
    import asyncio
    import signal

    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await sending.run()


def rules_of(multi_line: str | None, key: str | None, layout: str, host: str) -> "LineRules":
    """Return how lines become records. Raises UserError for a pattern that is none."""
    from stratalog.cli.records.line_records import LineRules

    return LineRules(
        pattern_of("--multi-line", multi_line), pattern_of("--key", key), layout == "json", host
    )


def pattern_of(option: str, text: str | None) -> "re.Pattern[bytes] | None":
    """Return a pattern for bytes. Raises UserError."""
    import re

    from stratalog.errors import UserError

    try:
        return None if text is None else re.compile(text.encode())
    except re.error as error:
        raise UserError(f"{option}: {text!r} is not accepted: {error}") from None


def check(option: str, value: str, accepted: tuple[str, ...]) -> None:
    """Raise UserError for a value that is not accepted."""
    from stratalog.errors import UserError

    if value not in accepted:
        raise UserError(f"{option}: {value!r} is not accepted; accepted: {', '.join(accepted)}")


def named(identity: str) -> str:
    """Return a name that a file may have. Raises UserError."""
    import re

    from stratalog.errors import UserError

    if not re.fullmatch(r"[A-Za-z0-9._@-]{1,200}", identity) or identity.startswith("."):
        raise UserError(f"--id: {identity!r} is not accepted; accepted: letters, digits, . _ @ -")
    return identity


def default_directory() -> Path:
    """Return where positions are kept: XDG's place for a program's state."""
    import os

    home = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(home) / "strata" / "tail"
