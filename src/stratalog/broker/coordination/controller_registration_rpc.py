"""A controller's registration as Kafka's messages, both ways (KIP-919).

In: the record of a controller, or its message. Out: the other one. It never sends anything.
"""

from stratalog.errors import ErrorCode, Rejected
from stratalog.wire.internal.metadata_records import (
    ControllerEndpoint,
    ControllerFeature,
    RegisterControllerRecord,
)
from stratalog.wire.messages.controller_registration import (
    ControllerRegistrationRequest,
    ControllerRegistrationResponse,
    Feature,
    Listener,
)

__all__ = ["check_registered", "controller_of", "controller_request"]


def controller_request(
    record: RegisterControllerRecord,
) -> ControllerRegistrationRequest:
    """Return the request of a controller that registers as `record` says."""
    return ControllerRegistrationRequest(
        controller_id=record.controller_id,
        incarnation_id=record.incarnation_id,
        zk_migration_ready=record.zk_migration_ready,
        listeners=[
            Listener(
                name=one.name,
                host=one.host,
                port=one.port,
                security_protocol=one.security_protocol,
            )
            for one in record.end_points
        ],
        features=[
            Feature(
                name=one.name,
                min_supported_version=one.min_supported_version,
                max_supported_version=one.max_supported_version,
            )
            for one in record.features
        ],
    )


def controller_of(
    body: ControllerRegistrationRequest,
) -> RegisterControllerRecord:
    """Return the record of a controller's request."""
    return RegisterControllerRecord(
        controller_id=body.controller_id,
        incarnation_id=body.incarnation_id,
        zk_migration_ready=False,
        end_points=tuple(
            ControllerEndpoint(
                name=one.name,
                host=one.host,
                port=one.port,
                security_protocol=one.security_protocol,
            )
            for one in body.listeners
        ),
        features=tuple(
            ControllerFeature(
                name=one.name,
                min_supported_version=one.min_supported_version,
                max_supported_version=one.max_supported_version,
            )
            for one in body.features
        ),
    )


def check_registered(body: ControllerRegistrationResponse) -> None:
    """Raise Rejected where the controller was not registered."""
    if body.error_code:
        code = ErrorCode(body.error_code)
        raise Rejected(code, f"the controller answers ControllerRegistration with {code.name}")
