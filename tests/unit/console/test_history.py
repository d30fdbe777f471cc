"""The bucket as the console sees it, while it comes and goes."""

import asyncio
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest
from tests.unit.console.test_measured import Clock, Inline

from stratalog.adapters.directory_store import DirectoryStore
from stratalog.console.history import History, ManifestRow, _manifest_row
from stratalog.errors import UserError
from stratalog.tier.bucket.identity import claim_bucket
from stratalog.tier.formats.manifest import ArchivedManifest, Manifest, SegmentState
from stratalog.tier.formats.paths import CLAIM


def test_a_bucket_that_is_emptied_is_no_empty_bucket(tmp_path: Path) -> None:
    """An empty page would say that nothing was archived yet."""
    store = DirectoryStore(str(tmp_path))
    claim_bucket(store, "a-cluster", 0)
    clock = Clock()
    history = History(store, Inline(), Inline(), clock)
    assert asyncio.run(history.topics()) == ([], False)
    rmtree(tmp_path)
    tmp_path.mkdir()
    clock.ms += 11_000
    with pytest.raises(UserError, match="holds no bucket of stratalog"):
        asyncio.run(history.topics())


class Late(Inline):
    """A worker that keeps what it is given while it `waits`, as a bucket that does not answer makes it."""

    waits = False
    calls = 0

    def submit(self, call: Any) -> Any:
        self.calls += 1
        return asyncio.get_running_loop().create_future() if self.waits else super().submit(call)


def test_a_buckets_problem_is_found_and_forgotten_by_a_check_each_ten_seconds(
    tmp_path: Path,
) -> None:
    store, clock, worker = DirectoryStore(str(tmp_path)), Clock(), Late()
    history = History(store, worker, Inline(), clock)

    async def watch() -> None:
        for seconds in (0, 9):
            clock.ms += seconds * 1_000
            assert await history.problem() == f"{store.url} holds no bucket of stratalog"
        claim_bucket(store, "a-cluster", 0)
        clock.ms += 1_000
        assert await history.problem() == ""
        assert worker.calls == 2

    asyncio.run(watch())


def test_a_buckets_problem_names_the_bucket_once(tmp_path: Path) -> None:
    store = DirectoryStore(str(tmp_path))
    claim_bucket(store, "a-cluster", 0)
    (tmp_path / CLAIM).write_bytes(b"damaged")
    problem = asyncio.run(History(store, Inline(), Inline(), Clock()).problem())
    assert problem.startswith(f"{store.url}: {CLAIM}")
    assert problem.count(store.url) == 1


def test_a_bucket_that_does_not_answer_keeps_the_result_before(tmp_path: Path) -> None:
    clock, worker = Clock(), Late()
    history = History(DirectoryStore(str(tmp_path)), worker, Inline(), clock)

    async def watch() -> None:
        before = await history.problem()
        worker.waits = True
        for _ in range(2):
            clock.ms += 11_000
            assert await history.problem() == before
        assert worker.calls == 2, "one check at a time"

    asyncio.run(watch())


def archived(first: int, last: int, segments: int, state: SegmentState) -> ArchivedManifest:
    return ArchivedManifest(
        id="a",
        size=1,
        crc=1,
        base_offset=first,
        last_offset=last,
        segments=segments,
        segments_size=1,
        data_size=1,
        records=1,
        min_timestamp=-1,
        max_timestamp=-1,
        min_timestamp_exact=True,
        state=state,
        state_ms=0,
    )


def test_a_row_has_the_manifests_fields_and_counts_archives_that_readers_read() -> None:
    archives = (
        archived(0, 9, 2, SegmentState.DELETE_STARTED),
        archived(20, 19, 0, SegmentState.COPY_FINISHED),  # another archive has its segments
        archived(10, 19, 2, SegmentState.COPY_FINISHED),
    )
    manifest = Manifest(
        cluster_id="c",
        topic_id="t",
        topic="orders",
        partition=0,
        version=7,
        node_id=2,
        leader_epoch=5,
        written_ms=1_000,
        tiered_end=90,
        archives=archives,
    )
    assert _manifest_row(manifest) == ManifestRow(
        version=7, written_ms=1_000, node_id=2, leader_epoch=5, tiered_end=90, archives=1
    )
