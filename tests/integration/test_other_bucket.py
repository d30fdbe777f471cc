"""A broker whose bucket lacks the history of its logs does not start, unless a person accepts the loss.

Method: a real broker tiers a topic into a directory; then it is started with another directory, the same one emptied,
or an older copy of it.
"""

import shutil
from pathlib import Path

import pytest
from tests.integration.waiting import wait_for
from tests.wire_client import Wire

from stratalog.errors import UserError
from stratalog.testing import TemporaryBroker
from stratalog.tier.formats.manifest import Manifest, decode
from stratalog.wire.records import Record, build_batch

QUICK = {
    "log.retention.check.interval.ms": 200,
    "remote.log.manager.task.interval.ms": 200,
    "log.segment.bytes": 1 << 20,
    "log.local.retention.bytes": 1,
    "tier.enable": True,
}
LARGE = bytes(build_batch([Record(0, 1_700_000_000_000, None, b"v" * 400_000)]))


class Place:
    """A broker's log directory beside its buckets."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def broker(self, bucket: str, **more: bool) -> TemporaryBroker:
        (self.root / bucket).mkdir(exist_ok=True)
        settings = QUICK | {"tier.url": f"file://{self.root / bucket}"}
        settings |= {name.replace("_", "."): value for name, value in more.items()}
        return TemporaryBroker(settings, directory=self.root / "log")

    def manifest(self) -> Manifest | None:
        path = self.root / "log" / "t-0" / "tier-manifest"
        return decode(path.read_bytes(), str(path)) if path.exists() else None

    def fill(self, broker: TemporaryBroker, batches: int = 6) -> None:
        before = self.manifest()
        with Wire(broker.address) as wire:
            wire.topic_id("t")
            for _ in range(batches):
                assert wire.produce("t", LARGE).error_code == 0
        end = 0 if before is None else before.tiered_end
        wait_for(
            lambda: (found := self.manifest()) is not None and found.tiered_end > end,
            "a manifest beside the log",
        )

    def refused(self, bucket: str) -> str:
        with pytest.raises(UserError) as caught, self.broker(bucket):
            pass
        line = str(caught.value)
        assert "\n" not in line
        return line


@pytest.fixture
def place(tmp_path: Path) -> Place:
    made = Place(tmp_path)
    with made.broker("bucket") as broker:
        made.fill(broker)
    return made


def test_another_or_an_emptied_bucket_is_refused_with_the_remedy(place: Place) -> None:
    version = place.manifest()
    assert version is not None
    line = place.refused("buckett")
    assert line.startswith(
        f"tier.url: bucket file://{place.root}/buckett lacks history of this node: "
    )
    assert f"beside the log of t-0 lies version {version.version} of its manifest" in line
    assert "the bucket has none; name the right bucket, put its objects back, or give up" in line
    assert line.endswith("--override tier.accept.lost.history=true")
    assert list((place.root / "buckett").iterdir()) == [], "a refused start claims nothing"
    with place.broker("bucket") as broker:
        place.fill(broker)
    shutil.rmtree(place.root / "bucket")
    assert "the bucket has none" in place.refused("bucket")


def test_an_older_copy_of_the_bucket_is_refused(place: Place) -> None:
    shutil.copytree(place.root / "bucket", place.root / "copy")
    with place.broker("bucket") as broker:
        place.fill(broker)
    assert "the bucket has version " in place.refused("copy")


def test_a_person_may_give_up_what_only_the_right_bucket_had(place: Place) -> None:
    place.refused("other")
    with place.broker("other", tier_accept_lost_history=True) as broker:
        place.fill(broker)
    with place.broker("other") as broker:
        place.fill(broker)


def test_a_bucket_is_the_right_one_for_a_broker_without_history_in_any(tmp_path: Path) -> None:
    place = Place(tmp_path)
    with TemporaryBroker(directory=tmp_path / "log") as broker, Wire(broker.address) as wire:
        wire.topic_id("untiered")
        assert wire.produce("untiered", LARGE).error_code == 0
    with place.broker("bucket") as broker:
        place.fill(broker)
    with place.broker("bucket"):
        pass


def test_another_clusters_bucket_is_named_as_such(place: Place) -> None:
    other = Place(place.root / "elsewhere")
    other.root.mkdir()
    with other.broker("bucket") as broker:
        other.fill(broker)
    shutil.copytree(other.root / "bucket", place.root / "theirs")
    assert "belongs to cluster" in place.refused("theirs")
