"""Check the signatures of JSON Web Tokens; the only use of PyJWT.

In: a JSON Web Key Set (RFC 7517), tokens. Out: a token's claims. It reads no clock, and never decides what a claim
permits.

Only signatures by private keys count. A key that both sides know (HS256) would let a broker issue tokens. Tokens come
from clients that have not logged in: a header is bounded before it is parsed, and parsed once.
"""

import json
from base64 import b64decode
from collections.abc import Mapping
from typing import Any, Final

from stratalog.config.shown import shown
from stratalog.errors import UserError

__all__ = ["WebKeys", "read_web_keys"]

_ALGORITHMS: Final = frozenset(
    "ES256 ES384 ES512 EdDSA PS256 PS384 PS512 RS256 RS384 RS512".split()
)
_HEADER_MAX: Final = 4096
"""Characters of a header in base64; one with a chain of certificates has some thousand."""
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

    def claims(self, token: str) -> Mapping[str, Any]:
        """Return the claims of a token that one of the keys has signed.

        Raises LookupError where the set lacks the key that the token names, ValueError for any other token.
        """
        import jwt  # noqa: PLC0415 - few listeners

        signed, _, signature = token.rpartition(".")
        written_header, _, payload = signed.partition(".")
        header = _header(written_header)
        places = self._candidates(header)
        if not places:
            raise LookupError("the set lacks the key that the token names")
        proof = _decoded(signature)
        for place in places:
            try:
                key = self._key(place, header["alg"])
            except jwt.PyJWTError:  # a key of another kind
                continue
            if key.Algorithm.verify(signed.encode(), key.key, proof):
                return _object(payload)
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


def _header(text: str) -> Mapping[str, Any]:
    """Return the header of a token. Raises ValueError for one that is malformed or not signed as accepted."""
    if len(text) > _HEADER_MAX:
        raise ValueError("its header is too long")
    header = _object(text)
    algorithm = header.get("alg")
    if not isinstance(algorithm, str) or algorithm not in _ALGORITHMS:
        raise ValueError("its algorithm is not accepted")
    if "crit" in header:
        raise ValueError("its header demands an extension")
    return header


def _object(text: str) -> Mapping[str, Any]:
    """Return the object of JSON in base64. Raises ValueError."""
    try:
        found = json.loads(_decoded(text))
    except RecursionError:
        raise ValueError("its JSON is nested too deeply") from None
    if not isinstance(found, dict):
        raise ValueError("it is no object of JSON")  # noqa: TRY004 - a token, no argument
    return found


def _decoded(text: str) -> bytes:
    """Return the bytes of base64 without padding (RFC 7515). Raises ValueError."""
    return b64decode(text + "=" * (-len(text) % 4), altchars="-_", validate=True)


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
