"""The client settings that a command connects with: a file, a named profile, or the current profile.

In: `--config` and `--profile`, or their variables. Out: properties by Kafka's names, and the brokers to ask. It never
writes, and shows no value.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "chosen_servers",
    "client_properties",
    "named_servers",
    "running",
    "use_client_config",
    "use_none",
]

_SECURITY = ("security.", "ssl.", "sasl.")


@dataclass(slots=True)
class Chosen:
    """`profile` None: the current one, if any. Empty: none."""

    path: Path | None = None
    profile: str | None = None
    is_on_command_line: bool = False
    context: typer.Context | None = None
    """The command that asks a cluster, with its arguments."""


_CHOSEN = Chosen()


def use_client_config(context: typer.Context, path: Path | None, profile: str | None) -> None:
    """Connect with this file or profile from now on: the command line beats the environment. Raises UserError."""
    from stratalog.errors import UserError

    typed = {name for name in ("config", "profile") if source_of(context, name) == "COMMANDLINE"}
    if path is not None and profile and len(typed) != 1:
        raise UserError("--config and --profile: both are set; accepted: one of them")
    if typed == {"profile"}:
        path = None
    elif path is not None:
        profile = ""
    _choose(Chosen(path, profile, bool(typed)))


def use_none() -> None:
    """Connect without settings from now on, as to a broker that this command has started itself."""
    _choose(Chosen(profile=""))


def forget() -> None:
    """Forget the options of a command that has ended."""
    _choose(Chosen())


def _choose(chosen: Chosen) -> None:
    _CHOSEN.path, _CHOSEN.profile = chosen.path, chosen.profile
    _CHOSEN.is_on_command_line = chosen.is_on_command_line
    _CHOSEN.context = chosen.context


def running() -> typer.Context | None:
    """Return the command that asks a cluster; None where no command runs."""
    return _CHOSEN.context


def client_properties() -> dict[str, str]:
    """Return the security settings of the file or profile. Raises UserError, OSError."""
    from stratalog.adapters.references import resolved

    found = _properties().items()
    return resolved({name: text for name, text in found if name.startswith(_SECURITY)})


def named_servers() -> str:
    """Return `bootstrap.servers` of the file or profile, or "". Raises UserError, OSError."""
    from stratalog.adapters.references import resolved

    name = "bootstrap.servers"
    return resolved({name: _properties().get(name, "")})[name].strip()


def chosen_servers(context: typer.Context, param: typer.CallbackParam, value: str) -> str:
    """Return the brokers to ask: of -b, of the file or profile, of the default. Raises as above.

    STRATA_BOOTSTRAP_SERVER comes before them, unless the command line names the file or profile.
    """
    _CHOSEN.context = context
    source = source_of(context, param.name or "")
    is_set = source == "COMMANDLINE" or (source == "ENVIRONMENT" and not _CHOSEN.is_on_command_line)
    return value if is_set or context.resilient_parsing else named_servers() or value


def source_of(context: typer.Context, name: str) -> str:
    """Return where a parameter's value comes from: COMMANDLINE, ENVIRONMENT, DEFAULT …"""
    source = context.get_parameter_source(name)
    return source.name if source is not None else ""


def _properties() -> "Mapping[str, str]":
    if _CHOSEN.path is not None:
        from stratalog.config import parse_properties

        return parse_properties(_CHOSEN.path.read_text())
    if _CHOSEN.profile == "":
        return {}
    from stratalog.cli.shared.client_profiles import Profiles

    return Profiles.read().properties(_CHOSEN.profile)
