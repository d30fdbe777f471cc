"""Features: a request sets every level or none."""

import pytest
from msgspec.structs import replace
from tests.unit.quorum.metadata_log import configure, started

from stratalog.errors import ErrorCode, Rejected
from stratalog.metadata.image import (
    ELIGIBLE_LEADER_REPLICAS_VERSION,
    METADATA_VERSION,
    METADATA_VERSION_LEVEL,
    METADATA_VERSION_MIN,
    FeatureRange,
    ResourceType,
)
from stratalog.quorum.features import (
    SUPPORTED_FEATURES,
    FeatureUpdate,
    feature_records,
    unserved,
)


def test_an_unchanged_level_writes_no_record():
    log = started()
    asked = [FeatureUpdate(METADATA_VERSION, METADATA_VERSION_LEVEL)]
    assert list(log.controller.update_features(asked).records) == []


@pytest.mark.parametrize(
    "update",
    [
        FeatureUpdate(METADATA_VERSION, METADATA_VERSION_LEVEL + 1),
        FeatureUpdate(METADATA_VERSION, METADATA_VERSION_LEVEL - 1, 2),
        FeatureUpdate(METADATA_VERSION, METADATA_VERSION_LEVEL - 1, 3),
        FeatureUpdate(METADATA_VERSION, METADATA_VERSION_MIN - 1, 2),
        FeatureUpdate(METADATA_VERSION, -1),
        FeatureUpdate(METADATA_VERSION, METADATA_VERSION_LEVEL, 0),
        FeatureUpdate("share.version", 1),
        FeatureUpdate("kraft.version", 2),
    ],
)
def test_each_wrong_request_gets_its_error(update):
    with pytest.raises(Rejected) as refused:
        started().controller.update_features([update])
    assert refused.value.code is ErrorCode.invalid_update_version


def test_upgrades_and_downgrades_of_a_level_are_allowed_by_their_type():
    image = replace(started().image, features={METADATA_VERSION: 27})

    def levels(level, upgrade_type):
        asked = [FeatureUpdate(METADATA_VERSION, level, upgrade_type)]
        records = feature_records(image, SUPPORTED_FEATURES, {}, asked, 1)
        return [record.feature_level for record in records]

    for level in (28, 29, METADATA_VERSION_LEVEL):
        assert levels(level, 1) == [level]
    for level in (METADATA_VERSION_MIN, 26):
        assert levels(level, 2) == levels(level, 3) == [level]
    for level, upgrade_type in ((26, 1), (28, 2)):
        with pytest.raises(Rejected):
            levels(level, upgrade_type)


def test_with_eligible_leaders_all_brokers_have_one_min_insync_replicas():
    log = started()
    name, broker = "min.insync.replicas", ResourceType.BROKER
    assert log.image.configs[broker, ""] == {name: "1"}, "of a new cluster"
    level = FeatureUpdate(ELIGIBLE_LEADER_REPLICAS_VERSION, 0, 2)
    log.run(log.controller.update_features([level]))
    log.run(configure(log.controller, broker, "", {name: None}))
    log.run(configure(log.controller, broker, "1", {name: "3", "other": "x"}))
    level = FeatureUpdate(ELIGIBLE_LEADER_REPLICAS_VERSION, 1)
    log.run(log.controller.update_features([level]))
    assert log.image.configs == {(broker, ""): {name: "1"}, (broker, "1"): {"other": "x"}}
    for resource, value in (("1", "2"), ("", None)):
        decision = configure(log.controller, broker, resource, {name: value})
        assert [one.error for one in decision.answer] == [ErrorCode.invalid_config]
        assert list(decision.records) == []
    log.run(configure(log.controller, broker, "", {name: "2"}))
    assert log.image.configs[broker, ""] == {name: "2"}


def test_levels_that_a_broker_does_not_serve_are_named_with_those_that_it_does():
    supported = (FeatureRange("a", 2, 4), FeatureRange("b", 0, 1))
    assert unserved({"a": 3, "b": 1, "c": 0}, supported) == ""
    said = unserved({"a": 5, "b": 1, "c": 2}, supported)
    assert "a=5, c=2; accepted: a=4, c=0" in said
    assert "accepted: a=2" in unserved({"a": 1}, supported)


def test_a_broker_serves_the_levels_of_a_new_cluster():
    assert unserved(started().image.features, SUPPORTED_FEATURES) == ""
