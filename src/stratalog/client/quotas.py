"""Calls about client quotas, in the manner of `calls.py`.

In: entities and quotas. Out: calls, and answers by entity. It never routes a request.
"""

from collections.abc import Mapping

from stratalog.client.calls import Call, asking
from stratalog.errors import ErrorCode, Rejected
from stratalog.metadata.client_quotas import Entity, entity_of
from stratalog.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntityData,
    AlterClientQuotasRequestEntryData,
    AlterClientQuotasResponse,
    OpData,
)
from stratalog.wire.messages.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)

__all__ = ["alter_quotas", "describe_quotas"]

_EXACT, _DEFAULT = 0, 1


def describe_quotas(wanted: Entity) -> Call[dict[Entity, dict[str, float]]]:
    """Return the quotas of the entities that have these names; of all for ()."""
    components = [
        ComponentData(entity_type=kind, match_type=_DEFAULT if name is None else _EXACT, match=name)
        for kind, name in wanted
    ]

    def read(body: DescribeClientQuotasResponse) -> dict[Entity, dict[str, float]]:
        _check(body.error_code, body.error_message)
        return {
            entity_of((one.entity_type, one.entity_name) for one in entry.entity): {
                one.key: one.value for one in entry.values
            }
            for entry in body.entries or ()
        }

    return asking(DescribeClientQuotasRequest(components=components, strict=False), read)


def alter_quotas(entity: Entity, changes: Mapping[str, float | None]) -> Call[None]:
    """Set quotas of an entity; None removes one. Raises Rejected."""

    def read(body: AlterClientQuotasResponse) -> None:
        for entry in body.entries:
            _check(entry.error_code, entry.error_message)

    entry = AlterClientQuotasRequestEntryData(
        entity=[
            AlterClientQuotasRequestEntityData(entity_type=kind, entity_name=name)
            for kind, name in entity
        ],
        ops=[
            OpData(key=key, value=0.0 if value is None else value, remove=value is None)
            for key, value in changes.items()
        ],
    )
    return asking(AlterClientQuotasRequest(entries=[entry], validate_only=False), read)


def _check(code: int, message: str | None) -> None:
    if code:
        raise Rejected(ErrorCode(code), message or "")
