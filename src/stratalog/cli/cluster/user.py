"""`strata user`: users that log in by SCRAM to a running cluster.

In: names, mechanisms, passwords from a file or the standard input. Out: rows of users. It shows no password and no key.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stratalog.cli.shared.known_words import words
from stratalog.cli.shared.terminal import (
    DEFAULT_BOOTSTRAP,
    BootstrapServer,
    Json,
    connected,
    note,
    run,
    show,
)

if TYPE_CHECKING:
    from stratalog.client.users import Credential

user_app = typer.Typer(
    help="Users that log in by SCRAM: create, alter, delete and list them.", no_args_is_help=True
)
_DEFAULT_MECHANISM = "SCRAM-SHA-256"
_ITERATIONS = 4096
Name = Annotated[str, typer.Argument(metavar="USER", help="As alice.")]
Mechanisms = Annotated[
    list[str] | None,
    typer.Option(
        "--mechanism",
        metavar="NAME",
        autocompletion=words("SCRAM-SHA-256", "SCRAM-SHA-512"),
        help=f"SCRAM-SHA-256 or SCRAM-SHA-512; may be repeated. By default {_DEFAULT_MECHANISM}.",
    ),
]
Iterations = Annotated[
    int, typer.Option(metavar="NUMBER", help="4096 to 16384: more make guessing slower.")
]
PasswordFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="The password is its first line. Without it the command asks, or reads the standard input.",
    ),
]


@user_app.command("list")
def list_users(bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP, json: Json = False) -> None:
    """List users, and the mechanisms that they log in with.

    Example: strata user list
    """
    run(print_users(bootstrap_server, json))


def _setting(name: str, text: str, *, is_new: bool) -> None:
    """Add a command that sets a password; the two differ only in the users that they accept."""

    @user_app.command(name, help=f"{text}\n\nExample: strata user {name} alice --password-file p")
    def _set(
        user: Name,
        mechanism: Mechanisms = None,
        iterations: Iterations = _ITERATIONS,
        password_file: PasswordFile = None,
        bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    ) -> None:
        wanted = _credentials(user, mechanism, iterations, password_file)
        run(set_users(bootstrap_server, wanted, is_new=is_new))


_setting(
    "create",
    "Create a user, or give one a further mechanism. A mechanism that the user has already is refused.",
    is_new=True,
)
_setting("alter", "Change a user's password. Open connections stay.", is_new=False)


@user_app.command()
def delete(
    user: Name,
    mechanism: Mechanisms = None,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
) -> None:
    """Delete a user, or only some of its mechanisms. Open connections stay.

    Example: strata user delete alice
    """
    run(delete_user(bootstrap_server, user, _checked(mechanism) if mechanism else None))


async def print_users(bootstrap: str, as_json: bool) -> None:
    """Print one row for each mechanism of each user."""
    from stratalog.client.users import describe_users

    async with connected(bootstrap) as client:
        found = await client.on_any(describe_users())
    rows = [
        {"user": user, "mechanism": mechanism, "iterations": iterations}
        for user in sorted(found)
        for mechanism, iterations in sorted(found[user].items())
    ]
    show(rows, as_json=as_json, empty="no users")


async def set_users(bootstrap: str, wanted: "Sequence[Credential]", *, is_new: bool) -> None:
    """Set credentials of one user. Raises UserError where the user has, or lacks, one of the mechanisms."""
    from stratalog.client.users import describe_users, set_credentials
    from stratalog.errors import UserError

    async with connected(bootstrap) as client:
        found = await client.on_any(describe_users())
        for one in wanted:
            if (one.mechanism in found.get(one.user, {})) == is_new:
                state, remedy = ("has", "alter") if is_new else ("lacks", "create")
                raise UserError(
                    f"user {one.user!r} {state} {one.mechanism}; strata user {remedy} changes that"
                )
        await client.on_any(set_credentials(wanted))
    note(f"user {wanted[0].user!r} logs in with {', '.join(one.mechanism for one in wanted)}")


async def delete_user(bootstrap: str, user: str, mechanisms: Sequence[str] | None) -> None:
    """Delete these mechanisms of a user, or all. Raises UserError where it has none."""
    from stratalog.client.users import delete_credentials, describe_users
    from stratalog.errors import UserError

    async with connected(bootstrap) as client:
        found = (await client.on_any(describe_users())).get(user, {})
        gone = list(mechanisms or found)
        if not gone:
            raise UserError(f"there is no user {user!r}; strata user list shows all")
        await client.on_any(delete_credentials(user, gone))
    note(f"deleted of user {user!r}: {', '.join(gone)}")


def _credentials(
    user: str, mechanisms: list[str] | None, iterations: int, password_file: Path | None
) -> "list[Credential]":
    from stratalog.client.users import Credential

    chosen = _checked(mechanisms or [_DEFAULT_MECHANISM])
    password = _password(password_file)
    return [Credential(user, one, iterations, password) for one in chosen]


def _checked(mechanisms: list[str]) -> list[str]:
    """Return the mechanisms, each once. Raises UserError for an unknown one."""
    from stratalog.errors import UserError
    from stratalog.wire.scram import MECHANISMS

    for one in mechanisms:
        if one not in MECHANISMS:
            raise UserError(
                f"--mechanism {one!r} is not accepted; accepted: {', '.join(MECHANISMS)}"
            )
    return list(dict.fromkeys(mechanisms))


def _password(path: Path | None) -> str:
    """Return the first line of the file, of the standard input, or what a person types. Raises UserError for none."""
    import sys

    from stratalog.errors import UserError

    if path is None and sys.stdin.isatty():
        return str(typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True))
    try:
        text = sys.stdin.readline() if path is None else path.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise UserError(f"--password-file {path}: cannot be read: {error}") from error
    password = text.splitlines()[0] if text.splitlines() else ""
    if not password:
        raise UserError("the password is empty; give it by --password-file or the standard input")
    return password
