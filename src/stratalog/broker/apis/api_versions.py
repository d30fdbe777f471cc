"""ApiVersions (key 18), versions 0-4.

v1 throttle time. v3 flexible, client software name, features (KIP-584). v4 features with a minimum of 0. The answer's
header is always version 0, and an unknown higher version gets a version 0 answer (KIP-511).
"""

from typing import Any

from stratalog.broker.api import API_VERSIONS, Api, Call, advertised
from stratalog.errors import ErrorCode


def handle(call: Call) -> Any:
    """All that is served, and the finalized features."""
    image = call.broker.metadata.image
    reply = call.reply
    return reply.ApiVersionsResponse(
        error_code=ErrorCode.none,
        api_keys=advertised(reply, call.broker.apis),
        supported_features=[
            reply.SupportedFeatureKey(name=name, min_version=low, max_version=high)
            for name, (low, high) in call.broker.supported_features.items()
        ]
        if call.version >= 3
        else [],
        finalized_features_epoch=image.offset,
        finalized_features=[
            reply.FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, level in image.features.items()
            if level > 0
        ]
        if call.version >= 3
        else [],
    )


API = Api("ApiVersions", API_VERSIONS, (0, 4), handle)
