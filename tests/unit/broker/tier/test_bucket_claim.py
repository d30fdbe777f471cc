"""The first claim compares the bucket with the manifests beside the logs, in few requests and without a list."""

import pytest
from tests.faulty_store import FaultyStore
from tests.unit.tier.writing.test_tier_writer import archive, segments, tier_of

from stratalog.adapters.object_store import MemoryStore
from stratalog.broker.tier.bucket_claim import check_history
from stratalog.errors import UserError
from stratalog.tier.bucket.identity import claim_bucket

CLUSTER = "cluster"


@pytest.fixture
def store():
    made = MemoryStore("memory://history")
    claim_bucket(made, CLUSTER, 0)
    return made


def calls_of(store, *manifests):
    """Return the calls that the check makes."""
    calls = []
    check_history(FaultyStore(store, lambda name, _path: calls.append(name)), CLUSTER, manifests)
    return calls


def test_a_manifest_that_the_bucket_has_costs_one_request(store):
    tier = tier_of(store)
    first = tier.manifest
    made, end = segments(3)
    archive(tier, made, end)
    assert calls_of(store, tier.manifest) == ["size"]
    assert calls_of(store, first, tier.manifest) == ["size", "size"]
    assert calls_of(store) == []


def test_a_version_that_the_bucket_has_pruned_is_no_loss(store):
    tier = tier_of(store)
    versions = [tier.manifest]
    made, end = segments(150)
    for one in made:
        archive(tier, [one], end)
        versions.append(tier.manifest)
    paths = {info.path for info in store.list("")}
    pruned = [one for one in versions if f"{one.prefix}manifest/{one.version:020}" not in paths]
    assert len(pruned) > 100
    for local in pruned:
        assert len(calls_of(store, local)) <= 4


def test_a_bucket_without_a_manifest_or_with_older_ones_is_refused(store):
    tier = tier_of(store)
    made, end = segments(3)
    archive(tier, made, end)
    empty = MemoryStore("memory://empty")
    with pytest.raises(UserError, match=r"version 2 of its manifest, the bucket has none; name"):
        check_history(empty, CLUSTER, [tier.manifest])
    older = MemoryStore("memory://older")
    claim_bucket(older, CLUSTER, 0)
    tier_of(older)
    with pytest.raises(UserError, match=r"the bucket has version 1; name the right bucket"):
        check_history(older, CLUSTER, [tier.manifest])
    theirs = MemoryStore("memory://theirs")
    claim_bucket(theirs, "another", 0)
    check_history(theirs, CLUSTER, [tier.manifest])  # the claim says whose it is
