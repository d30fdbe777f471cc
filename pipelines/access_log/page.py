"""Write the answers as one HTML file without a network, a script or a font.

In: answers. Out: a page with charts as inline SVG, readable in light and dark, by keyboard and by a screen reader:
every chart has a title, and its numbers in text. Never here: reading tables, deciding what counts.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from html import escape
from math import ceil
from pathlib import Path

from answers import Answers, Traffic

WIDTH = 950
"""Of a card's inside, in pixels, where the window is wide."""
HALF = 440
COLUMNS_MAX = 168
LEFT, RIGHT, TOP, BOTTOM = 56, 8, 10, 26
HOUR = timedelta(hours=1)

STYLE = """
:root{color-scheme:light dark;--page:#f6f7f9;--card:#fff;--ink:#1b2430;--soft:#5b6675;--line:#dfe3e8;
--requests:#2f6fde;--errors:#c8362f;--bytes:#0c8577}
@media(prefers-color-scheme:dark){:root{--page:#12161c;--card:#1b2129;--ink:#e8ecf1;--soft:#9aa6b5;--line:#303945;
--requests:#6ea2ff;--errors:#ff7b72;--bytes:#3fc4b1}}
*{box-sizing:border-box}body{margin:0;background:var(--page);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:1040px;margin:0 auto;padding:32px 20px 64px}h1{margin:0;font-size:28px;letter-spacing:-.02em}
h2{margin:0 0 12px;font-size:16px}p.sub{margin:4px 0 24px;color:var(--soft);overflow-wrap:anywhere}
section{min-width:0;background:var(--card);border:1px solid var(--line);border-radius:12px;padding:18px 20px;
margin:0 0 18px}
dl.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(130px,1fr));gap:12px;margin:0 0 18px}
dl.tiles div{background:var(--card);border:1px solid var(--line);border-radius:12px;padding:12px 14px}
dt{color:var(--soft);font-size:13px}dd{margin:0;font-size:22px;font-weight:600;font-variant-numeric:tabular-nums}
dd{overflow-wrap:anywhere}dd small{font-size:13px;font-weight:400;color:var(--soft)}
.chart{overflow-x:auto}svg{display:block;width:100%;height:auto}svg text{fill:var(--soft);font-size:12px}
svg text.value,svg text.name{fill:var(--ink)}.grid{stroke:var(--line);stroke-width:1}
.requests{fill:var(--requests)}.errors{fill:var(--errors)}.bytes{fill:var(--bytes)}
rect.hit{fill:transparent}g:hover>rect.hit{fill:var(--line);opacity:.45}
.two{display:grid;grid-template-columns:repeat(auto-fit,minmax(420px,1fr));gap:0 18px}
@media(max-width:520px){.two{grid-template-columns:1fr}}
details{margin-top:10px;color:var(--soft)}summary{cursor:pointer}.scroll{max-height:320px;overflow:auto}
table{border-collapse:collapse;width:100%;color:var(--ink);font-size:13px}th,td{padding:3px 8px;text-align:right;
border-bottom:1px solid var(--line);font-variant-numeric:tabular-nums}th:first-child,td:first-child{text-align:left;
overflow-wrap:anywhere}.key{display:inline-block;width:10px;height:10px;border-radius:3px;margin:0 6px 0 0}
p.caption{margin:0 0 4px;font-size:13px;color:var(--soft)}
"""


def write_page(path: Path, answers: Answers, sources: Sequence[str]) -> None:
    """Write the page for `answers` to `path`; `sources` are the names of the log files."""
    path.write_text(page(answers, sources), encoding="utf-8")


def page(answers: Answers, sources: Sequence[str]) -> str:
    """Return the whole page as text."""
    columns = over_time(answers.hours)
    when = [column.name for column in columns]
    span = (
        f"{when[0]:%d %b %Y} to {answers.hours[-1].name:%d %b %Y}, UTC" if when else "no requests"
    )
    every = f"per {_hours(when[1] - when[0])}" if len(when) > 1 else "in one hour"
    body = [
        "<h1>Access log</h1>",
        f'<p class="sub">{escape(", ".join(sources))} · {span}</p>',
        tiles(answers),
        card(
            f"Requests and errors {every}",
            caption("requests", "Requests")
            + column_chart(columns, "requests", f"Requests {every}")
            + caption("errors", "Errors: status 400 and up")
            + column_chart(columns, "errors", f"Errors, status 400 and up, {every}", height=130),
            traffic_table("Time", columns),
        ),
        card(
            f"Bytes answered {every}",
            column_chart(columns, "bytes", f"Bytes answered {every}", height=170),
            traffic_table("Time", columns),
        ),
        '<div class="two">',
        card("Requests by status", status_bars(answers), ""),
        card(
            f"Busiest of {answers.client_count:,} clients",
            bar_chart([(str(c.name), c.requests) for c in answers.clients], "requests", "Clients"),
            traffic_table("Client", answers.clients),
        ),
        "</div>",
        card(
            f"Top of {answers.path_count:,} paths",
            bar_chart(
                [(p.name or "(none)", p.requests) for p in answers.paths],
                "requests",
                "Paths",
                width=WIDTH,
                name_width=460,
            ),
            traffic_table("Path", answers.paths),
        ),
        bad_lines_card(answers),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>Access log</title><style>{STYLE}</style></head>\n<body><main>\n"
        + "\n".join(body)
        + "\n</main></body></html>\n"
    )


def tiles(answers: Answers) -> str:
    """Return the totals at the top of the page."""
    requests = sum(answers.status.values())
    share = answers.errors / requests if requests else 0.0
    totals = [
        ("Requests", f"{requests:,}", ""),
        ("Errors", f"{answers.errors:,}", f"{share:.1%}"),
        ("Answered", f"{short(answers.bytes)}B", ""),
        ("Bad lines", f"{answers.bad_lines:,}", "kept apart"),
        ("Read from the bucket", f"{answers.origins.get('bucket', 0):,}", "records"),
        ("Read from the broker", f"{answers.origins.get('broker', 0):,}", "records"),
    ]
    cells = (
        f"<div><dt>{name}</dt><dd>{value} <small>{note}</small></dd></div>"
        for name, value, note in totals
    )
    return f'<dl class="tiles">{"".join(cells)}</dl>'


def caption(what: str, text: str) -> str:
    """Return the caption of one of several charts in a card, with its colour."""
    return (
        f'<p class="caption"><span class="key" style="background:var(--{what})"></span>{text}</p>'
    )


def card(title: str, chart: str, table: str) -> str:
    """Return one section of the page."""
    numbers = f"<details><summary>Numbers</summary>{table}</details>" if table else ""
    return f"<section><h2>{escape(title)}</h2>{chart}{numbers}</section>"


def over_time(hours: Sequence[Traffic]) -> list[Traffic]:
    """Hours put together into at most `COLUMNS_MAX` columns of equal length, with zero where nothing happened."""
    if not hours:
        return []
    first: datetime = hours[0].name
    count = (hours[-1].name - first) // HOUR + 1
    each = ceil(count / COLUMNS_MAX)
    sums = [[0, 0, 0] for _ in range(ceil(count / each))]
    for hour in hours:
        column = sums[(hour.name - first) // HOUR // each]
        column[0] += hour.requests
        column[1] += hour.errors
        column[2] += hour.bytes
    return [Traffic(first + number * each * HOUR, *three) for number, three in enumerate(sums)]


def column_chart(columns: Sequence[Traffic], what: str, title: str, height: int = 220) -> str:
    """Return a column chart over time of one of the counts; a line of text where nothing happened."""
    if not columns:
        return "<p>No requests.</p>"
    unit = "B" if what == "bytes" else ""
    values: list[int] = [getattr(column, what) for column in columns]
    most = nice_ceiling(max(values, default=0))
    wide = (WIDTH - LEFT - RIGHT) / max(1, len(values))
    tall = height - TOP - BOTTOM
    parts = []
    for step in range(5):
        y = TOP + tall - tall * step / 4
        parts.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        )
        parts.append(
            f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{short(most * step / 4)}{unit}</text>'
        )
    gap = min(2.0, wide * 0.2)
    for number, (column, value) in enumerate(zip(columns, values, strict=True)):
        x = LEFT + number * wide
        bar = tall * value / most
        label = f"{column.name:%a %d %b %Y %H:%M}: {value:,}{unit and ' ' + unit}"
        parts.append(
            f"<g><title>{label}</title>"
            f'<rect class="hit" x="{x:.2f}" y="{TOP}" width="{wide:.2f}" height="{tall}"/>'
            f'<rect class="{what}" x="{x:.2f}" y="{TOP + tall - bar:.2f}" '
            f'width="{wide - gap:.2f}" height="{bar:.2f}" rx="1"/></g>'
        )
    parts.extend(time_axis(columns, wide, height))
    return svg(WIDTH, height, title, parts)


def time_axis(columns: Sequence[Traffic], wide: float, height: int) -> Iterable[str]:
    """At most eight labels under a column chart: hours where the log is short, days where it is long."""
    every = ceil(len(columns) / 8)
    long = columns[-1].name - columns[0].name > timedelta(days=8)
    for number in range(0, len(columns), every):
        x = LEFT + number * wide
        text = f"{columns[number].name:{'%d %b %Y' if long else '%d %b %H:%M'}}"
        if x < WIDTH - 90:  # there is room for it
            yield f'<text x="{x:.1f}" y="{height - 8}">{text}</text>'


def status_bars(answers: Answers) -> str:
    """Requests by status; errors have their own colour, and every bar its number."""
    rows = [(str(code), count) for code, count in answers.status.items()]
    kinds = ["errors" if code >= 400 else "requests" for code in answers.status]
    if answers.bad_lines:
        rows.append(("bad lines", answers.bad_lines))
        kinds.append("errors")
    return bar_chart(rows, kinds, "Statuses", name_width=70)


def bad_lines_card(answers: Answers) -> str:
    """Return the number of bad lines for each reason; nothing without bad lines."""
    if not answers.bad_lines:
        return ""
    chart = bar_chart(list(answers.bad_reasons.items()), "errors", "Bad lines by reason")
    return card("Bad lines by reason", chart, "")


def bar_chart(
    rows: Sequence[tuple[str, int]],
    kind: str | Sequence[str],
    title: str,
    *,
    width: int = HALF,
    name_width: int = 150,
) -> str:
    """Horizontal bars, each with its name to the left and its number to the right; a line of text without rows."""
    if not rows:
        return "<p>None.</p>"
    row = 26
    most = max((count for _, count in rows), default=0) or 1
    room = width - name_width - 12 - 8 * len(f"{most:,}")
    parts = []
    for number, (name, count) in enumerate(rows):
        y = number * row
        bar = max(1.0, room * count / most)
        style = kind if isinstance(kind, str) else kind[number]
        shown = clipped(name, int(name_width / 7))
        parts.append(
            f"<g><title>{escape(name)}: {count:,}</title>"
            f'<text class="name" x="{name_width - 10}" y="{y + 17}" text-anchor="end">{escape(shown)}</text>'
            f'<rect class="{style}" x="{name_width}" y="{y + 4}" width="{bar:.1f}" height="18" rx="3"/>'
            f'<text class="value" x="{name_width + bar + 8:.1f}" y="{y + 17}">{count:,}</text></g>'
        )
    return svg(width, max(1, len(rows)) * row, title, parts)


def svg(width: int, height: int, title: str, parts: Iterable[str]) -> str:
    """Return a drawing with a name for screen readers."""
    # In a narrow window a drawing scrolls sideways: scaled down, its labels would be smaller than 12 pixels.
    return (
        f'<div class="chart"><svg viewBox="0 0 {width} {height}" style="min-width:{width}px" '
        f'role="img" aria-label="{escape(title)}">'
        f"<title>{escape(title)}</title>{''.join(parts)}</svg></div>"
    )


def traffic_table(name: str, rows: Sequence[Traffic]) -> str:
    """Return the numbers behind a chart."""
    lines = []
    for row in rows:
        first = f"{row.name:%Y-%m-%d %H:%M}" if isinstance(row.name, datetime) else row.name
        lines.append(
            f"<tr><td>{escape(str(first or '(none)'))}</td><td>{row.requests:,}</td>"
            f"<td>{row.errors:,}</td><td>{row.bytes:,}</td></tr>"
        )
    return (
        f'<div class="scroll"><table><thead><tr><th scope="col">{name}</th><th scope="col">Requests</th>'
        '<th scope="col">Errors</th><th scope="col">Bytes</th></tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def short(number: float) -> str:
    """1234567 as 1.2M."""
    for unit in ("", "k", "M", "G", "T"):
        if number < 1000:
            return f"{number:.3g}{unit}"
        number /= 1000
    return f"{number:,.0f}P"


def nice_ceiling(number: int) -> int:
    """Return a round number not below `number` (4 at least), for the top of an axis."""
    power: int = 10 ** (len(str(number)) - 1)
    steps = (max(4, power * tenths // 10) for tenths in (12, 16, 20, 24, 32, 40, 60, 80, 100))
    return next(step for step in steps if step >= number)


def clipped(text: str, room: int) -> str:
    """Return `text` in at most `room` characters, its middle left out."""
    if len(text) <= room:
        return text
    half = max(1, (room - 1) // 2)
    return f"{text[:half]}…{text[-half:]}"


def _hours(each: timedelta) -> str:
    hours = each // HOUR
    if hours == 1:
        return "hour"
    return f"{hours} hours" if hours % 24 else f"{hours // 24} days" if hours > 24 else "day"
