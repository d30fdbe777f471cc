"""The logins of the console: users with passwords (basic), and tokens (bearer).

In: the text of a file, the header of a request. Out: whether the request is let in. It shows and keeps no password,
only digests.
"""

from base64 import b64encode
from hashlib import sha256
from hmac import compare_digest
from typing import Final, Self

from stratalog.errors import UserError

__all__ = ["CHALLENGES", "Logins"]

CHALLENGES: Final = (
    'Basic realm="strata console", charset="UTF-8"',
    'Bearer realm="strata console"',
)
"""A header each: Chromium reads one challenge a header, and asks for no password where it cannot."""
_SECRET_MIN: Final = 8
"""The fewest characters of a password or a token."""


class Logins:
    """The accepted values of the header `Authorization`."""

    def __init__(self, accepted: list[bytes]) -> None:
        self._digests = [sha256(one).digest() for one in accepted]

    @classmethod
    def read(cls, text: str, name: str) -> Self:
        """Read lines `USER:PASSWORD` and lines of one token. Raises UserError that names the file and the line."""
        accepted = []
        for number, line in enumerate(text.splitlines(), 1):
            if not line.strip() or line.startswith("#"):
                continue
            user, colon, password = line.partition(":")
            secret = password if colon else line
            if (colon and not user) or len(secret) < _SECRET_MIN or not secret.isprintable():
                raise UserError(
                    f"{name}: line {number} is not accepted; accepted: USER:PASSWORD or a token, "
                    f"a secret has {_SECRET_MIN} characters or more"
                )
            if colon:
                accepted.append(b"basic " + b64encode(line.encode()))
            else:
                accepted.append(b"bearer " + line.strip().encode())
        if not accepted:
            raise UserError(f"{name}: no login; accepted: lines of USER:PASSWORD, or of a token")
        return cls(accepted)

    def accept(self, header: str) -> bool:
        """Return whether a request's header is one of these; the time tells neither bytes nor length of any."""
        scheme, _, rest = header.partition(" ")
        given = sha256(f"{scheme.lower()} {rest.strip()}".encode("utf-8", "replace")).digest()
        return sum(compare_digest(given, one) for one in self._digests) > 0
