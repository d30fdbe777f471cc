"""AlterClientQuotas (key 49), versions 0-1.

KIP-546. v1 flexible. The answer has one entry for each entity, as in Kafka.
"""

from typing import NamedTuple

from stratalog.broker.coordination.local_controller import LocalController
from stratalog.broker.network.authorizer import Operation
from stratalog.broker.network.dispatch import Call
from stratalog.errors import ErrorCode, Rejected
from stratalog.metadata.client_quotas import Entity, entity_of
from stratalog.quorum.client_quotas import QuotaAlteration, QuotaChange
from stratalog.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlterClientQuotasResponseEntityData,
    AlterClientQuotasResponseEntryData,
)


class Needs(NamedTuple):
    """The parts of the broker that the handler works with."""

    local_controller: LocalController


async def handle(call: Call[AlterClientQuotasRequest, Needs]) -> AlterClientQuotasResponse:
    """Set and remove quotas; all changes of one entity are made, or none."""
    by_entity: dict[Entity, list[QuotaChange]] = {}
    twice: set[Entity] = set()
    async for entry in call.pace.each(call.body.entries):
        # As in Kafka, the last of two names of one type counts.
        names = {one.entity_type: one.entity_name for one in entry.entity}
        entity = entity_of(names.items())
        if entity in by_entity:
            twice.add(entity)
        by_entity[entity] = [
            QuotaChange(one.key, None if one.remove else one.value)
            async for one in call.pace.each(entry.ops)
        ]
    results: dict[Entity, Rejected | None] = {}
    async for part in call.pace.parts(list(by_entity)):
        results |= await _alter(call, by_entity, [one for one in part if one not in twice])
        refusal = Rejected(ErrorCode.invalid_request, "an entity is altered twice in one request")
        results |= dict.fromkeys((one for one in part if one in twice), refusal)
    return AlterClientQuotasResponse(
        entries=[_entry(*one) async for one in call.pace.each(results.items())]
    )


async def _alter(
    call: Call[AlterClientQuotasRequest, Needs],
    by_entity: dict[Entity, list[QuotaChange]],
    part: list[Entity],
) -> dict[Entity, Rejected | None]:
    try:
        if not call.allows_cluster(Operation.ALTER_CONFIGS):
            raise Rejected(ErrorCode.cluster_authorization_failed)
        results = await call.needs.local_controller.alter_client_quotas(
            [QuotaAlteration(one, by_entity[one]) for one in part],
            validate_only=call.body.validate_only,
        )
    except Rejected as error:
        return dict.fromkeys(part, error)
    return dict(zip(part, results, strict=True))


def _entry(entity: Entity, refusal: Rejected | None) -> AlterClientQuotasResponseEntryData:
    return AlterClientQuotasResponseEntryData(
        error_code=ErrorCode.none if refusal is None else refusal.code,
        error_message=None if refusal is None else refusal.message or None,
        entity=[
            AlterClientQuotasResponseEntityData(entity_type=kind, entity_name=name)
            for kind, name in entity
        ],
    )
