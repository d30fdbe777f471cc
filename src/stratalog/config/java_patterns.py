r"""Compile a regular expression of Java's so that it means the same in Python.

In: a pattern as `java.util.regex.Pattern` reads it, without flags. Out: a Python pattern with Java's meaning; BadValue
names the construct that is not supported. It matches nothing itself.

In Java `\d`, `\w` and `(?i)` know ASCII alone, and `.` and `$` know five line terminators; `\b` is that of Java 19 and
newer. Not supported, and refused: `\p`, `\h`, `\R`, `\X`, `\G`, octal and control escapes, all flags but `i`, classes
within classes, and what only one of the two languages accepts.
"""

import re
from collections.abc import Generator, Iterator
from typing import Final, NoReturn

from stratalog.config.kinds import BadValue

__all__ = ["java_pattern"]

_END: Final = r"(?=\r\n\Z|(?<!\r)\n\Z|[\r\x85\u2028\u2029]?\Z)"
_SIGNS: Final = {".": r"[^\n\r\x85\u2028\u2029]", "$": _END, "^": r"\A", "|": "|", ")": ")"}
_EDGES: Final = {r"\A": r"\A", r"\z": r"\Z", r"\Z": _END, r"\b": r"\b", r"\B": r"\B"}
_ESCAPE: Final = r"\\(?:[tnrfa]|x[0-9a-fA-F]{2}|u(?![dD][89a-fA-F])[0-9a-fA-F]{4}|[^a-zA-Z0-9])"
_KIND: Final = r"\\[dDwWsS]"
_ONE: Final = rf"(?:{_ESCAPE}|[^\\\[\]&-]|&(?!&))"
_OUTSIDE: Final = re.compile(rf"{_ESCAPE}|{_KIND}|[^\\\[({{*+?]", re.DOTALL)
_RANGE: Final = re.compile(rf"({_ONE})-({_ONE})", re.DOTALL)
_INSIDE: Final = re.compile(rf"{_ONE}(?!-(?!\]))|{_KIND}(?!-(?!\]))|-(?=\])", re.DOTALL)
_QUOTED: Final = re.compile(r"\\Q(.*?)(?:\\E|\Z)", re.DOTALL)
_BACK: Final = re.compile(r"\\([1-9])(?![0-9])|\\k<([a-zA-Z][a-zA-Z0-9]*)>")
_OPEN: Final = re.compile(r"\((?:\?<([a-zA-Z][a-zA-Z0-9]*)>|\?(?:[:=!>]|<[=!]|-?i:)|(?!\?))")
_REPEAT: Final = re.compile(r"(?:[*+?]|\{[0-9]{1,9}(?:,[0-9]{0,9})?\})[?+]?")
_IGNORE_CASE: Final = "(?i)"


def java_pattern(text: str) -> re.Pattern[str]:
    """Return the pattern. Raises BadValue with the construct that is not supported, or with what is malformed."""
    ignores_case = text.startswith(
        _IGNORE_CASE
    )  # further on it would count for the rest alone, unlike in Python
    parts = _translated(text, len(_IGNORE_CASE) if ignores_case else 0)
    try:
        return re.compile("".join(parts), re.ASCII | (re.IGNORECASE if ignores_case else 0))
    except (re.error, OverflowError, RecursionError) as error:
        raise BadValue(f"the pattern {text!r} cannot be read: {error}") from None


def _translated(text: str, at: int) -> Iterator[str]:
    while at < len(text):
        if text[at] == "[":
            at = yield from _class(text, at)
        elif text[at] in _SIGNS:
            yield _SIGNS[text[at]]
            at += 1
        elif text[at : at + 2] in _EDGES:
            yield _EDGES[text[at : at + 2]]
            at += 2
        elif found := _QUOTED.match(text, at):
            yield re.escape(found[1])
            at = found.end()
        elif found := _BACK.match(text, at):
            yield f"(?P={found[2]})" if found[2] else rf"(?:\{found[1]})"
            at = found.end()
        elif found := _OPEN.match(text, at):
            yield f"(?P<{found[1]}>" if found[1] else found[0]
            at = found.end()
        elif found := _REPEAT.match(text, at):
            yield found[0]
            at = found.end()
        elif found := _OUTSIDE.match(text, at):
            yield _same(found[0])
            at = found.end()
        else:
            _refuse(text, at)


def _class(text: str, start: int) -> Generator[str, None, int]:
    """Yield a class of characters; return the position behind it."""
    at = start + 1
    yield "["
    if text.startswith("^", at):
        yield "^"
        at += 1
    first = at
    while not text.startswith("]", at) or at == first:
        if at == first and text.startswith("-", at):
            yield r"\-"
            at += 1
        elif found := _RANGE.match(text, at):
            yield f"{_same(found[1])}-{_same(found[2])}"
            at = found.end()
        elif found := _INSIDE.match(text, at):
            yield _same(found[0])
            at = found.end()
        else:
            _refuse(text, at)
    yield "]"
    return at + 1


def _same(one: str) -> str:
    """Return one character, or an escape that both languages know, as Python reads it."""
    if one[0] != "\\":
        return re.escape(one)
    return one if one[1].isascii() and one[1].isalpha() else re.escape(one[1])


def _refuse(text: str, at: int) -> NoReturn:
    raise BadValue(f"the pattern {text!r} has {text[at : at + 3]!r}, which is not supported")
