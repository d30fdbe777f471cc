"""`strata tier leases`: list the queries that hold objects of a bucket, and the ends of their leases.

In: a bucket's URL. Out: a row for each read lease. It never renews or removes a lease.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from stratalog.cli.shared.bucket import Url, opened
from stratalog.cli.shared.terminal import Json, note, show, show_json

if TYPE_CHECKING:
    from stratalog.ports import ObjectInfo
    from stratalog.tier.bucket.leases import Lease


def leases(url: Url, json: Json = False) -> None:
    """List the read leases: which query holds which partitions, and until when.

    A query renews its lease while it reads. Without a renewal the lease ends at the time in column "until", by the
    store's clock, or later: a broker counts the time from when it first saw the lease.

    Example: strata tier leases s3://bucket/prefix
    """
    from stratalog.adapters.system import SystemClock
    from stratalog.tier.bucket.leases import list_leases
    from stratalog.tier.reading.reader import open_bucket

    bucket = open_bucket(opened(url))
    found = [
        lease_json(info, lease) for info, lease in list_leases(bucket.store, bucket.cluster_id)
    ]
    if json:
        show_json(found)
        return
    names = {topic.topic_id: topic.name for topic in bucket.topics()}
    now_ms = SystemClock().now_ms()
    rows = [lease_row(row, names, now_ms) for row in found]
    show(rows, as_json=False, empty=f"no query holds a lease in {url}")
    damaged = [row["path"] for row in found if row["holder"] is None]
    for path in damaged:
        note(f"warning: {path} cannot be read; until it ends it holds every object of the bucket")


def lease_json(info: "ObjectInfo", lease: "Lease | None") -> dict[str, Any]:
    """Return a lease for JSON. Times are epoch ms; a damaged lease has no holder and no versions."""
    from stratalog.tier.bucket.leases import LEASE_MS

    return {
        "path": info.path,
        "holder": None if lease is None else lease.holder,
        "renewed_ms": info.modified_ms,
        "until_ms": info.modified_ms + (LEASE_MS if lease is None else lease.lives_ms),
        "versions": {} if lease is None else lease.versions,
    }


def lease_row(lease: Mapping[str, Any], names: Mapping[str, str], now_ms: int) -> dict[str, Any]:
    """Return a table's row. `names` are topics' names by id: a deleted topic is shown by its id."""
    from stratalog.cli.shared.quantities import age_text

    left_ms = lease["until_ms"] - now_ms
    return {
        "holder": lease["holder"] or "(damaged)",
        "renewed": moment(lease["renewed_ms"]),
        "until": moment(lease["until_ms"]),
        "left": age_text(left_ms) if left_ms > 0 else "ended",
        "holds": [
            f"{names.get(topic_id, topic_id)}-{partition}@{version}"
            for topic_id, versions in lease["versions"].items()
            for partition, version in versions.items()
        ],
        "lease": lease["path"].rpartition("/")[2],
    }


def moment(epoch_ms: int) -> str:
    """Return a time for people, in UTC."""
    from datetime import UTC, datetime

    return datetime.fromtimestamp(epoch_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
