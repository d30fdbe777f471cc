"""A request and a page as values, between the HTTP side and the pages.

In: a path, a query, a form. Out: `PageRequest`; a `Page`, which is a template's name and its data. The data is
what the page's JSON shows, so a page says nothing in HTML that it does not say in JSON.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote, urlencode

from stratalog.console.cluster import RIGHTS, Cluster
from stratalog.console.decoded import Registry
from stratalog.console.history import History
from stratalog.console.measured import Measured
from stratalog.console.prices import Prices
from stratalog.errors import ErrorCode, Rejected, UserError
from stratalog.ports import Worker

__all__ = [
    "BUCKET_REMEDY",
    "Context",
    "Page",
    "PageRequest",
    "failed",
    "missing",
    "path_of",
    "refused",
]

JSON: Final = ".json"
BUCKET_REMEDY: Final = "check the URL, the keys and their rights, and the network"
"""What a person can do where the console cannot read the bucket."""
_REFUSALS: Final = {
    ErrorCode.unknown_topic_or_partition: (404, "see the topics: it may have been deleted"),
    ErrorCode.offset_out_of_range: (503, "records were deleted while they were read: ask again"),
    ErrorCode.corrupt_message: (
        502,
        "the broker's disk or bucket is damaged: its log names the file, strata tier verify checks the bucket",
    ),
    ErrorCode.kafka_storage_error: (503, "the broker's disk or bucket fails: its log says why"),
}
"""By a broker's refusal: the status and the remedy."""


@dataclass(frozen=True, slots=True)
class Context:
    """What pages are made from: the cluster, the bucket if the console was given one, and what may be changed."""

    cluster: Cluster
    history: History | None
    decoding: Worker
    """A thread that decodes records: the event loop goes on serving meanwhile."""
    allow_changes: bool
    token: str
    """The secret in every form: only a page of this console knows it."""
    registry: Registry | None = None
    prices: Prices | None = None
    measured: Measured | None = None

    @property
    def now_ms(self) -> int:
        """Epoch ms, by the console's clock."""
        return self.cluster.clock.now_ms()


@dataclass(frozen=True, slots=True)
class PageRequest:
    """One request: the parts of its path, and the names and values of its query and its form."""

    parts: tuple[str, ...]
    query: Mapping[str, str] = field(default_factory=dict)
    form: Mapping[str, str] = field(default_factory=dict)
    is_post: bool = False

    def text(self, name: str, default: str = "") -> str:
        """Return a value of the query without blanks around it."""
        return self.query.get(name, default).strip()

    def number(self, name: str, default: int, low: int, high: int) -> int:
        """Return a number of the query. Raises UserError for one that is none, or outside of `low` to `high`."""
        text = self.text(name)
        if not text:
            return default
        if not text.isdecimal() or len(text) > 19 or not low <= int(text) <= high:
            raise UserError(f"{name}: {text[:40]!r} is not accepted; accepted: {low} to {high}")
        return int(text)

    def choice(self, name: str, accepted: tuple[str, ...]) -> str:
        """Return one of the accepted values, by default the first. Raises UserError for another."""
        text = self.text(name) or accepted[0]
        if text not in accepted:
            raise UserError(
                f"{name}: {text[:40]!r} is not accepted; accepted: {', '.join(accepted)}"
            )
        return text


@dataclass(frozen=True, slots=True)
class Page:
    """An answer. `refresh_s`: the browser asks again so often, where it runs the console's JavaScript."""

    template: str
    title: str
    data: Mapping[str, Any]
    status: int = 200
    refresh_s: int = 0
    redirect: str = ""
    """Go there instead, after a change."""


def failed(status: int, what: str, remedy: str = "") -> Page:
    """Return the page of a failure: what failed, and what a person can do."""
    title = {
        400: "Not understood",
        502: "Not readable",
        403: "Refused",
        404: "Not found",
        405: "Not accepted",
        503: "No answer",
        504: "Too slow",
    }.get(status, "Failed")
    return Page("error.html", title, {"error": what, "remedy": remedy}, status)


def refused(error: Rejected) -> Page:
    """Return the page of a request that a broker refused, with what a person can do."""
    name = error.code.name.upper()
    text = error.message if name in error.message.upper() else f"{error.message} ({name})"
    if name.endswith("_AUTHORIZATION_FAILED"):
        return failed(403, text, RIGHTS)
    status, remedy = _REFUSALS.get(error.code, (400, ""))
    return failed(status, text, remedy)


def missing(what: str, remedy: str = "") -> Page:
    """Return the page of a thing that does not exist."""
    return failed(404, what, remedy)


def path_of(*parts: object, query: Mapping[str, object] | None = None) -> str:
    """Return the path of a page, each part quoted whole. The page of a name that ends in .json is not its JSON."""
    quoted = [quote(str(part), safe="") for part in parts]
    if quoted and quoted[-1].endswith(JSON):
        quoted[-1] = quoted[-1].removesuffix(JSON) + "%2Ejson"
    given = {name: value for name, value in (query or {}).items() if value not in (None, "")}
    return "/" + "/".join(quoted) + ("?" + urlencode(given) if given else "")
