"""FindCoordinator (key 10), versions 0-6.

v1 key type. v3 flexible. v4 several keys at once (KIP-699). v5 and v6 nothing on the wire for groups. Transaction (1)
and share (2) coordinators are not here yet and answer so.
"""

from typing import Any

from stratalog.broker.api import Api, Call
from stratalog.errors import ErrorCode, Rejected

_GROUP = 0
_KEY_TYPES = (_GROUP, 1, 2)


async def handle(call: Call) -> Any:
    """The broker that coordinates each key; creates the offsets topic on first use."""
    body, reply = call.body, call.reply
    keys = list(body.coordinator_keys) if call.version >= 4 else [body.key]
    node, host, port = -1, "", -1
    error, message = ErrorCode.none, None
    key_type = getattr(body, "key_type", _GROUP)
    try:
        node, host, port = await _coordinator(call, key_type)
    except Rejected as refusal:
        error, message = ErrorCode.coordinator_not_available, refusal.message
        if key_type not in _KEY_TYPES:
            error = ErrorCode.invalid_request
    if call.version >= 4:
        return reply.FindCoordinatorResponse(
            coordinators=[
                reply.Coordinator(
                    key=key,
                    node_id=node,
                    host=host,
                    port=port,
                    error_code=error,
                    error_message=message,
                )
                for key in keys
            ]
        )
    return reply.FindCoordinatorResponse(
        error_code=error, error_message=message, node_id=node, host=host, port=port
    )


async def _coordinator(call: Call, key_type: int) -> tuple[int, str, int]:
    """Node id, host and port of the one broker there is."""
    if key_type != _GROUP:
        raise Rejected(ErrorCode.coordinator_not_available, "only groups have a coordinator here")
    await call.broker.groups.ensure_topic()
    for node, host, port, _rack in call.broker.live_brokers(call.listener):
        if node == call.broker.node_id:
            return node, host, port
    raise Rejected(ErrorCode.coordinator_not_available, "the broker is starting")


API = Api("FindCoordinator", 10, (0, 6), handle)
