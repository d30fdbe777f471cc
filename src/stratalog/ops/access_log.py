"""Generate a web server's access log of any length: visitors that arrive, look at pages and leave.

In: a random source, the first time, the rate in lines a second. Out: an endless sequence of lines in the combined log
format with their times, oldest first. The same source gives the same log. It never reads a clock and never waits.

Shares are those of a real log of ten thousand lines (`pipelines/access_log/apache_access.log`). Nine lines in ten
have status 200, one in twenty 304, one in fifty 404. One in eight is a crawler's; two in five have no referrer; a few
pages are popular.
"""

from bisect import bisect
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from itertools import accumulate
from random import Random  # noqa: TID251 - the caller's, with its seed

SITE = "http://www.example.org"
_SECTIONS = ("blog", "projects", "presentations", "articles", "images", "files")
_PAGES = [f"/{_SECTIONS[n % len(_SECTIONS)]}/{n:04d}/" for n in range(400)]
_ASSETS = ("/style.css", "/reset.css", "/favicon.ico", "/images/banner.png", "/js/site.js")
_SYSTEMS = (
    "Windows NT 10.0; Win64; x64",
    "Macintosh; Intel Mac OS X 10_15_7",
    "X11; Linux x86_64",
    "Linux; Android 14; Mobile",
)
_CRAWLERS = (
    "Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)",
    "Mozilla/5.0 (compatible; bingbot/2.0; +http://www.bing.com/bingbot.htm)",
    "UniversalFeedParser/4.2-pre-314-svn +http://feedparser.org/",
)
_CODES = (200, 304, 404, 301, 206, 500)
_CODE_SHARES = list(accumulate((0.912, 0.045, 0.021, 0.016, 0.005, 0.001)))
_CRAWLER_SHARE = 0.2
_NO_REFERRER_SHARE = 0.4
_THINKING_S = 20
"""Average seconds between two lines of a visitor; the number of visitors at a time follows from it."""
_LAST_PAGE_SHARE = 0.2


@dataclass(slots=True)
class _Visitor:
    address: str
    agent: str
    pages_only: bool
    page: str = "/"
    assets: list[str] = field(default_factory=list)


def access_log(chance: Random, begin_ms: int, per_second: float) -> Iterator[tuple[int, str, str]]:
    """Yield (epoch ms, visitor's address, line) of each request; times rise, `per_second` of them on average."""
    visitors: list[_Visitor] = []
    wanted = max(4, round(per_second * _THINKING_S))
    now_ms = float(begin_ms)
    while True:
        now_ms += chance.expovariate(per_second) * 1000
        if len(visitors) < wanted and chance.random() < max(0.1, 1 - len(visitors) / wanted):
            visitors.append(_arrival(chance))
            at = len(visitors) - 1
        else:
            at = int(chance.random() * len(visitors))
        visitor = visitors[at]
        yield int(now_ms), visitor.address, _request(chance, visitor, int(now_ms) // 1000)
        if not visitor.assets and chance.random() < _LAST_PAGE_SHARE:
            visitors[at] = visitors[-1]
            visitors.pop()


def _arrival(chance: Random) -> _Visitor:
    address = ".".join(str(chance.randrange(1, 255)) for _ in range(4))
    if chance.random() < _CRAWLER_SHARE:
        return _Visitor(address, chance.choice(_CRAWLERS), pages_only=True)
    version = chance.randrange(100, 130)
    agent = (
        f"Mozilla/5.0 ({chance.choice(_SYSTEMS)}) AppleWebKit/537.36 (KHTML, like Gecko) "
        f"Chrome/{version}.0.0.0 Safari/537.36"
    )
    return _Visitor(address, agent, pages_only=False)


@lru_cache(maxsize=2)
def _stamp(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).strftime("%d/%b/%Y:%H:%M:%S +0000")


def _request(chance: Random, visitor: _Visitor, second: int) -> str:
    if visitor.assets:
        path, referrer = visitor.assets.pop(), SITE + visitor.page
    else:
        referrer = "-" if chance.random() < _NO_REFERRER_SHARE else SITE + visitor.page
        # A few pages are popular, the rest has a long tail.
        path = visitor.page = _PAGES[min(len(_PAGES), int(chance.paretovariate(0.8))) - 1]
        if not visitor.pages_only:
            first = int(chance.random() * len(_ASSETS))
            visitor.assets = list(_ASSETS[first : first + int(chance.random() * 4)])
    code = _CODES[min(bisect(_CODE_SHARES, chance.random()), len(_CODES) - 1)]
    size = "-" if code == 304 else str(int(chance.lognormvariate(9, 1.5)))
    return (
        f'{visitor.address} - - [{_stamp(second)}] "GET {path} HTTP/1.1" {code} {size} '
        f'"{referrer}" "{visitor.agent}"'
    )
