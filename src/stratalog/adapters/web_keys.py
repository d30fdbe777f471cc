"""Check the signatures of JSON Web Tokens; the only use of PyJWT.

In: a JSON Web Key Set (RFC 7517), tokens. Out: a token's claims. It reads no clock, and never decides what a claim
permits.

Only signatures by private keys count. A key that both sides know (HS256) would let a broker issue tokens.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from stratalog.config.shown import shown
from stratalog.errors import UserError

__all__ = ["WebKeys", "read_web_keys"]

_ALGORITHMS: Final = frozenset(
    "ES256 ES384 ES512 EdDSA PS256 PS384 PS512 RS256 RS384 RS512".split()
)
_TRIED_MAX: Final = 16
"""Keys tried for a token that names none."""


class WebKeys:
    """`ports.TokenKeys`: the keys of one set."""

    def __init__(self, text: bytes) -> None:
        """Raises ValueError for text that is no key set, or has no key for signatures."""
        try:
            found = json.loads(text)["keys"]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise ValueError("it is no JSON Web Key Set") from None
        self._keys = [
            key
            for key in found
            if isinstance(key, dict) and key.get("kty") != "oct" and key.get("use", "sig") == "sig"
        ]
        if not self._keys:
            raise ValueError("it has no public key for signatures")
        self._ready: dict[tuple[int, str], Any] = {}

    def knows(self, token: str) -> bool:
        """Return whether the set has the key that the token names. A malformed token needs no other set."""
        try:
            return bool(self._candidates(_header(token)))
        except ValueError:
            return True

    def claims(self, token: str) -> Mapping[str, Any]:
        """Return the claims of a token that one of the keys has signed. Raises ValueError for any other."""
        import jwt  # noqa: PLC0415 - few listeners

        header = _header(token)
        for place in self._candidates(header):
            try:
                payload = jwt.PyJWS().decode(
                    token, self._key(place, header["alg"]), algorithms=[header["alg"]]
                )
                claims = json.loads(payload)
            except (jwt.PyJWTError, ValueError, RecursionError):
                continue
            if isinstance(claims, dict):
                return claims
        raise ValueError("no key of the set has signed the token")

    def _candidates(self, header: Mapping[str, Any]) -> list[int]:
        name = header.get("kid")
        return [
            place
            for place, key in enumerate(self._keys)
            if (name is None or key.get("kid") == name)
            and key.get("alg", header["alg"]) == header["alg"]
        ][:_TRIED_MAX]

    def _key(self, place: int, algorithm: str) -> Any:
        import jwt  # noqa: PLC0415 - as above

        found = self._ready.get((place, algorithm))
        if found is None:
            found = self._ready[place, algorithm] = jwt.PyJWK(self._keys[place], algorithm)
        return found


def _header(token: str) -> Mapping[str, Any]:
    """Return the header of a token. Raises ValueError for one that is malformed or not signed as accepted."""
    import jwt  # noqa: PLC0415 - as above

    try:
        header = jwt.get_unverified_header(token)
    except (jwt.PyJWTError, RecursionError) as error:
        raise ValueError(str(error)) from None
    if header.get("alg") not in _ALGORITHMS:
        raise ValueError("its algorithm is not accepted")
    if "crit" in header:
        raise ValueError("its header demands an extension")
    return header


def read_web_keys(url: str) -> WebKeys:
    """Read the key set at a URL; blocking. Raises UserError for an unusable one, Unavailable without an answer."""
    try:
        import jwt  # noqa: F401, PLC0415 - as above
    except ImportError:
        raise UserError(
            "tokens of OAUTHBEARER need the package PyJWT; pip install 'stratalog[oauth]'"
        ) from None
    from stratalog.adapters.documents import read_document  # noqa: PLC0415 - as above

    try:
        return WebKeys(read_document(url))
    except ValueError as error:
        raise UserError(f"{shown(url)}: {error}") from None
