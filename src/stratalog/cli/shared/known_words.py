"""Complete words in a shell that need no broker: accepted words, names of profiles and settings.

In: the beginning of a word. Out: words. It never prints an error: a shell has no place for one.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from stratalog.config.kinds import Setting

__all__ = ["broker_settings", "profiles", "setting_names", "settings", "topic_settings", "words"]


def profiles(incomplete: str) -> list[str]:
    """Return names of profiles that begin with the typed text; none where their file is damaged."""
    from stratalog.cli.shared.client_profiles import Profiles
    from stratalog.errors import UserError

    try:
        return [name for name in sorted(Profiles.read().by_name) if name.startswith(incomplete)]
    except UserError:
        return []


def words(*accepted: str) -> Callable[[str], list[str]]:
    """Return the completion of an option that accepts these words, perhaps among others."""

    def complete(incomplete: str) -> list[str]:
        return [one for one in accepted if one.startswith(incomplete)]

    return complete


def broker_settings(incomplete: str) -> list[str]:
    """Return NAME= of a broker's settings, or NAME=VALUE after the equals sign."""
    from stratalog.config.broker_settings import BROKER_SETTINGS

    return assignments(BROKER_SETTINGS.values(), incomplete)


def topic_settings(incomplete: str) -> list[str]:
    """Return NAME= of a topic's settings, or NAME=VALUE after the equals sign."""
    from stratalog.config.topic_settings import TOPIC_SETTINGS

    return assignments((one.setting for one in TOPIC_SETTINGS.values()), incomplete)


def settings(context: typer.Context, incomplete: str) -> list[str]:
    """Return NAME= or NAME=VALUE of the command's resource: a broker where one was typed, else a topic."""
    of_broker = context.params.get("broker") is not None
    return broker_settings(incomplete) if of_broker else topic_settings(incomplete)


def setting_names(context: typer.Context, incomplete: str) -> list[str]:
    """Return names of the settings of the command's resource."""
    return [one.removesuffix("=") for one in settings(context, incomplete)]


def assignments(of_resource: "Iterable[Setting]", incomplete: str) -> list[str]:
    """Return NAME= of each setting with this beginning; after the equals sign NAME=VALUE of its accepted words."""
    wanted, equals, _ = incomplete.partition("=")
    if not equals:
        return sorted(f"{one.name}=" for one in of_resource if one.name.startswith(wanted))
    return [
        typed
        for one in of_resource
        if one.name == wanted
        for word in _accepted(one)
        if (typed := f"{wanted}={word}").startswith(incomplete)
    ]


def _accepted(setting: "Setting") -> tuple[str, ...]:
    from stratalog.config.kinds import Kind, OneOf

    if isinstance(setting.check, OneOf):
        return setting.check.words
    return ("true", "false") if setting.kind is Kind.BOOLEAN else ()
