"""What the broker that a client asks checks of new settings itself, before the controller sees them.

In: a client's AlterConfigs or IncrementalAlterConfigs. Out: refusals, and the request without what is refused. A broker
knows its own directories alone, so the controller cannot check those of others. It never changes a setting.

Kafka: ConfigAdminManager.preprocess, which refuses every setting of another broker.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Protocol

from msgspec.structs import replace

from stratalog.config import BrokerConfig
from stratalog.config.rules import check_asked
from stratalog.errors import Rejected
from stratalog.metadata.image import ResourceType
from stratalog.quorum.configurations import Altered
from stratalog.quorum.configurations import Operation as Action
from stratalog.wire.envelope import Received, decode_response, encode_request, encode_response
from stratalog.wire.messages import alter_configs, incremental_alter_configs

_SETS: Final = (Action.SET, Action.APPEND)
_LENGTH_BYTES: Final = 4
_ANSWERS: Final = {
    one.KEY: (answer, row)
    for one, answer, row in (
        (
            alter_configs.AlterConfigsRequest,
            alter_configs.AlterConfigsResponse,
            alter_configs.AlterConfigsResourceResponse,
        ),
        (
            incremental_alter_configs.IncrementalAlterConfigsRequest,
            incremental_alter_configs.IncrementalAlterConfigsResponse,
            incremental_alter_configs.AlterConfigsResourceResponse,
        ),
    )
}


class NewSettings(Protocol):
    """A resource of either request."""

    @property
    def resource_type(self) -> int: ...
    @property
    def resource_name(self) -> str: ...
    @property
    def configs(self) -> Sequence[Any]: ...


def refused_here(config: BrokerConfig, resource: NewSettings) -> Altered | None:
    """Return the refusal of the broker that a client asked, if it refuses a resource's new settings."""
    kind, name = resource.resource_type, resource.resource_name
    if kind != ResourceType.BROKER:
        return None
    new = {
        one.name: one.value
        for one in resource.configs
        # AlterConfigs only sets.
        if getattr(one, "config_operation", Action.SET) in _SETS and one.value is not None
    }
    try:
        check_asked(config, name, new)
    except Rejected as error:
        return Altered(kind, name, error.code, error.message)
    return None


async def forward_checked(
    config: BrokerConfig,
    received: Received,
    frame: bytes,
    forward: Callable[[bytes], Awaitable[bytes | None]],
) -> bytes | None:
    """Return the response to either request, with its header, of which `forward` answers what this broker accepts.

    `received` is the request that `frame` has. Return None where `forward` does.
    """
    header, body = received.header, received.body
    key, version = header.api_key, header.version
    refusals = [refused_here(config, one) for one in body.resources]
    left = [one for one, no in zip(body.resources, refusals, strict=True) if no is None]
    if len(left) == len(body.resources):
        return await forward(frame)
    answer_of, row_of = _ANSWERS[key]
    rows: list[Any] = [
        row_of(
            error_code=one.error,
            error_message=one.message,
            resource_type=one.resource_type,
            resource_name=one.resource_name,
        )
        for one in refusals
        if one is not None
    ]
    if left:
        rest = encode_request(
            version, header.correlation_id, header.client_id, replace(body, resources=left)
        )
        answer = await forward(b"".join(rest)[_LENGTH_BYTES:])
        if answer is None:
            return None
        rows += decode_response(key, version, memoryview(answer))[1].responses
    pieces = encode_response(key, version, header.correlation_id, answer_of(responses=rows))
    return b"".join(pieces)[_LENGTH_BYTES:]
