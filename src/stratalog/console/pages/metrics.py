"""The brokers' metrics of the last hour as small charts.

In: what the console scraped of their monitors. Out: a page. It scrapes nothing itself.
"""

from typing import Final

from stratalog.console.charts import chart
from stratalog.console.measured import CHARTS, EVERY_S
from stratalog.console.page import Context, Page, PageRequest

__all__ = ["metrics"]

_REMEDY: Final = "check --monitor, and that the broker runs with this monitor.listener"


async def metrics(context: Context, _request: PageRequest) -> Page:
    """Return the page `/metrics`: a chart a metric, a line a monitor."""
    monitors = [] if context.measured is None else context.measured.monitors
    data = {
        "monitors": [
            {
                "address": one.address,
                "error": one.error,
                "remedy": _REMEDY if one.error else "",
                "scraped_ms": one.scraped_ms,
            }
            for one in monitors
        ],
        "charts": [
            chart(
                one.title,
                one.unit,
                {watched.address: list(watched.points.get(one.title, ())) for watched in monitors},
            )
            for one in CHARTS
        ],
        "every_seconds": EVERY_S,
    }
    return Page("metrics.html", "Metrics", data, refresh_s=15)
