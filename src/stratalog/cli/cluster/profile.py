"""`strata profile`: named client settings, so that a command names a cluster by one word.

In: names, a file of Kafka's client settings. Out: the user's file of profiles. It asks no broker, and shows no secret.
"""

from pathlib import Path
from typing import Annotated

import typer

from stratalog.cli.shared.known_words import profiles
from stratalog.cli.shared.terminal import Json, note, show

profile_app = typer.Typer(
    help="Named settings of a client: the brokers, TLS and a login.", no_args_is_help=True
)
_FILES = ("ssl.keystore.location", "ssl.truststore.location")
Name = Annotated[str, typer.Argument(metavar="NAME", help="As prod.", autocompletion=profiles)]


@profile_app.command()
def create(
    name: Name,
    properties: Annotated[
        Path | None,
        typer.Argument(
            metavar="CLIENT.PROPERTIES", help="Settings of Kafka's clients, as for --config."
        ),
    ] = None,
    bootstrap_server: Annotated[
        str | None,
        typer.Option(
            "--bootstrap-server",
            "-b",
            metavar="HOST:PORT",
            help="The brokers; by default bootstrap.servers of the file.",
        ),
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Overwrite the profile.")] = False,
) -> None:
    """Keep a file's settings under a name. The file's secrets are kept too, in a file of yours alone.

    Example: strata profile create prod client.properties -b broker:9093
    """
    from stratalog.cli.shared.client_profiles import Profiles, profiles_path

    profiles = Profiles.read()
    profiles.add(name, _settings(properties, bootstrap_server), replace=replace)
    profiles.write()
    note(
        f"profile {name!r} is in {profiles_path()}; strata profile use {name} makes it the default"
    )


@profile_app.command()
def use(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="As prod; without a name, no profile is used.",
            autocompletion=profiles,
        ),
    ] = "",
) -> None:
    """Use a profile for every command that names no other one.

    Example: strata profile use prod
    """
    from stratalog.cli.shared.client_profiles import Profiles

    profiles = Profiles.read()
    if name:
        profiles.check(name)
    profiles.current = name
    profiles.write()
    note(f"commands use the profile {name!r}" if name else "commands use no profile")


@profile_app.command("list")
def list_profiles(json: Json = False) -> None:
    """List profiles with their brokers and protocols, without secrets.

    Example: strata profile list
    """
    from stratalog.cli.shared.client_profiles import Profiles

    profiles = Profiles.read()
    rows = [
        {
            "profile": name,
            "current": name == profiles.current,
            "bootstrap_servers": found.get("bootstrap.servers", ""),
            "protocol": found.get("security.protocol", "PLAINTEXT"),
            "mechanism": found.get("sasl.mechanism", ""),
        }
        for name, found in sorted(profiles.by_name.items())
    ]
    show(rows, as_json=json, empty="no profiles; strata profile create adds one")


@profile_app.command()
def delete(name: Name) -> None:
    """Delete a profile with its secrets.

    Example: strata profile delete prod
    """
    from stratalog.cli.shared.client_profiles import Profiles

    profiles = Profiles.read()
    profiles.delete(name)
    profiles.write()
    note(f"deleted profile {name!r}")


def _settings(path: Path | None, bootstrap: str | None) -> dict[str, str]:
    """Return the settings to keep. Raises UserError for those that no client could connect with."""
    from stratalog.adapters.references import resolved
    from stratalog.client.cluster import parse_bootstrap
    from stratalog.client.security import security_of
    from stratalog.config import parse_properties
    from stratalog.errors import UserError

    found = dict(parse_properties(path.read_text(encoding="utf-8"))) if path is not None else {}
    if bootstrap is not None:
        found["bootstrap.servers"] = bootstrap
    if not found.get("bootstrap.servers", "").strip():
        raise UserError("no brokers; name them with -b or bootstrap.servers in the file")
    whole = resolved(found)
    try:
        parse_bootstrap(whole["bootstrap.servers"])
    except ValueError as error:
        raise UserError(f"bootstrap.servers: {error}") from None
    security_of(whole)
    # A command may run in any directory.
    places = {name: str(Path(found[name]).absolute()) for name in _FILES if found.get(name)}
    return {**found, **places}
