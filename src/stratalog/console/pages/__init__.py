"""Which page a path has.

In: a request. Out: its page. It never answers by itself.
"""

from collections.abc import Awaitable, Callable
from typing import Final

from stratalog.console.page import Context, Page, PageRequest, missing
from stratalog.console.pages import (
    brokers,
    changes,
    groups,
    messages,
    metrics,
    nodes,
    offset_changes,
    overview,
    pipelines,
    rights,
    tier,
    topics,
)

__all__ = ["page_of"]

_PAGES: Final[dict[tuple[str, ...], Callable[[Context, PageRequest], Awaitable[Page]]]] = {
    (): overview.overview,
    ("brokers",): brokers.brokers,
    ("topics",): topics.topics,
    ("groups",): groups.groups,
    ("transactions",): nodes.transactions,
    ("quorum",): nodes.quorum,
    ("acls",): rights.acls,
    ("quotas",): rights.quotas,
    ("reassignments",): rights.reassignments,
    ("tier",): tier.tier,
    ("tier", "verify"): tier.verification,
    ("pipelines",): pipelines.pipelines,
    ("metrics",): metrics.metrics,
    ("settings",): nodes.settings,
    ("new-topic",): changes.new_topic,
}
_NAMED: Final[dict[tuple[str, str], Callable[[Context, PageRequest, str], Awaitable[Page]]]] = {
    ("brokers", ""): brokers.broker,
    ("topics", ""): topics.topic,
    ("topics", "messages"): messages.messages,
    ("topics", "alter"): changes.alter_topic,
    ("topics", "delete"): changes.delete_topic,
    ("topics", "delete-records"): offset_changes.delete_records_page,
    ("groups", ""): groups.group,
    ("groups", "reset"): offset_changes.reset_group,
    ("groups", "delete"): offset_changes.delete_group_page,
}
"""Pages about one thing: the parts before and after its name."""


async def page_of(context: Context, request: PageRequest) -> Page:
    """Return the page of a request. Raises what the cluster and the bucket raise."""
    parts = request.parts
    if parts in _PAGES:
        return await _PAGES[parts](context, request)
    if len(parts) in {2, 3}:
        page = _NAMED.get((parts[0], parts[2] if len(parts) == 3 else ""))
        if page is not None:
            return await page(context, request, parts[1])
    return missing(f"the console has no page /{'/'.join(parts)}"[:200])
