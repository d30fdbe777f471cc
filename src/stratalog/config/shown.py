"""Remove secrets from settings before a message shows them.

In: text from a user. Out: the text without anything that may be a secret. It never decides whether the text is valid.
"""

import re
from typing import Final

__all__ = ["name_in", "shown"]

_USER: Final = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*:/+)?.*@", re.DOTALL)
_QUERY: Final = re.compile(r"(?<=://)([^?]*\?).*", re.DOTALL)


def shown(text: str) -> str:
    """Return `text` without a user name and password before an `@`, and without a URL's query.

    A refused value may hold either, in a malformed URL, so the function removes the whole part without parsing it.
    """
    return _QUERY.sub(r"\1…", _USER.sub(r"\1…@", text))


def name_in(text: str) -> str:
    """Return the part at the start of `text` that can be a setting's name; what follows may be its value."""
    return re.split(r"[^\w.-]", text, maxsplit=1)[0]
