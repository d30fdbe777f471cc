"""Where everything of one run lies, and whether it stays.

In: the directory that the user wants kept, or none. Out: a directory for the broker, the bucket, the pipeline and the
sink, gone afterwards unless it was to be kept. Never here: what lies in them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from stratalog.errors import UserError

CHECKOUT = Path(__file__).parent.parent.parent
TOPIC = "access_log"


@dataclass(frozen=True, slots=True)
class Place:
    """Where everything of one run lies."""

    root: Path
    page: Path

    @property
    def data(self) -> Path:
        return self.root / "data"

    @property
    def bucket(self) -> Path:
        return self.root / "bucket"

    @property
    def pipeline(self) -> Path:
        return self.root / "pipeline"

    @property
    def sink(self) -> Path:
        return self.root / "sink"

    def local_bytes(self) -> int:
        """Bytes of the topic's partitions on the broker's disk: segments, indexes, all else in their directories."""
        return sum(bytes_below(path) for path in self.data.glob(f"{TOPIC}-*"))

    def bucket_bytes(self) -> int:
        """Bytes of everything in the bucket: segment objects, manifests, identity."""
        return bytes_below(self.bucket)


def bytes_below(directory: Path) -> int:
    """Sum of the sizes of the files in a directory tree; a file that goes meanwhile counts as gone."""
    total = 0
    for path in directory.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue
    return total


@contextmanager
def a_place(keep: Path | None) -> Iterator[Place]:
    """The directory the user wants kept, which must have room for ours, or a temporary one."""
    if keep is None:
        page = CHECKOUT / ".state" / "report.html"
        page.parent.mkdir(exist_ok=True)
        with TemporaryDirectory(prefix="stratalog-run-", ignore_cleanup_errors=True) as root:
            yield Place(Path(root), page)
        return
    place = Place(keep, keep / "report.html")
    for taken in (place.data, place.bucket, place.pipeline, place.sink):
        if taken.exists():
            raise UserError(
                f"--keep {keep}: {taken.name} is there already; name an empty directory"
            )
    keep.mkdir(parents=True, exist_ok=True)
    yield place
