"""The directory and the bucket of one run, and whether they stay.

In: the directory that the user wants to keep, or none; the user's bucket, or none. Out: a directory for the broker,
the pipeline and the sink, which is removed afterwards unless the user keeps it; the bucket's URL, in that directory
unless it is the user's. Never here: their contents. Nothing is ever removed from a user's bucket.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit, urlunsplit

from stratalog.adapters.object_store import open_store
from stratalog.errors import Unavailable, UserError

CHECKOUT = Path(__file__).parent.parent.parent
TOPIC = "access_log"
PREFIX = "stratalog-run"
"""The prefix of everything that a run puts into a user's bucket."""


@dataclass(frozen=True, slots=True)
class Place:
    """The places of one run. `own_bucket` is the tier URL in the user's bucket; `stays`: the directory outlives the
    run.
    """

    root: Path
    page: Path
    own_bucket: str | None = None
    stays: bool = False

    @property
    def data(self) -> Path:
        return self.root / "data"

    @property
    def bucket(self) -> Path:
        return self.root / "bucket"

    @property
    def tier_url(self) -> str:
        return self.own_bucket or self.bucket.resolve().as_uri()

    @property
    def pipeline(self) -> Path:
        return self.root / "pipeline"

    @property
    def keys(self) -> Path:
        return self.root / "keys"

    @property
    def sink(self) -> Path:
        return self.root / "sink"

    def local_bytes(self) -> int:
        """Return bytes of the topic's partitions on the brokers' disks: segments, indexes, all else in their
        directories.
        """
        return sum(bytes_below(path) for path in self.data.rglob(f"{TOPIC}-*"))

    def bucket_sizes(self) -> list[int]:
        """Return bytes of each object in the bucket: segments, manifests, identity."""
        return [found.size for found in open_store(self.tier_url).list("")]


def bytes_below(directory: Path) -> int:
    """Sum of the sizes of the files in a directory tree; files removed meanwhile do not count."""
    total = 0
    for path in directory.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue
    return total


@contextmanager
def a_place(keep: Path | None, bucket: str | None) -> Iterator[Place]:
    """Yield the place of a run: the user's directory, which must be new or empty, or a temporary one; and the
    bucket.
    """
    own_bucket = None if bucket is None else below_prefix(bucket)
    if own_bucket is not None:
        check_empty(own_bucket)
    if keep is None:
        page = CHECKOUT / ".state" / "report.html"
        page.parent.mkdir(exist_ok=True)
        with TemporaryDirectory(prefix="stratalog-run-", ignore_cleanup_errors=True) as root:
            yield Place(Path(root), page, own_bucket)
        return
    place = Place(keep, keep / "report.html", own_bucket, stays=True)
    for taken in (place.data, place.bucket, place.pipeline, place.sink, place.keys):
        if taken.exists():
            raise UserError(
                f"--keep {keep}: {taken.name} is there already; name an empty directory"
            )
    keep.mkdir(parents=True, exist_ok=True)
    yield place


def below_prefix(url: str) -> str:
    """Return the user's tier URL with a prefix of our own at its end. Raises UserError for `memory:`."""
    parts = urlsplit(url)
    if parts.scheme == "memory":
        raise UserError(f"--bucket {url}: Spark cannot see the broker's memory; use file:///path")
    path = f"{parts.path.rstrip('/')}/{PREFIX}"
    return urlunsplit(parts._replace(path=path))


def check_empty(tier_url: str) -> None:
    """Raise UserError for a prefix with objects. Raises Unavailable where the store does not answer."""
    try:
        found = next(iter(open_store(tier_url).list("")), None)
    except Unavailable:
        if "create_bucket=true" in tier_url:
            return  # the bucket may not exist yet: the broker reports other errors
        raise
    if found is not None:
        raise UserError(
            f"--bucket: {tier_url} holds an earlier run's objects: remove them, or name another prefix"
        )
