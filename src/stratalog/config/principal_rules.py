"""Turn the distinguished name of a client's certificate into the name of its principal.

In: the text of `ssl.principal.mapping.rules`, a distinguished name. Out: a name. It reads no certificate.

Kafka: `SslPrincipalMapper` (KIP-371), with the meaning of Java's patterns and replacements. A rule that would make Java
fail at a login is refused at the start.
"""

import re
from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from stratalog.config.java_patterns import java_pattern
from stratalog.config.kinds import BadValue

__all__ = ["PrincipalRule", "is_name", "name_by_rules", "parse_rules"]

_PART: Final = r"((?:\\.|[^\\/])*)/"
_RULE: Final = re.compile(rf"\s*(?:(DEFAULT)|RULE:{_PART}{_PART}([LU]?)|)\s*(,|$)", re.ASCII)
"""As Kafka's: an item between two commas may be empty, and a slash within a part is written \\/."""
_CONTROLS: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_PIECE: Final = re.compile(r"\\(.)|\$\{(\w+)\}|\$([0-9]+)|([^\\$]+)", re.ASCII | re.DOTALL)


class PrincipalRule(Struct, frozen=True):
    """`pattern` None is DEFAULT. `replacement` has texts, and numbers of groups.

    `case` is L for lower, U for upper, "" for neither.
    """

    pattern: re.Pattern[str] | None = None
    replacement: tuple[str | int, ...] = ()
    case: str = ""

    def apply(self, name: str) -> str | None:
        """Return the new name; None where the pattern does not match the whole name."""
        if self.pattern is None:
            return name
        if self.pattern.fullmatch(name) is None:
            return None
        result = "".join(self._replaced(self.pattern, name))
        return {"L": result.lower, "U": result.upper}.get(self.case, lambda: result)()

    def _replaced(self, pattern: re.Pattern[str], name: str) -> Iterator[str]:
        """Yield the name with each match replaced: the pattern may also match parts of it, and at its end again.

        After an empty match Java goes on at the next character, where Python's `sub` looks for a longer one.
        """
        copied = at = 0
        while at <= len(name) and (found := pattern.search(name, at)) is not None:
            yield name[copied : found.start()]
            for one in self.replacement:
                yield (found[one] or "") if isinstance(one, int) else one
            copied, at = found.end(), found.end() + (found.start() == found.end())
        yield name[copied:]


def parse_rules(text: str) -> tuple[PrincipalRule, ...]:
    """Return the rules. Raises BadValue, also where there is none: no client would have a name."""
    rules = tuple(_rules(text.strip()))
    if not rules:
        raise BadValue("there is no rule")
    return rules


def _rules(text: str) -> Iterator[PrincipalRule]:
    position = 0
    while position < len(text):
        found = _RULE.match(text, position)
        if found is None:
            raise BadValue(f"no rule begins at {text[position : position + 40]!r}")
        is_default, pattern, replacement, case, _ = found.groups()
        position = found.end()
        if is_default:
            yield PrincipalRule()
        elif pattern is not None:
            compiled = java_pattern(pattern)
            yield PrincipalRule(compiled, tuple(_replacement(replacement, compiled)), case)


def _replacement(text: str, pattern: re.Pattern[str]) -> Iterator[str | int]:
    """Read a replacement as `Matcher.appendReplacement` does. Raises BadValue."""
    position = 0
    while position < len(text):
        found = _PIECE.match(text, position)
        if found is None:
            raise BadValue(f"the replacement {text!r} has a $ without a group")
        escaped, name, digits, plain = found.groups()
        position = found.end()
        if digits:
            number, used = _group(digits, pattern.groups)
            position -= len(digits) - used
        else:
            number = pattern.groupindex.get(name, -1)
        if (digits or name) and not 0 <= number <= pattern.groups:
            raise BadValue(f"the replacement {text!r} names a group that its pattern does not have")
        yield number if digits or name else escaped or plain


def _group(digits: str, groups: int) -> tuple[int, int]:
    """Return the number of a group, and how many digits belong to it: as many as make a group that exists."""
    number, used = int(digits[0]), 1
    while used < len(digits) and number * 10 + int(digits[used]) <= groups:
        number, used = number * 10 + int(digits[used]), used + 1
    return number, used


def name_by_rules(rules: tuple[PrincipalRule, ...], name: str) -> str | None:
    """Return the result of the first rule that matches; None where no rule does, or where the result is no name."""
    for rule in rules:
        result = rule.apply(name)
        if result is not None:
            return result if is_name(result) else None
    return None


def is_name(text: str) -> bool:
    """Return whether a principal may have this name: it has no line break, and no other control character."""
    return _CONTROLS.search(text) is None
