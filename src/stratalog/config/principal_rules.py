"""Turn the distinguished name of a client's certificate into the name of its principal.

In: the text of `ssl.principal.mapping.rules`, a distinguished name. Out: a name. It reads no certificate.

Kafka: `SslPrincipalMapper` (KIP-371). Patterns are Java's there; those that Python reads differently are rare, and a
pattern that Python does not read is refused.
"""

import re
from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from stratalog.config.kinds import BadValue

__all__ = ["PrincipalRule", "is_name", "name_by_rules", "parse_rules"]

# As Kafka's RULE_PARSER: a slash within a part is written \/.
_RULE: Final = re.compile(r"\s*(?:(DEFAULT)|RULE:((?:\\/|[^/])*)/((?:\\/|[^/])*)/([LU]?))\s*(,|$)")
_CONTROLS: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_GROUP: Final = re.compile(r"\$(\d+)")


class PrincipalRule(Struct, frozen=True):
    """`pattern` None is DEFAULT. `case` is L for lower, U for upper, "" for neither."""

    pattern: re.Pattern[str] | None = None
    replacement: str = ""
    case: str = ""

    def apply(self, name: str) -> str | None:
        """Return the new name; None where the pattern does not match the whole name."""
        if self.pattern is None:
            return name
        found = self.pattern.fullmatch(name)
        if found is None:
            return None
        result = _GROUP.sub(lambda group: found[int(group[1])] or "", self.replacement)
        return {"L": result.lower, "U": result.upper}.get(self.case, lambda: result)()


def parse_rules(text: str) -> tuple[PrincipalRule, ...]:
    """Return the rules; raises BadValue. No text is DEFAULT."""
    rules = tuple(_rules(text.strip() or "DEFAULT"))
    for rule in rules:
        groups = [int(number) for number in _GROUP.findall(rule.replacement)]
        if rule.pattern is not None and any(one > rule.pattern.groups for one in groups):
            raise BadValue
    return rules


def _rules(text: str) -> Iterator[PrincipalRule]:
    position = 0
    while position < len(text):
        found = _RULE.match(text, position)
        if found is None:
            raise BadValue
        is_default, pattern, replacement, case, _ = found.groups()
        position = found.end()
        if is_default:
            yield PrincipalRule()
            continue
        try:
            compiled = re.compile(pattern.replace("\\/", "/"))
        except re.error:
            raise BadValue from None
        yield PrincipalRule(compiled, replacement.replace("\\/", "/"), case)


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
