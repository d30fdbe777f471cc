"""The bucket as the console sees it, while it comes and goes."""

import asyncio
from pathlib import Path
from shutil import rmtree

import pytest
from tests.unit.console.test_measured import Clock, Inline

from stratalog.adapters.directory_store import DirectoryStore
from stratalog.console.history import History
from stratalog.errors import UserError
from stratalog.tier.bucket.identity import claim_bucket


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
