"""ApiVersions (key 18), versions 0-4.

v1 throttle time. v3 flexible, client software's name and version (KIP-511), features (KIP-584). v4 features with a
minimum of 0. The answer's header is always version 0, and an unknown higher version gets a version 0 answer (KIP-511).
"""

import re
from typing import Final, NamedTuple

from stratalog.broker.coordination.cluster_view import ClusterView
from stratalog.broker.coordination.metadata_quorum import MetadataQuorum
from stratalog.broker.network.dispatch import Api, Call, advertised
from stratalog.errors import ErrorCode
from stratalog.quorum.features import SUPPORTED_FEATURES
from stratalog.wire.messages.api_versions import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

_FLEXIBLE_FROM: Final = 3
_SOFTWARE_CHARACTERS: Final = 100
"""Most characters of the client's library name, because the client chooses the name and the log has it."""
_LEVEL_0_FROM: Final = 4
"""Earlier versions cannot name level 0 (KAFKA-17011)."""
_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?")
"""Names and versions of client software (Kafka: `ApiVersionsRequest.isValid`)."""


class Needs(NamedTuple):
    """The parts of the broker that the handler works with."""

    apis: dict[int, Api]
    cluster: ClusterView
    quorum: MetadataQuorum


def handle(call: Call[ApiVersionsRequest, Needs]) -> ApiVersionsResponse:
    """Return the served APIs and the finalized features; INVALID_REQUEST for a malformed name or version of the
    client's software.
    """
    image = call.needs.cluster.image
    finalized = {**image.features, "kraft.version": call.needs.quorum.kraft_version}
    if call.version >= _FLEXIBLE_FROM and not _is_valid(call.body):
        return ApiVersionsResponse(error_code=ErrorCode.invalid_request, api_keys=[])
    if call.version >= _FLEXIBLE_FROM:
        software = f"{call.body.client_software_name} {call.body.client_software_version}"
        call.session.software = software[:_SOFTWARE_CHARACTERS]
    return ApiVersionsResponse(
        error_code=ErrorCode.none,
        api_keys=advertised(call.needs.apis, call.session.listener.kind),
        supported_features=[
            SupportedFeatureKey(
                name=one.name,
                min_version=max(one.min_level, call.version < _LEVEL_0_FROM),
                max_version=one.max_level,
            )
            for one in SUPPORTED_FEATURES
        ]
        if call.version >= _FLEXIBLE_FROM
        else [],
        finalized_features_epoch=image.offset,
        finalized_features=[
            FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, level in finalized.items()
            if level > 0
        ]
        if call.version >= _FLEXIBLE_FROM
        else [],
    )


def _is_valid(body: ApiVersionsRequest) -> bool:
    software = (body.client_software_name, body.client_software_version)
    return all(_SOFTWARE.fullmatch(one) for one in software)
