"""Start a server without typer, because typer took a quarter of the start.

In: the words after `strata server`. Out: a broker that serves, or None where typer must read them (help, mistakes,
completion). It reads arguments exactly as typer does, which a test checks.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from stratalog.config import BrokerConfig
    from stratalog.node import Ready

_OPTIONS: Final = ("--override", "--ready-file", "--profile")


@dataclass(slots=True)
class ServerWords:
    """The arguments of `strata server`, by its parameters' names."""

    properties: Path | None = None
    override: list[str] = field(default_factory=list)
    ready_file: Path | None = None
    profile: str = ""
    console: bool = False


def plain_words(words: Sequence[str]) -> ServerWords | None:
    """Return the arguments as typer reads them; None unless they are whole options and at most one file."""
    found = ServerWords()
    rest = iter(words)
    for word in rest:
        if word == "--console":
            found.console = True
            continue
        name, equals, value = word.partition("=")
        if name in _OPTIONS:
            if not equals:
                value = next(rest, "-")
            if not value or value.startswith("-"):
                return None
            if name == "--override":
                found.override.append(value)
            elif name == "--ready-file":
                found.ready_file = Path(value)
            else:
                found.profile = value
        elif not word or word.startswith("-") or found.properties is not None:
            return None
        else:
            found.properties = Path(word)
    return found


def serve(words: ServerWords) -> None:
    """Serve until SIGTERM, SIGINT or SIGHUP. Raises UserError for a problem that the operator must fix."""
    from stratalog.adapters.quick_start import start_quickly

    start_quickly()
    config = load_config(words.properties, words.override, words.profile)
    from stratalog.process import run_server

    ready_file = None if words.ready_file is None else str(words.ready_file)
    if not words.console:
        run_server(config, ready_file)
        return
    from stratalog.cli.shared.console_beside import console_beside

    def console(ready: "Ready") -> "AbstractAsyncContextManager[str | None]":
        monitor = f"{config.monitor[0]}:{ready.monitor_port}" if config.monitor else ""
        return console_beside(f"{ready.host}:{ready.port}", config.tier_url, monitor)

    run_server(config, ready_file, console)


def load_config(
    properties: Path | None, overrides: Sequence[str] | None, profile: str = ""
) -> "BrokerConfig":
    """Return a broker's settings from file, environment, overrides and profile; warnings go to standard error."""
    import os

    from stratalog.config import BrokerConfig

    given = {} if properties is None else read_properties(properties)
    config, lines = BrokerConfig.load(given, overrides or (), os.environ, profile=profile)
    for line in lines:
        message = line if line.startswith("profile ") else f"warning: {line}"
        print(message, file=sys.stderr, flush=True)
    return config


def read_properties(path: Path) -> dict[str, str]:
    """Return the pairs of a properties file in UTF-8. Raises UserError for one that cannot be read."""
    from stratalog.config import parse_properties
    from stratalog.errors import UserError

    try:
        return parse_properties(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: not a properties file (it is not UTF-8)") from None
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
