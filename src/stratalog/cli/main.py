"""`strata`: run the command, and turn each failure into one line.

In: a command line. Out: an exit code: 0; 1 where a check found damage; 2 where a person must act. It never does the
work of a command, and never prints a traceback for anything but a bug.
"""

import os
import sys
from collections.abc import Sequence


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

    return Corrupt, Fenced, Rejected, Unavailable, UserError, OSError, BaseExceptionGroup


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
        case UserError() | Unavailable() | Fenced() | Corrupt():
            text = str(error)
        case OSError():
            text = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        case _:
            return None
    return " ".join(text.split()), 1 if isinstance(error, Corrupt) else 2


def run(words: Sequence[str]) -> None:
    """Run the command of these arguments. A server starts without typer where that reads the arguments alike."""
    if words[:1] == ["server"]:
        from stratalog.cli.node.serving import plain_words, serve

        plain = plain_words(words[1:])
        if plain is not None:
            serve(plain)
            return
    from stratalog.cli.app import app

    app(prog_name="strata")  # completion needs the same name for every way to start the command


if __name__ == "__main__":
    main()
