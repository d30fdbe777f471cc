"""Turn pages into HTML and JSON.

In: a `Page`. Out: bytes. Every value is escaped: a record, a topic's name or a setting never becomes markup.
"""

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from stratalog.console.page import Context, Page, path_of
from stratalog.console.shown import visible

__all__ = ["STATIC", "html", "json_bytes"]

_HERE: Final = Path(__file__).parent
STATIC: Final[Mapping[str, tuple[str, bytes]]] = {
    "console.css": ("text/css; charset=utf-8", (_HERE / "static/console.css").read_bytes()),
    "icon.svg": ("image/svg+xml", (_HERE / "static/icon.svg").read_bytes()),
    "console.js": ("text/javascript; charset=utf-8", (_HERE / "static/console.js").read_bytes()),
}
"""Files by name: their type and their bytes."""
_VERSION: Final = sha256(b"".join(data for _, data in STATIC.values())).hexdigest()[:12]
NOTHING: Final = "\N{EN DASH}"
_MS_MIN: Final = -62_135_596_800_000
_MS_MAX: Final = 253_402_300_799_999
_LINK: Final = re.compile(r"\[([^\]]+)\]\([^)]*\)")
_DIGITS_MAX: Final = 1e12
"""A measured number from here on is written with an exponent: its digits say nothing, and take a table's room."""
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def when(ms: int | None) -> Markup | str:
    """Return a time tag: UTC, which the console's JavaScript turns into the viewer's zone."""
    if ms is None or ms == -1:
        return NOTHING
    if not _MS_MIN <= ms <= _MS_MAX:
        return f"{ms} ms"
    moment = datetime.fromtimestamp(ms / 1000, UTC)
    text = moment.strftime("%Y-%m-%d %H:%M:%S") + " UTC"
    iso = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return Markup('<time datetime="{}" title="{}">{}</time>').format(iso, iso, text)


def size(number: float | None) -> str:
    """Return bytes in binary units."""
    if number is None:
        return NOTHING
    value, unit = float(number), 0
    while abs(value) >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return (
        f"{value:.0f} {_UNITS[unit]}"
        if unit == 0 or value >= 100
        else f"{value:.1f} {_UNITS[unit]}"
    )


def count(number: float | None) -> str:
    """Return a number with separators: a count with every digit; a rate with those that count."""
    if number is None:
        return NOTHING
    if isinstance(number, int):
        return f"{number:,}"
    return f"{number:,.1f}" if abs(number) < _DIGITS_MAX else f"{number:.3g}"


def money(amount: float) -> str:
    """Return an amount with two digits behind the point; the smallest that they show stands for smaller ones."""
    return f"{amount:,.2f}" if amount >= 0.01 or not amount else "< 0.01"


def price(amount: float) -> str:
    """Return a price with all the digits that were given, and without an exponent."""
    return f"{Decimal(repr(amount)):,f}".removesuffix(".0")


def span(seconds: float | None) -> str:
    """Return a time in its largest useful unit."""
    if seconds is None:
        return NOTHING
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.1f} {unit}"
    return f"{seconds:.1f} s"


def prose(text: str) -> Markup:
    """Return documentation in Markdown as HTML: code between backticks, and links as their text."""
    pieces = _LINK.sub(r"\1", text).split("`")
    return Markup("").join(
        Markup("<code>{}</code>").format(piece) if number % 2 else piece
        for number, piece in enumerate(pieces)
    )


def broken(name: str) -> Markup:
    """Return a setting's name that a line may break behind a dot."""
    return Markup(".<wbr>").join(name.split("."))


def measure(number: float, unit: str) -> str:
    """Return a chart's number with its unit: bytes in binary units, others with the digits that count."""
    if unit in {"B", "B/s"}:
        return size(number) + unit[1:]
    if number >= _DIGITS_MAX:
        return f"{number:.3g} {unit}".strip()
    digits = 0 if number >= 100 or number == int(number) else 1 if number >= 10 else 2
    return f"{number:,.{digits}f} {unit}".strip()


def _visible(value: Any) -> Any:
    """Return text with its unseen characters shown. Inputs use `|e` instead: forms send their values back."""
    return visible(value) if type(value) is str else value


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
        finalize=_visible,
    )
    environment.filters.update(
        when=when,
        size=size,
        count=count,
        span=span,
        money=money,
        price=price,
        prose=prose,
        broken=broken,
        measure=measure,
    )
    environment.globals.update(path=path_of, version=_VERSION)
    return environment


_TEMPLATES: Final = _environment()
_SECTIONS: Final = (
    ("", "Overview"),
    ("brokers", "Brokers"),
    ("topics", "Topics"),
    ("groups", "Groups"),
    ("transactions", "Transactions"),
    ("quorum", "Quorum"),
    ("reassignments", "Reassignments"),
    ("acls", "ACLs"),
    ("quotas", "Quotas"),
    ("tier", "Tier"),
    ("pipelines", "Pipelines"),
    ("metrics", "Metrics"),
    ("settings", "Settings"),
)


def html(page: Page, parts: tuple[str, ...], context: Context, json_path: str) -> bytes:
    """Return the page as HTML; `parts` are its path's, `json_path` is where its data is."""
    text = _TEMPLATES.get_template(page.template).render(
        page.data,
        title=page.title,
        refresh_s=page.refresh_s,
        sections=_SECTIONS,
        section=parts[0] if parts else "",
        bootstrap=context.cluster.bootstrap,
        allow_changes=context.allow_changes,
        token=context.token,
        json_path=json_path,
        now_ms=context.now_ms,
    )
    return text.encode("utf-8", "replace")


def json_bytes(data: Mapping[str, Any]) -> bytes:
    """Return a page's data as JSON."""
    return (json.dumps(data, ensure_ascii=False, allow_nan=False) + "\n").encode("utf-8", "replace")
