r"""A web server's combined log format, read by one rule in two places.

In: a log line, as bytes. Out: the moment that it names, for the loader; the pattern that finds its fields, for Spark
(`parse.py`). Never here: files, sockets, Spark. No line is dropped: unreadable ones are marked as bad.

The rule: a line is good if its host, time, request and status can be read; other missing fields are null, and odd ones
stay unchanged. The format is Apache's `LogFormat "%h %l %u %t \"%r\" %>s %b \"%{Referer}i\" \"%{User-agent}i\""
combined`; bytes may be `-`, quotes inside quotes may be escaped or not, bytes that are no UTF-8 become U+FFFD, and a
request may be any text between the quotes. A virtual host may be first (`%v:%p`, or nginx's `$host` before an address),
and of a list of forwarded addresses the first is the host. Quoted fields may follow the agent, as nginx's
`"$http_x_forwarded_for"`. The first number after them is the time that the request took: whole, it is microseconds
(Apache's `%D`), with a point, seconds (nginx's `$request_time`). Such lines may follow each other in one log.
"""

import re
from datetime import UTC, datetime, timedelta, timezone
from functools import lru_cache

MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
TIME = rf"\d\d/(?:{'|'.join(MONTHS)})/(?!0000)\d{{4}}:\d\d:\d\d:\d\d [+-]\d{{4}}"

# Java's matcher takes time linear in the line. Possessive quantifiers keep the matcher from recursing on long fields;
# of one class of characters the greedy one is fast, and does not recurse. The atomic groups, `(?>`, decide for the
# first time with a quote behind it: a status behind a later one is behind the first one too, so the matcher has no need
# to try the later ones, each with the rest of the line. The request is tried as properly escaped text first, then as
# any text that ends at a quote before a status. The agent is tried as text without a quote up to the line's end, which
# most are; then as escaped text, and as any text, up to a quote behind which another field or the end follows; then up
# to the last quote.
_TEXT = r'(?:[^"\\]++|\\.)*+'
_VIRTUAL_HOST = (
    r"(?:(?!\S+ - )"
    r"(?:[^\s:]++:\d{1,5}+ (?=\S++ - \S++ \[)|[^\s,]++ (?=[\da-fA-F:.]++ - \S++ \[)))?+"
)
_HOST = r"([^\s,]+)(?:,\S*+(?: [\da-fA-F:.]++,?+)*+)?+"
_STATUS = r'(?=" \d\d\d(?: |\z))'
_AGENT_END = r'(?="(?:\z| [^"]*+(?:\z|(?<= )")))'
LINE = (
    rf"(?s)\A{_VIRTUAL_HOST}{_HOST} (\S++) (?>(.*?) ?\[({TIME})\] "
    rf'")({_TEXT}{_STATUS}|.*?{_STATUS})" (\d\d\d)(?: (\S++))?'
    rf'(?: "({_TEXT})" "([^"]*(?="\z)|{_TEXT}{_AGENT_END}|.*?{_AGENT_END}|.*)"'
    rf'(?: "{_TEXT}")*+(?: (\d{{1,12}}+(?:\.\d{{1,9}}+)?)(?= |\z))?)?.*\z'
)
FIELDS = (
    "host",
    "ident",
    "user",
    "time",
    "request",
    "status",
    "bytes",
    "referer",
    "agent",
    "took",
)
SEPARATOR = "\x1f"

# Reasons for a bad line: the first of these that the line lacks; otherwise its time is not in the calendar.
REASONS = (
    ("empty", r"\S"),
    ("no time", rf"\[{TIME}\]"),
    ("no host", rf"(?s)\A\S++ \S++ .*?\[{TIME}\]"),
    ("no request", rf'(?s)\[{TIME}\] ".*"'),
    ("no status", rf'(?s)\A(?>.*?\[{TIME}\] ").*?" \d\d\d(?: |\z)'),
)
REASON_LEFT = "no such time"

_MOMENT = re.compile(rb"\[(" + TIME.encode() + rb")\]")
_OFFSET_MAX = timedelta(hours=18)  # what Java's ZoneOffset allows
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@lru_cache(maxsize=4096)
def _epoch_ms(text: bytes) -> int | None:
    """Return milliseconds since 1970 of `17/May/2015:10:05:03 +0000`, or None for a time that does not exist."""
    offset = timedelta(hours=int(text[22:24]), minutes=int(text[24:26]))
    if offset > _OFFSET_MAX or int(text[24:26]) > 59:
        return None
    month = MONTHS.index(text[3:6].decode()) + 1
    zone = timezone(-offset if text[21:22] == b"-" else offset)
    try:
        moment = datetime(
            int(text[7:11]),
            month,
            int(text[0:2]),
            int(text[12:14]),
            int(text[15:17]),
            int(text[18:20]),
            tzinfo=zone,
        )
    except ValueError:
        return None
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def line_time_ms(line: bytes) -> int | None:
    """Return a line's time in milliseconds since 1970; None for a line without one."""
    found = _MOMENT.search(line)
    return None if found is None else _epoch_ms(found[1])
