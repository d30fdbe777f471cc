"""Judge the dates of a server's certificates: one that has expired, or does so soon, deserves a warning.

In: certificates, the time. Out: what is wrong with each store, and the remedy. Nothing is refused: a client decides by
its own clock.
"""

from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import groupby
from typing import Final, NamedTuple

from stratalog.ports import Certificate

__all__ = ["SOON_S", "Problem", "problems"]

SOON_S: Final = 14 * 86_400
"""How long before its end a certificate deserves a warning."""
_DAY_S: Final = 86_400


class Problem(NamedTuple):
    """The worst certificate of a store. Dates are UTC in ISO 8601."""

    file: str
    """The file, or the setting that has the certificate itself."""
    problem: str
    not_before: str
    not_after: str
    remedy: str


def problems(certificates: Iterable[Certificate], now_s: float) -> list[Problem]:
    """Return a problem for each store with a certificate that is not valid at `now_s`, or not for much longer."""
    found = []
    for _, of_store in groupby(certificates, key=lambda one: (one.setting, one.location)):
        store = list(of_store)
        doubtful = [one for one in store if _what(one, now_s)]
        if doubtful:
            worst = min(doubtful, key=lambda one: one.ends_s)
            what = f"certificate {store.index(worst) + 1} of {len(store)}"
            found.append(_problem("the certificate" if len(store) == 1 else what, worst, now_s))
    return found


def _what(one: Certificate, now_s: float) -> str:
    if one.ends_s < now_s:
        return "has expired"
    if one.begins_s > now_s:
        return "is not valid yet"
    left_s = one.ends_s - now_s
    return f"expires in {left_s / _DAY_S:.0f} days" if left_s < SOON_S else ""


def _problem(which: str, one: Certificate, now_s: float) -> Problem:
    own = one.setting.endswith("keystore")
    remedy = "renew it" if own else "renew it, or remove it from the file"
    if one.begins_s > now_s:
        remedy = "check this machine's clock, or use a certificate that is valid now"
    return Problem(
        one.location or f"{one.setting}.{'certificate.chain' if own else 'certificates'}",
        f"{which} {_what(one, now_s)}",
        _date(one.begins_s),
        _date(one.ends_s),
        remedy,
    )


def _date(epoch_s: float) -> str:
    return datetime.fromtimestamp(epoch_s, UTC).isoformat()
