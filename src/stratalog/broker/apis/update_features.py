"""UpdateFeatures (key 57), versions 0-2.

v1 dry runs, ways to downgrade (KIP-778). v2 one error for all features.
"""

from typing import Final, NamedTuple

from stratalog.broker.coordination.local_controller import LocalController
from stratalog.broker.network.authorizer import Operation
from stratalog.broker.network.dispatch import Call
from stratalog.errors import ErrorCode, Rejected
from stratalog.quorum.controller import FeatureUpdate
from stratalog.quorum.features import UpgradeType
from stratalog.wire.messages.update_features import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

_FEATURES_MAX: Final = 100
"""Most updates in one request; Kafka has six features."""


class Needs(NamedTuple):
    """The parts of the broker that the handler works with."""

    local_controller: LocalController


async def handle(call: Call[UpdateFeaturesRequest, Needs]) -> UpdateFeaturesResponse:
    """Set levels of features, all or none."""
    body = call.body
    if not call.allows_cluster(Operation.ALTER):
        return UpdateFeaturesResponse(
            error_code=ErrorCode.cluster_authorization_failed, error_message=None, results=[]
        )
    if len(body.feature_updates) > _FEATURES_MAX:
        return UpdateFeaturesResponse(
            error_code=ErrorCode.invalid_request,
            error_message=f"more than {_FEATURES_MAX} features",
            results=[],
        )
    requested = [_update(call.version, one) for one in body.feature_updates]
    try:
        await call.needs.local_controller.update_features(
            requested, validate_only=body.validate_only
        )
    except Rejected as error:
        return UpdateFeaturesResponse(
            error_code=error.code, error_message=error.message, results=[]
        )
    return UpdateFeaturesResponse(
        error_code=ErrorCode.none,
        error_message=None,
        results=[
            UpdatableFeatureResult(feature=one.name, error_code=ErrorCode.none, error_message=None)
            for one in requested
        ],
    )


def _update(version: int, requested: FeatureUpdateKey) -> FeatureUpdate:
    """Return a feature's update; version 0 has only a flag that allows downgrades."""
    upgrade_type = requested.upgrade_type
    if version == 0:
        downgrade = requested.allow_downgrade
        upgrade_type = UpgradeType.SAFE_DOWNGRADE if downgrade else UpgradeType.UPGRADE
    return FeatureUpdate(requested.feature, requested.max_version_level, upgrade_type)
