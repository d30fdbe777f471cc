"""Features: a request sets every level or none."""

import pytest
from tests.unit.quorum.metadata_log import started

from stratalog.errors import ErrorCode, Rejected
from stratalog.metadata.image import METADATA_VERSION, METADATA_VERSION_LEVEL, FeatureRange
from stratalog.quorum.features import FeatureUpdate, feature_records


def test_an_unchanged_level_writes_no_record():
    log = started()
    asked = [FeatureUpdate(METADATA_VERSION, METADATA_VERSION_LEVEL)]
    assert list(log.controller.update_features(asked).records) == []


@pytest.mark.parametrize(
    "update",
    [
        FeatureUpdate(METADATA_VERSION, METADATA_VERSION_LEVEL + 1),
        FeatureUpdate(METADATA_VERSION, METADATA_VERSION_LEVEL - 1, 2),
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
    image = started().image
    wide = [FeatureRange(METADATA_VERSION, 7, METADATA_VERSION_LEVEL + 1)]

    def levels(level, upgrade_type):
        asked = [FeatureUpdate(METADATA_VERSION, level, upgrade_type)]
        return [record.feature_level for record in feature_records(image, wide, {}, asked)]

    assert levels(METADATA_VERSION_LEVEL + 1, 1) == [METADATA_VERSION_LEVEL + 1]
    assert levels(METADATA_VERSION_LEVEL - 1, 2) == [METADATA_VERSION_LEVEL - 1]
    for level, upgrade_type in ((METADATA_VERSION_LEVEL - 1, 1), (METADATA_VERSION_LEVEL + 1, 2)):
        with pytest.raises(Rejected):
            levels(level, upgrade_type)
