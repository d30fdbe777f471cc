"""`strata`: run the command, and turn each failure into one line.

In: a command line. Out: an exit code: 0; 1 where a check found damage; 2 where a person must act. It never does the
work of a command, and never prints a traceback for anything but a bug.
"""

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typer.exceptions import TyperException


def main() -> None:
    """Run the command line and exit."""
    code: object = 0
    try:
        code = exit_code(sys.argv[1:])
        if sys.stdout is not None:  # closed by the caller
            sys.stdout.flush()
    except BrokenPipeError:
        # The reader closed the output. Python flushes once more at exit, into /dev/null.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)  # type: ignore[arg-type]


def exit_code(words: Sequence[str]) -> object:
    """Run the command line, print a failure, and return the exit code. Raises BrokenPipeError."""
    try:
        run(words)
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # typer makes it exit code 1
            raise end.__context__ from None
        return end.code
    except BrokenPipeError:
        raise
    except failures() as error:
        explained = explanation(error)
        if explained is None:
            raise
        line, code = explained
        print(f"strata: {line}", file=sys.stderr)
        return code
    return 0


_MEANINGS = {
    "KAFKA_STORAGE_ERROR": "the broker cannot use the disk of the partition; the broker's log says why"
}
"""Messages for error codes that a broker may send without one."""


def failures() -> tuple[type[BaseException], ...]:
    """Return the exceptions that a person can act on, alone or in a task group; imported only after a failure."""
    from stratalog.errors import Corrupt, Fenced, Rejected, Unavailable, UserError

    ours = (Corrupt, Fenced, Rejected, Unavailable, UserError)
    return *ours, OSError, UnicodeEncodeError, BaseExceptionGroup


def explanation(error: BaseException) -> tuple[str, int] | None:
    """Return a failure as (one line, exit code); None for a bug, which deserves its traceback."""
    from stratalog.errors import Corrupt, Fenced, Rejected, Unavailable, UserError

    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    match error:
        case Rejected(code=code, message=message):
            name = code.name.upper()
            message = message or _MEANINGS.get(name, "")
            text = message.replace(code.name, name)
            text = text if name in text else f"{text} ({name})" if text else name
            text = "; ".join([text, *getattr(error, "__notes__", ())])
        case UserError() | Unavailable() | Fenced() | Corrupt():
            text = str(error)
        case OSError():
            text = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        case UnicodeEncodeError() if odd := [n for n, one in enumerate(sys.argv) if is_odd(one)]:
            text = f"argument {odd[0]} is not UTF-8; accepted: names in UTF-8"  # it may be a secret
        case _:
            return None
    line = "".join(one if one.isprintable() else ascii(one)[1:-1] for one in " ".join(text.split()))
    return line, 1 if isinstance(error, Corrupt) else 2


def is_odd(word: str) -> bool:
    """Return whether an argument has bytes that are not UTF-8: Python keeps them as surrogates."""
    return any("\ud800" <= one <= "\udfff" for one in word)


def run(words: Sequence[str]) -> None:
    """Run the command of these arguments. A server starts without typer where that reads the arguments alike."""
    if words[-1:] == ["-h"]:
        words = [*words[:-1], "--help"]
    if words[:1] == ["server"]:
        from stratalog.cli.node.serving import plain_words, serve

        plain = plain_words(words[1:])
        if plain is not None:
            serve(plain)
            return
    import typer
    from typer.exceptions import TyperException

    from stratalog.cli.app import app
    from stratalog.errors import UserError

    try:  # completion needs the same name for every way to start the command
        code = app(list(words), prog_name="strata", standalone_mode=False)
    except typer.Abort:
        sys.exit("Aborted!")
    except TyperException as error:
        if "\n" not in error.format_message():
            raise UserError(misuse(error)) from None
        print(error.format_message(), file=sys.stderr)  # a group's page of help
        code = error.exit_code
    sys.exit(code or 0)


_ACCEPTED = {
    "int_parsing": "a whole number",
    "float_parsing": "a number",
    "greater_than_equal": "{ge} or more",
    "less_than_equal": "{le} or less",
}
"""The values that an option accepts, by the kind of pydantic's error."""


def misuse(error: "TyperException") -> str:
    """Return typer's complaint about a command line, with the value and the remedy."""
    text = error.format_message()
    for found in getattr(error.__cause__, "errors", list)()[:1]:
        name = text.partition("'")[2].partition("'")[0]
        accepted = _ACCEPTED.get(found["type"], "").format(**found.get("ctx", {}))
        message = found["msg"].removeprefix("Value error, ")
        refusal = f"{found['input']!r} is not accepted; accepted: {accepted}"
        text = f"{name}: {refusal if accepted else message}"
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "strata"
    return f"{text.rstrip('.')} (see: {command} --help)"


if __name__ == "__main__":
    main()
