r"""Match names with a regular expression of a client, in time linear in the name (KIP-1152).

In: a pattern of RE2's syntax, names. Out: whether the pattern matches a whole name. It never backtracks, as Python's
`re` does: a client's pattern would hold the event loop for hours.

A pattern is compiled to instructions. The set of instructions that a prefix of the name has reached is the state; one
more character leads to the next set. Not supported, and refused: `\b`, `\B`, Unicode classes `\p`, the flags `m` and
`U`. Backward references and look-around are no part of RE2.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

from stratalog.errors import ErrorCode, Rejected

__all__ = ["Pattern"]

_CHARACTERS_MAX: Final = 1000
_INSTRUCTIONS_MAX: Final = 1000
_REPEAT_MAX: Final = 1000
_DEPTH_MAX: Final = 50
_CACHED_MAX: Final = 1000
_Test = Callable[[str], bool]
_Compile = Callable[[int], int]
"""Adds the instructions of a part of the pattern, given the instruction that follows it; returns the first one."""


@dataclass(slots=True)
class _Instruction:
    """`test` takes one character; `edge` takes none, at the name's start or end only; else a fork to all of `after`."""

    after: list[int]
    test: _Test | None = None
    edge: Literal["", "start", "end"] = ""


class Pattern:
    """A compiled pattern."""

    def __init__(self, text: str) -> None:
        """Raises Rejected: INVALID_REGULAR_EXPRESSION."""
        self._code: list[_Instruction] = [_Instruction([])]
        """The instruction 0 is the match."""
        parser = _Parser(text, self._code)
        self._entry = parser.whole()(0)
        self._cache: dict[tuple[frozenset[int], str], frozenset[int]] = {}

    def progress(self, name: str) -> Iterator[bool]:
        """Yield after each character whether the pattern matches, if the name ends there; the last item counts."""
        reached = self._closed({self._entry}, is_start=True)
        yield self._matches(reached, is_start=True)
        for character in name:
            key = reached, character
            found = self._cache.get(key)
            if found is None:
                if len(self._cache) >= _CACHED_MAX:
                    self._cache.clear()
                found = self._cache[key] = self._step(reached, character)
            reached = found
            yield self._matches(reached, is_start=False)
            if not reached:
                return

    def _step(self, reached: frozenset[int], character: str) -> frozenset[int]:
        after: set[int] = set()
        for at in reached:
            one = self._code[at]
            if one.test is not None and one.test(character):
                after.update(one.after)
        return self._closed(after, is_start=False)

    def _matches(self, reached: frozenset[int], *, is_start: bool) -> bool:
        return 0 in reached or 0 in self._closed(set(reached), is_start=is_start, is_end=True)

    def _closed(self, found: set[int], *, is_start: bool, is_end: bool = False) -> frozenset[int]:
        """Return the instructions, and those that they reach without a character."""
        left = list(found)
        while left:
            one = self._code[left.pop()]
            if one.test is not None or (one.edge == "start" and not is_start):
                continue
            if one.edge == "end" and not is_end:
                continue
            new = [at for at in one.after if at not in found]
            found.update(new)
            left += new
        return frozenset(found)


class _Parser:
    """A recursive descent over the pattern's text. Each method consumes what its name says."""

    def __init__(self, text: str, code: list[_Instruction]) -> None:
        self._text = text
        self._at = 0
        self._code = code
        self._flags: frozenset[str] = frozenset()
        self._depth = 0

    def whole(self) -> _Compile:
        if len(self._text) > _CHARACTERS_MAX:
            raise self._refusal(f"longer than {_CHARACTERS_MAX} characters")
        found = self._choice()
        if self._at < len(self._text):
            raise self._refusal("unmatched )")
        return found

    def _choice(self) -> _Compile:
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            raise self._refusal(f"more than {_DEPTH_MAX} nested groups")
        flags = self._flags
        ways = [self._sequence()]
        while self._took("|"):
            ways.append(self._sequence())
        self._flags = flags
        self._depth -= 1
        if len(ways) == 1:
            return ways[0]
        return lambda after: self._add(_Instruction([way(after) for way in ways]))

    def _sequence(self) -> _Compile:
        parts: list[_Compile] = []
        while self._at < len(self._text) and self._text[self._at] not in "|)":
            parts.append(self._repeated(self._one()))

        def compile_parts(after: int) -> int:
            for part in reversed(parts):
                after = part(after)
            return after

        return compile_parts

    def _repeated(self, part: _Compile) -> _Compile:
        while (bounds := self._bounds()) is not None:
            self._took("?")  # a lazy repeat: a match of the whole name is the same
            part = self._repeat(part, *bounds)
        return part

    def _repeat(self, part: _Compile, low: int, high: int | None) -> _Compile:
        def compile_repeat(after: int) -> int:
            if high is None:
                fork = self._add(_Instruction([after]))
                self._code[fork].after.append(part(fork))
                after = fork
            else:
                end = after
                for _ in range(high - low):
                    after = self._add(_Instruction([part(after), end]))
            for _ in range(low):
                first = part(after)
                if first == after:
                    break  # an empty part; nested repeats of it would take for ever
                after = first
            return after

        return compile_repeat

    def _bounds(self) -> tuple[int, int | None] | None:
        for sign, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._took(sign):
                return bounds
        end = self._text.find("}", self._at)
        if not self._text.startswith("{", self._at) or end < 0:
            return None
        first, comma, last = self._text[self._at + 1 : end].partition(",")
        if not _is_number(first) or not (last == "" or _is_number(last)):
            return None  # RE2 takes such a brace for itself
        self._at = end + 1
        low = int(first)
        high = low if not comma else int(last) if last else None
        if max(low, high or 0) > _REPEAT_MAX or (high is not None and high < low):
            raise self._refusal("a repeat out of bounds")
        return low, high

    def _one(self) -> _Compile:
        character = self._next()
        if character == "(":
            return self._group()
        if character == "[":
            return self._taking(self._class())
        if character == "\\":
            return self._escaped()
        if character in "*+?":
            raise self._refusal("a repeat of nothing")
        if character in "^$":
            return self._edge("start" if character == "^" else "end")
        if character == ".":
            return self._taking(_any if "s" in self._flags else _any_of_a_line)
        return self._taking(self._literal(character))

    def _group(self) -> _Compile:
        flags = self._flags
        if self._took("?P<") or self._took("?<"):
            end = self._text.find(">", self._at)
            if not self._text[self._at : max(end, self._at)].isidentifier():
                raise self._refusal("a group without a name")
            self._at = end + 1
        elif self._took("?") and self._flagged() == ")":
            return lambda after: after  # flags until the end of the group around
        found = self._choice()
        if not self._took(")"):
            raise self._refusal("missing )")
        self._flags = flags
        return found

    def _flagged(self) -> str:
        """Take the flags of a group; return the character after them."""
        on = True
        while (character := self._next()) not in ":)":
            if character == "-":
                on = False
            elif character in "is":
                self._flags = self._flags | {character} if on else self._flags - {character}
            else:
                raise self._refusal(f"the flag {character}")
        return character

    def _escaped(self) -> _Compile:
        if self._took("A"):
            return self._edge("start")
        if self._took("z"):
            return self._edge("end")
        return self._taking(self._escape())

    def _escape(self) -> _Test:
        """Take the rest of an escape, in or out of a class."""
        character = self._next()
        if character in _CLASSES:
            return _CLASSES[character]
        if character.lower() in _CLASSES:
            inner = _CLASSES[character.lower()]
            return lambda one: not inner(one)
        return self._literal(self._code_point(character))

    def _code_point(self, character: str) -> str:
        """Return the character that an escape names."""
        if character in _CONTROLS:
            return _CONTROLS[character]
        if character == "x":
            digits = self._text[self._at : self._at + 2]
            self._at += 2
            if digits.startswith("{"):
                end = self._text.find("}", self._at)
                digits = self._text[self._at - 1 : end]
                self._at = end + 1
            if not digits or any(one not in "0123456789abcdefABCDEF" for one in digits):
                raise self._refusal("\\x without hexadecimal digits")
            if int(digits, 16) > _LAST_CHARACTER:
                raise self._refusal("\\x beyond Unicode")
            return chr(int(digits, 16))
        if character.isalnum() or ord(character) >= 128:
            raise self._refusal(f"\\{character}")
        return character

    def _class(self) -> _Test:
        is_negated = self._took("^")
        tests: list[_Test] = []
        while not tests or not self._took("]"):
            tests.append(self._item())
        folded = self._folded(lambda one: any(test(one) for test in tests))
        return (lambda one: not folded(one)) if is_negated else folded

    def _item(self) -> _Test:
        """Take one part of a class: a named class, an escape, a character or a range."""
        if self._took("[:"):
            end = self._text.find(":]", self._at)
            name = self._text[self._at : max(end, self._at)]
            self._at = end + 2
            named = _NAMED.get(name.removeprefix("^"))
            if named is None:
                raise self._refusal(f"the class [:{name}:]")
            return (lambda one: not named(one)) if name.startswith("^") else named
        first = self._next()
        if first == "\\":
            if self._text[self._at : self._at + 1].lower() in _CLASSES:
                return self._escape()
            first = self._code_point(self._next())
        if self._text[self._at : self._at + 1] != "-" or self._text.startswith("-]", self._at):
            return lambda one: one == first
        self._at += 1
        last = self._next()
        if last == "\\":
            last = self._code_point(self._next())
        if last < first:
            raise self._refusal(f"the range {first}-{last}")
        return lambda one: first <= one <= last

    def _literal(self, character: str) -> _Test:
        return self._folded(lambda one: one == character)

    def _folded(self, test: _Test) -> _Test:
        if "i" not in self._flags:
            return test
        return lambda one: test(one) or test(one.lower()) or test(one.upper())

    def _taking(self, test: _Test) -> _Compile:
        return lambda after: self._add(_Instruction([after], test))

    def _edge(self, edge: Literal["start", "end"]) -> _Compile:
        return lambda after: self._add(_Instruction([after], edge=edge))

    def _add(self, one: _Instruction) -> int:
        if len(self._code) >= _INSTRUCTIONS_MAX:
            raise self._refusal("too large")
        self._code.append(one)
        return len(self._code) - 1

    def _took(self, text: str) -> bool:
        if not self._text.startswith(text, self._at):
            return False
        self._at += len(text)
        return True

    def _next(self) -> str:
        if self._at >= len(self._text):
            raise self._refusal("it ends too early")
        self._at += 1
        return self._text[self._at - 1]

    def _refusal(self, why: str) -> Rejected:
        return Rejected(ErrorCode.invalid_regular_expression, f"pattern {self._text!r}: {why}")


_LAST_CHARACTER: Final = 0x10FFFF


def _any(one: str) -> bool:  # noqa: ARG001
    return True


def _any_of_a_line(one: str) -> bool:
    return one != "\n"


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _among(characters: str) -> _Test:
    return frozenset(characters).__contains__


_DIGITS: Final = "0123456789"
_LOWER: Final = "abcdefghijklmnopqrstuvwxyz"
_PUNCTUATION: Final = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"
_GRAPH: Final = _DIGITS + _LOWER + _LOWER.upper() + _PUNCTUATION
_WORD: Final = _DIGITS + _LOWER + _LOWER.upper() + "_"
_CONTROLS: Final = {"a": "\a", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_CLASSES: Final = {"d": _among(_DIGITS), "s": _among("\t\n\f\r "), "w": _among(_WORD)}
_NAMED: Final = {
    "alnum": _among(_DIGITS + _LOWER + _LOWER.upper()),
    "alpha": _among(_LOWER + _LOWER.upper()),
    "ascii": str.isascii,
    "blank": _among("\t "),
    "cntrl": lambda one: one.isascii() and not one.isprintable(),
    "digit": _among(_DIGITS),
    "graph": _among(_GRAPH),
    "lower": _among(_LOWER),
    "print": _among(_GRAPH + " "),
    "punct": _among(_PUNCTUATION),
    "space": _among("\t\n\v\f\r "),
    "upper": _among(_LOWER.upper()),
    "word": _among(_WORD),
    "xdigit": _among(_DIGITS + "abcdefABCDEF"),
}
