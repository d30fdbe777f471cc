"""UpdateFeatures (key 57), versions 0-2.

v1 dry runs, ways to downgrade (KIP-778). v2 one error for all, no results of features.
"""

from typing import Any

from stratalog.broker.api import Api, Call
from stratalog.errors import ErrorCode, Rejected
from stratalog.quorum.controller import FeatureUpdate
from stratalog.quorum.features import UpgradeType


async def handle(call: Call) -> Any:
    """Set levels of features, all or none."""
    body, reply = call.body, call.reply
    asked = [_update(one) for one in body.feature_updates]
    try:
        await call.broker.metadata.update_features(
            asked, validate_only=getattr(body, "validate_only", False)
        )
    except Rejected as error:
        return reply.UpdateFeaturesResponse(
            error_code=error.code, error_message=error.message, results=[]
        )
    return reply.UpdateFeaturesResponse(
        error_code=ErrorCode.none,
        error_message=None,
        results=[
            reply.UpdatableFeatureResult(
                feature=one.name, error_code=ErrorCode.none, error_message=None
            )
            for one in asked
        ],
    )


def _update(one: Any) -> FeatureUpdate:
    """Version 0 says only whether a downgrade is allowed."""
    upgrade_type = getattr(one, "upgrade_type", None)
    if upgrade_type is None:
        downgrade = one.allow_downgrade
        upgrade_type = UpgradeType.SAFE_DOWNGRADE if downgrade else UpgradeType.UPGRADE
    return FeatureUpdate(one.feature, one.max_version_level, upgrade_type)


API = Api("UpdateFeatures", 57, (0, 2), handle)
