"""Set and remove client quotas: refuse, or return records.

In: a request's changes, and the quotas that the cluster has. Out: records, and for each entity why it is refused. It
never changes a quota.

Refusals and their codes are Kafka's (`ClientQuotaControlManager`); the messages are this project's.
"""

from collections.abc import Sequence
from math import isfinite
from typing import Final, NamedTuple

from stratalog.config.addresses import is_address
from stratalog.errors import ErrorCode, Rejected
from stratalog.metadata.client_quotas import (
    CLIENT_ID,
    CONNECTION_RATE,
    CONSUMER_BYTE_RATE,
    IP,
    IP_KEYS,
    PRODUCER_BYTE_RATE,
    USER,
    USER_KEYS,
    ClientQuotas,
    Entity,
)
from stratalog.wire.internal.security_records import ClientQuotaRecord, EntityData

__all__ = ["QuotaAlteration", "QuotaChange", "alteration_records"]

_LONG_MAX: Final = 2**63 - 1
_INT_MAX: Final = 2**31 - 1
_WHOLE_MAX: Final = {
    PRODUCER_BYTE_RATE: _LONG_MAX,
    CONSUMER_BYTE_RATE: _LONG_MAX,
    CONNECTION_RATE: _INT_MAX,
}
"""The largest value of each quota that must be a whole number."""
_FRACTION: Final = 1e-6
"""Kafka takes a number this close to a whole one as whole."""


class QuotaChange(NamedTuple):
    """One quota of an entity: the new value, or None to remove it."""

    key: str
    value: float | None


class QuotaAlteration(NamedTuple):
    """The changes of one entity. All are made, or none."""

    entity: Entity
    changes: Sequence[QuotaChange]


def alteration_records(
    quotas: ClientQuotas, alterations: Sequence[QuotaAlteration]
) -> tuple[list[ClientQuotaRecord], list[Rejected | None]]:
    """Return a record for each quota that changes, and for each alteration why it is refused, or None."""
    records: list[ClientQuotaRecord] = []
    results: list[Rejected | None] = []
    seen: set[Entity] = set()
    for wanted, changes in alterations:
        entity = quotas.as_stored(wanted)
        reason = _refusal(entity, changes)
        if reason is None and entity in seen:
            reason = f"quotas of {_text(entity)} are altered twice in one request"
        seen.add(entity)
        results.append(None if reason is None else Rejected(ErrorCode.invalid_request, reason))
        if reason is None:
            present = quotas.by_entity.get(entity, {})
            records += [
                _record(entity, one) for one in changes if one.value != present.get(one.key)
            ]
    return records, results


def _record(entity: Entity, change: QuotaChange) -> ClientQuotaRecord:
    return ClientQuotaRecord(
        entity=tuple(EntityData(entity_type=kind, entity_name=name) for kind, name in entity),
        key=change.key,
        value=0.0 if change.value is None else change.value,
        remove=change.value is None,
    )


def _refusal(entity: Entity, changes: Sequence[QuotaChange]) -> str | None:
    is_set = any(one.value is not None for one in changes)
    return _entity_refusal(entity, is_set=is_set) or _keys_refusal(entity, changes)


def _entity_refusal(entity: Entity, *, is_set: bool) -> str | None:
    """Return why an entity is refused. A quota that Kafka let in under another name may be removed."""
    kinds = [kind for kind, _ in entity]
    if not kinds:
        return "a quota needs a user, a client-id or an ip"
    for kind, name in entity:
        if kind not in {USER, CLIENT_ID, IP}:
            return f"entity type {kind!r} is not accepted; accepted: {USER}, {CLIENT_ID}, {IP}"
        if not is_set:
            continue
        if name is not None and not (name and name.isprintable()):
            return f"{kind} {name!r} is empty or has a character that cannot be printed"
        if kind == IP and name is not None and not is_address(name):
            return f"ip {name!r} is no address; accepted: an IPv4 or IPv6 address, no host name"
    if len(set(kinds)) < len(kinds):
        return f"{kinds} names one entity type twice"
    if IP in kinds and len(kinds) > 1:
        return "a quota of an ip cannot also name a user or a client-id"
    return None


def _keys_refusal(entity: Entity, changes: Sequence[QuotaChange]) -> str | None:
    accepted = IP_KEYS if entity[0][0] == IP else USER_KEYS
    seen: set[str] = set()
    for key, value in changes:
        if key in seen:
            return f"quota {key} of {_text(entity)} is altered twice"
        seen.add(key)
        if value is None:
            continue
        if key not in accepted:
            return (
                f"quota {key!r} is not accepted of {_text(entity)}; accepted: {', '.join(accepted)}"
            )
        if not isfinite(value) or value <= 0:
            return f"{key} {value} is not accepted; accepted: a number above 0"
        largest = _WHOLE_MAX.get(key)
        if largest is not None and (value > largest or abs(value % 1.0) > _FRACTION):
            return f"{key} {value} is not accepted; accepted: a whole number up to {largest}"
    return None


def _text(entity: Entity) -> str:
    return " ".join(f"{kind} {'<default>' if name is None else name}" for kind, name in entity)
