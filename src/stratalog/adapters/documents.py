"""Read a small document from a file or a web server.

In: a `file:` or `https:` URL. Out: bytes; UserError for a URL that is not accepted, Unavailable without the document.
It follows no redirect, repeats nothing, and shows no body that it sends. `http:` is for this machine alone.

The authorities are the system's, or those of OpenSSL's variable `SSL_CERT_FILE`.
"""

import http.client
import ssl
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

from stratalog.config.shown import shown
from stratalog.errors import Unavailable, UserError

__all__ = ["check_document_url", "read_document"]

_BYTES_MAX: Final = 1 << 20
_TIMEOUT_S: Final = 10.0


def read_document(url: str, form: bytes = b"", headers: Mapping[str, str] | None = None) -> bytes:
    """Return the document; with `form`, post that form. Blocking, at most some 10 s for each step."""
    parts = check_document_url(url)
    if parts.scheme == "file":
        try:
            with Path(unquote(parts.path)).open("rb") as file:
                return _bounded(url, file.read(_BYTES_MAX + 1))
        except OSError as error:
            raise Unavailable(f"{shown(url)}: {error.strerror or error}") from error
    assert parts.hostname is not None, "checked"
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        context = ssl.create_default_context()
        connection = http.client.HTTPSConnection(
            parts.hostname, parts.port, timeout=_TIMEOUT_S, context=context
        )
    else:
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=_TIMEOUT_S)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    sent = {"Accept": "application/json", **(headers or {})}
    if form:
        sent["Content-Type"] = "application/x-www-form-urlencoded"
    try:
        connection.request("POST" if form else "GET", path, form or None, sent)
        answer = connection.getresponse()
        body = answer.read(_BYTES_MAX + 1)
    except ssl.SSLCertVerificationError as error:
        raise UserError(f"{shown(url)}: {error.verify_message}") from error
    except (OSError, http.client.HTTPException) as error:
        raise Unavailable(f"{shown(url)}: {str(error) or type(error).__name__}") from error
    finally:
        connection.close()
    if answer.status in {400, 401, 403}:
        raise UserError(f"{shown(url)}: the server refuses the request with status {answer.status}")
    if answer.status != http.client.OK:
        raise Unavailable(f"{shown(url)}: the server answered with status {answer.status}")
    return _bounded(url, body)


def _bounded(url: str, body: bytes) -> bytes:
    if len(body) > _BYTES_MAX:
        raise UserError(f"{shown(url)}: the document has more than {_BYTES_MAX} bytes")
    return body


def check_document_url(url: str) -> SplitResult:
    """Return the URL's parts. Raises UserError for one that is not accepted."""
    refused = UserError(
        f"{shown(url)!r} is not accepted; accepted: file:///PATH, https://HOST/PATH, or http: of this machine, "
        "in ASCII without spaces"
    )
    try:
        parts = urlsplit(url)
        port, host = parts.port, parts.hostname
    except ValueError:  # of the port, or brackets that do not match
        raise refused from None
    if parts.scheme == "file":
        is_accepted = bool(parts.path) and not parts.netloc and "\0" not in unquote(parts.path)
    else:
        is_secret = parts.scheme == "https" or (parts.scheme == "http" and _is_here(host))
        is_plain = url.isascii() and url.isprintable() and " " not in url
        is_accepted = is_secret and is_plain and bool(host) and port != 0 and parts.username is None
    if not is_accepted:
        raise refused
    return parts


def _is_here(host: str | None) -> bool:
    if host == "localhost":
        return True
    try:
        return host is not None and ip_address(host).is_loopback
    except ValueError:
        return False
