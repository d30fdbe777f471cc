"""Say in a few words why a request to a cloud's store failed.

In: the text of an obstore error. Out: one line for a person. Such a text may hold an address with a password, or the
store's answer with a session's token, so the line never contains any other part of the text.
"""

import re
from typing import Final

__all__ = ["error_code", "is_refusal", "reason_of"]

_CODE: Final = re.compile(r"<Code>(\w+)</Code>", re.ASCII)
_MESSAGE: Final = re.compile(r"<Message>([^<\n]+)")
_STATUS: Final = re.compile(r"status code: (\d{3}[\w \t-]*)")
_REQUEST: Final = re.compile(r"Error performing [A-Z]+ https?://([^/\s?]+)\S* in .*? - (.*)")
_STORE: Final = re.compile(r"^Generic \w+ error: ")
_CAUSES: Final = (
    re.compile(r'message: "([^"]+)"'),  # of the operating system
    re.compile(r'error: "([^"]+)"'),  # of the resolver
    re.compile(r"InvalidCertificate\(\s*(\w+)"),
    re.compile(r"(InvalidContentType|TimedOut|IncompleteMessage)"),
)
_PLAIN: Final = {
    "InvalidContentType": "the server does not speak TLS there",
    "IncompleteMessage": "the server closed the connection",
    "TimedOut": "timed out",
    "UnknownIssuer": "no trusted authority signed the server's certificate",
}
_REFUSALS: Final = re.compile(r"(401|403)\b")


def error_code(text: str) -> str | None:
    """Return the code in the store's answer, such as NoSuchBucket; None where it gave none."""
    found = _CODE.search(text)
    return found[1] if found else None


def is_refusal(text: str) -> bool:
    """Return whether the store, or the service that gives keys, did not accept the keys."""
    status = _STATUS.search(text)
    code = error_code(text) or ""
    return (status is not None and bool(_REFUSALS.match(status[1]))) or code in {
        "ExpiredToken",
        "InvalidToken",
        "BlobUsesCustomerSpecifiedEncryption",  # Azure's 409: no key of the customer, or another one
    }


def reason_of(text: str) -> str:
    """Return the server, its status, code and message; or why it could not be reached."""
    first = _STORE.sub("", text.strip().partition("\n")[0])
    request = _REQUEST.search(first)
    server = request[1].rpartition("@")[2] if request else "the store"
    status = _STATUS.search(first)
    if status is not None:
        code, message = error_code(text), _MESSAGE.search(text)
        description = " ".join(filter(None, (status[1].strip(), code)))
        return f"{server} answered {description}" + (f": {message[1].strip()}" if message else "")
    if "HTTP error" in first:
        cause = next((found[1] for one in _CAUSES if (found := one.search(text))), "no answer")
        return f"{server} cannot be reached: {_PLAIN.get(cause, cause)}"
    return f"{server}: {request[2]}" if request else first
