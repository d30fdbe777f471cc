"""DescribeClientQuotas (key 48), versions 0-1.

KIP-546. v1 flexible. Filters and their refusals are Kafka's (`ClientQuotasImage.describe`).
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from stratalog.broker.coordination.cluster_image import ClusterImage
from stratalog.broker.network.authorizer import Operation
from stratalog.broker.network.dispatch import Call
from stratalog.config.addresses import is_same_address
from stratalog.errors import ErrorCode, Rejected
from stratalog.metadata.client_quotas import CLIENT_ID, IP, USER, Entity
from stratalog.wire.messages.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntityData,
    EntryData,
    ValueData,
)

_EXACT, _DEFAULT, _SPECIFIED = range(3)
_TYPES: Final = (USER, CLIENT_ID, IP)


class Needs(NamedTuple):
    """The parts of the broker that the handler works with."""

    metadata: ClusterImage


async def handle(call: Call[DescribeClientQuotasRequest, Needs]) -> DescribeClientQuotasResponse:
    """Return the quotas of the entities that match each component of the filter."""
    try:
        if not call.allows_cluster(Operation.DESCRIBE_CONFIGS):
            raise Rejected(ErrorCode.cluster_authorization_failed)
        wanted = _wanted(call.body.components)
    except Rejected as error:
        return DescribeClientQuotasResponse(
            error_code=error.code, error_message=error.message or None, entries=None
        )
    found = call.needs.metadata.client_quotas.by_entity
    entries = []
    async for entity, quotas in call.pace.each(list(found.items())):
        if _matches(entity, wanted, is_strict=call.body.strict):
            values = [ValueData(key=key, value=quotas[key]) for key in sorted(quotas)]
            names = [EntityData(entity_type=kind, entity_name=name) for kind, name in entity]
            entries.append(EntryData(entity=names, values=values))
    return DescribeClientQuotasResponse(
        error_code=ErrorCode.none, error_message=None, entries=entries
    )


def _wanted(components: Sequence[ComponentData]) -> dict[str, ComponentData]:
    """Return the filter's components by entity type. Raises Rejected for an invalid filter."""
    wanted: dict[str, ComponentData] = {}
    for one in components:
        kind, named = one.entity_type, one.match is not None
        reason = None
        if not kind:
            reason = "an entity type is empty"
        elif kind in wanted:
            reason = f"entity type {kind} is filtered twice"
        elif kind not in _TYPES:
            raise Rejected(ErrorCode.unsupported_version, f"entity type {kind!r} is not supported")
        elif one.match_type not in {_EXACT, _DEFAULT, _SPECIFIED}:
            reason = f"match type {one.match_type} is not accepted; accepted: 0, 1, 2"
        elif named != (one.match_type == _EXACT):
            reason = f"match type {one.match_type} of {kind}: only type 0, EXACT, takes a name"
        if reason is not None:
            raise Rejected(ErrorCode.invalid_request, reason)
        wanted[kind] = one
    if IP in wanted and len(wanted) > 1:
        raise Rejected(
            ErrorCode.invalid_request, "a filter of an ip cannot also name a user or a client-id"
        )
    return wanted


def _matches(entity: Entity, wanted: dict[str, ComponentData], *, is_strict: bool) -> bool:
    names = dict(entity)
    if is_strict and len(names) != len(wanted):
        return False
    return all(
        kind in names and (one.match_type == _SPECIFIED or _is_named(kind, names[kind], one.match))
        for kind, one in wanted.items()
    )


def _is_named(kind: str, name: str | None, wanted: str | None) -> bool:
    if kind == IP and name is not None and wanted is not None:
        return is_same_address(name, wanted)
    return name == wanted
