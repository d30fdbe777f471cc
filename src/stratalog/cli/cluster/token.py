"""`strata token`: delegation tokens of a running cluster.

In: owners, renewers, durations. Out: rows of tokens. Only `create` and `list --keys` show a key.
"""

from typing import TYPE_CHECKING, Annotated, Any

import typer

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
    from stratalog.client.tokens import Token

token_app = typer.Typer(
    help="Delegation tokens: create, list, renew and expire them.", no_args_is_help=True
)
TokenId = Annotated[str, typer.Argument(metavar="ID", help="As strata token list shows it.")]


@token_app.command()
def create(
    owner: Annotated[
        str | None,
        typer.Option(metavar="TYPE:NAME", help="As User:alice; by default the client itself."),
    ] = None,
    renewer: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TYPE:NAME", help="Another client that may renew it; may be repeated."
        ),
    ] = None,
    lifetime: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="The longest life, as 7d; by default the brokers' limit."
        ),
    ] = None,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Create a token, and print it with its key: keep the key as a password.

    Example: strata token create --lifetime 1d
    """
    for principal in (owner, *(renewer or ())):
        _check_principal(principal)
    lifetime_ms = -1 if lifetime is None else _ms(lifetime, "--lifetime")
    run(print_new_token(bootstrap_server, owner, renewer or [], lifetime_ms, json))


@token_app.command("list")
def list_tokens(
    owner: Annotated[
        list[str] | None,
        typer.Option(metavar="TYPE:NAME", help="Only those of this owner; may be repeated."),
    ] = None,
    keys: Annotated[bool, typer.Option("--keys", help="Show the keys, which are secrets.")] = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """List the tokens that the client may see.

    Example: strata token list
    """
    for principal in owner or ():
        _check_principal(principal)
    run(print_tokens(bootstrap_server, owner, keys, json))


@token_app.command()
def renew(
    token: TokenId,
    period: Annotated[
        str | None,
        typer.Option("--for", metavar="TIME", help="As 12h; by default the brokers' limit."),
    ] = None,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
) -> None:
    """Let a token live longer. Its owner and its renewers may.

    Example: strata token renew 0JRTgtfRTp6hPJzSBAJ1kw --for 12h
    """
    period_ms = -1 if period is None else _ms(period, "--for")
    run(change_token(bootstrap_server, token, period_ms, is_renewed=True))


@token_app.command()
def expire(
    token: TokenId,
    period: Annotated[
        str | None, typer.Option("--in", metavar="TIME", help="As 10m; by default at once.")
    ] = None,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
) -> None:
    """End a token, at once or after a time. Open sessions last until the end that they began with.

    Example: strata token expire 0JRTgtfRTp6hPJzSBAJ1kw
    """
    period_ms = -1 if period is None else _ms(period, "--in")
    run(change_token(bootstrap_server, token, period_ms, is_renewed=False))


async def print_new_token(
    bootstrap: str, owner: str | None, renewers: list[str], lifetime_ms: int, as_json: bool
) -> None:
    """Create a token and print its row. Raises Rejected."""
    from stratalog.client.tokens import create_token

    async with connected(bootstrap) as client:
        token = await client.on_any(create_token(owner, renewers, lifetime_ms))
    show([_row(token, with_key=True)], as_json=as_json)


async def print_tokens(
    bootstrap: str, owners: list[str] | None, with_keys: bool, as_json: bool
) -> None:
    """Print one row for each token that the client may see. Raises Rejected."""
    from stratalog.client.tokens import describe_tokens

    async with connected(bootstrap) as client:
        found = await client.on_any(describe_tokens(owners))
    rows = [
        _row(one, with_key=with_keys)
        for one in sorted(found, key=lambda one: (one.owner, one.issued_ms, one.token_id))
    ]
    show(rows, as_json=as_json, empty="no tokens")


async def change_token(bootstrap: str, token_id: str, period_ms: int, *, is_renewed: bool) -> None:
    """Renew or end a token by its id. Raises UserError for one that the client does not see, Rejected."""
    from stratalog.client.tokens import describe_tokens, expire_token, renew_token
    from stratalog.errors import UserError

    async with connected(bootstrap) as client:
        found = {one.token_id: one for one in await client.on_any(describe_tokens())}
        if token_id not in found:
            raise UserError(f"there is no token {token_id!r}; strata token list shows all")
        change = renew_token if is_renewed else expire_token
        end_ms = await client.on_any(change(found[token_id].key, period_ms))
    ended = not is_renewed and period_ms < 0
    note(f"token {token_id} {'ended' if ended else f'ends at {_time(end_ms)}'}")


def _row(token: "Token", *, with_key: bool) -> dict[str, Any]:
    from stratalog.wire.scram import encoded

    row = {
        "token": token.token_id,
        "owner": token.owner,
        "requester": token.requester,
        "renewers": list(token.renewers),
        "issued": _time(token.issued_ms),
        "expires": _time(token.expires_ms),
        "ends": _time(token.ends_ms),
    }
    return {**row, "key": encoded(token.key)} if with_key else row


def _time(ms: int) -> str:
    """Return a time as text; "never" for one that no calendar has."""
    from datetime import UTC, datetime

    try:
        return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds")
    except (OverflowError, ValueError, OSError):
        return "never"


def _ms(text: str, option: str) -> int:
    """Return milliseconds, at least 1. Raises UserError."""
    from stratalog.cli.shared.quantities import parse_duration_s
    from stratalog.errors import UserError

    ms = int(parse_duration_s(text, option) * 1000)
    if not 0 < ms < 1 << 63:
        raise UserError(f"{option}: {text!r} is not accepted; accepted: 1ms and more, as 12h or 7d")
    return ms


def _check_principal(principal: str | None) -> None:
    """Raise UserError for a principal that is none of a user."""
    from stratalog.errors import UserError

    if principal is not None and not (principal.startswith("User:") and principal[5:]):
        raise UserError(f"{principal!r} is not accepted; accepted: User:NAME, as User:alice")
