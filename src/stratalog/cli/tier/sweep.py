"""`strata tier sweep`: remove orphans from the bucket.

In: a bucket's URL. Out: the removed paths. It keeps objects that a manifest names, and young objects. In a bucket with
any damage it removes nothing.
"""

from typing import TYPE_CHECKING, Annotated

import typer

from stratalog.cli.shared.bucket import Url, opened, progress_of, report
from stratalog.cli.shared.terminal import Json, note

if TYPE_CHECKING:
    from stratalog.adapters.bucket_url import BucketUrl
    from stratalog.tier.checking.verify import Problem


def sweep(
    url: Url,
    grace: Annotated[
        str,
        typer.Option("--grace", metavar="TIME", help="How old an object must be to be removed."),
    ] = "1h",
    no_broker: Annotated[
        bool,
        typer.Option("--no-broker", help="No broker writes there now: a shorter grace is safe."),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be removed.")
    ] = False,
    json: Json = False,
) -> None:
    """Remove orphans: objects that no manifest names, and that are older than the grace period.

    In S3 it also removes unfinished uploads, and warns if the bucket has no lifecycle rule for them.

    Example: strata tier sweep s3://bucket/prefix --dry-run
    """
    from stratalog.adapters.system import SystemClock
    from stratalog.cli.shared.quantities import parse_duration_s
    from stratalog.errors import UserError
    from stratalog.tier.checking.verify import ORPHAN_GRACE_MS, find_orphans
    from stratalog.tier.checking.verify import sweep as sweep_bucket

    grace_ms = round(parse_duration_s(grace, "--grace") * 1000)
    if grace_ms < ORPHAN_GRACE_MS and not no_broker:
        raise UserError(
            f"--grace {grace}: below {ORPHAN_GRACE_MS // 60_000} minutes a broker's uploads under way "
            "could be removed; with --no-broker any is accepted"
        )
    now_ms = SystemClock().now_ms()
    work = find_orphans if dry_run else sweep_bucket
    with progress_of(f"sweeping {url}", quiet=json) as advance:
        orphans = work(opened(url), now_ms=now_ms, grace_ms=grace_ms, progress=advance)
        orphans += swept_uploads(url, now_ms - grace_ms, dry_run=dry_run)
    report(orphans, as_json=json)
    note(f"{len(orphans)} object(s) {'to be removed' if dry_run else 'removed'} from {url}")


def swept_uploads(url: str, before_ms: int, *, dry_run: bool) -> "list[Problem]":
    """Remove unfinished multipart uploads below the URL that began before the given time, and return them; `dry_run`
    keeps them.
    """
    from stratalog.adapters.bucket_url import parse_bucket_url
    from stratalog.errors import Unavailable, UserError

    if not url.startswith("s3://"):
        return []
    try:
        return uploads_of(parse_bucket_url(url), before_ms, dry_run=dry_run)
    except (UserError, Unavailable) as error:
        note(f"warning: unfinished uploads were not looked at: {error}")
        return []


def uploads_of(at: "BucketUrl", before_ms: int, *, dry_run: bool) -> "list[Problem]":
    """Do as `swept_uploads`, for one bucket. Raises UserError without boto3, Unavailable."""
    from contextlib import closing

    from stratalog.adapters.s3_bucket import S3Bucket
    from stratalog.errors import Unavailable
    from stratalog.tier.checking.verify import Problem

    with closing(S3Bucket(at)) as bucket:
        old = [upload for upload in bucket.unfinished_uploads() if upload.begun_ms <= before_ms]
        if not dry_run:
            for upload in old:
                bucket.abort(upload)
        try:
            ruled = bucket.removes_unfinished_uploads()
        except Unavailable:
            ruled = False  # a server without such rules
        if not ruled:
            note(
                f"warning: bucket {at.bucket} has no lifecycle rule that aborts incomplete multipart uploads; "
                "their parts are in no listing and are paid for"
            )
    return [Problem(upload.path, "an unfinished upload", orphan=True) for upload in old]
