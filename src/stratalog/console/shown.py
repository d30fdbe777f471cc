"""Show a record's bytes to a person: as text, as JSON, or in hex.

In: bytes of unknown origin. Out: text without characters that move, hide or reorder what stands beside them. The
templates escape it.
"""

from typing import Any, Final
from unicodedata import category

from stratalog.client.json_text import indented

__all__ = ["FORMATS", "shown", "visible"]

FORMATS: Final = ("text", "json", "hex")
_UNSEEN: Final = {"Cc", "Cf", "Co", "Cs", "Cn", "Zl", "Zp"}
_HEX_WIDTH: Final = 16


def shown(data: bytes | None, form: str, bytes_max: int) -> dict[str, Any]:
    """Return `{text, form, bytes, is_cut}` of at most `bytes_max` bytes; the text is None for no bytes at all.

    Bytes that are not UTF-8 are shown in hex, and JSON that is none as text: `form` says what it became.
    """
    if data is None:
        return {"text": None, "form": form, "bytes": None, "is_cut": False}
    cut = data[:bytes_max]
    is_cut = len(cut) < len(data)
    text = None if form == "hex" else _text(cut, is_cut=is_cut)
    if text is None:
        form, text = "hex", _hex(cut)
    elif form == "json":
        pretty = None if is_cut else _pretty(text)
        form, text = ("text", text) if pretty is None else ("json", pretty)
    return {"text": text, "form": form, "bytes": len(data), "is_cut": is_cut}


def _text(data: bytes, *, is_cut: bool) -> str | None:
    for spare in range(4 if is_cut else 1):  # a cut may go through a character
        try:
            text = data[: len(data) - spare].decode("utf-8")
        except UnicodeDecodeError:
            continue
        return visible(text)
    return None


def visible(text: str) -> str:
    """Return the text with an escape for each character that moves, hides or reorders its neighbours."""
    if text.isprintable():
        return text
    return "".join(one if _is_seen(one) else _escaped(one) for one in text)


def _is_seen(one: str) -> bool:
    return one in "\n\t" or category(one) not in _UNSEEN


def _escaped(one: str) -> str:
    return one.encode("unicode_escape").decode("ascii")


def _pretty(text: str) -> str | None:
    try:
        return indented(text)
    except ValueError:
        return None


def _hex(data: bytes) -> str:
    lines = []
    digits = 4 if len(data) <= 1 << 16 else 8  # a line with four fits a value's column
    for at in range(0, len(data), _HEX_WIDTH):
        part = data[at : at + _HEX_WIDTH]
        letters = "".join(chr(one) if 32 <= one < 127 else "." for one in part)
        lines.append(f"{at:0{digits}x}  {part.hex(' '):<{_HEX_WIDTH * 3 - 1}}  {letters}")
    return "\n".join(lines)
