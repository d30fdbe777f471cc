"""The kinds of failure, as few as a caller can act on.

In: nothing. Out: Kafka's error codes and five exceptions. It never formats a message for a client and never logs.

The wire codes are kio's table, generated from Kafka's own (`org.apache.kafka.common.protocol.Errors`). Bugs are
assertions, left on.
"""

from kio.schema.errors import ErrorCode

__all__ = ["Corrupt", "ErrorCode", "Fenced", "Rejected", "Unavailable", "UserError"]


class Rejected(Exception):
    """The request is refused: answer it with `code`, change nothing."""

    def __init__(self, code: ErrorCode, message: str = "") -> None:
        super().__init__(message or code.name)
        self.code = code
        self.message = message

    def __reduce__(self) -> tuple[type["Rejected"], tuple[ErrorCode, str]]:
        """Support pickling: a refusal may come from another process."""
        return Rejected, (self.code, self.message)


class Unavailable(Exception):
    """A disk, an object store or a broker did not answer, or refused for now: retry later."""


class Fenced(Exception):
    """A newer epoch holds the role: give the role up, delete nothing, write nothing."""


class Corrupt(Exception):
    """Bytes are not what was written: stop using them, name them, never serve them."""


class UserError(Exception):
    """A person's input is wrong: print the message as one line and exit with 2. Raised by cli and config only."""
