"""Get the tokens with which this process logs in by OAUTHBEARER.

In: a `TokenSource`. Out: a token, the same one until most of its life is over. It never shows a secret or a token.

Kafka: `FileJwtRetriever`, `ClientCredentialsJwtRetriever`.
"""

import json
import time
from base64 import b64encode
from typing import Final
from urllib.parse import quote_plus, urlencode

from stratalog.adapters.documents import read_document
from stratalog.errors import Unavailable, UserError
from stratalog.ports import TokenSource

__all__ = ["access_token"]

_OF_LIFE: Final = 0.8
"""The part of a token's life after which another one is asked for (Kafka: `sasl.login.refresh.window.factor`)."""
_KEPT: dict[TokenSource, tuple[float, str]] = {}


def access_token(source: TokenSource) -> str:
    """Return a token; blocking where the server must be asked. A file is read each time: another program renews it.

    Raises UserError where the server refuses the client, Unavailable where it does not answer.
    """
    try:
        return _token(source)
    except (Unavailable, UserError) as error:
        raise type(error)(f"sasl.oauthbearer.token.endpoint.url: {error}") from error


def _token(source: TokenSource) -> str:
    if source.url.startswith("file:"):
        return read_document(source.url).decode("latin-1").strip()
    until_s, token = _KEPT.get(source, (0.0, ""))
    if time.monotonic() < until_s:
        return token
    pair = (source.client_id, source.client_secret)
    user, secret = map(quote_plus, pair) if source.is_encoded else pair
    form = {"grant_type": "client_credentials"} | ({"scope": source.scope} if source.scope else {})
    login = b64encode(f"{user}:{secret}".encode()).decode()
    asked_s = time.monotonic()
    body = read_document(source.url, urlencode(form).encode(), {"Authorization": f"Basic {login}"})
    try:
        found = json.loads(body)
        token, lifetime_s = found["access_token"], float(found.get("expires_in") or 0)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise Unavailable(f"{source.url}: the answer has no access_token") from None
    if not isinstance(token, str) or not token.isascii() or not token.isprintable():
        raise UserError(f"{source.url}: the answer's access_token is no token")
    _KEPT[source] = (asked_s + lifetime_s * _OF_LIFE, token)
    return token
