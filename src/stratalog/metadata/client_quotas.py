"""Client quotas: which ones the cluster has, and which one limits a client.

In: images of the metadata, with their ClientQuotaRecords. Out: limits by entity, and the limit of a user with a client
id, or of an address. It never counts what a client does.

Kafka: `ClientQuotasImage`, `ClientQuotaManager.DefaultQuotaCallback`.
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, TypeAlias

from stratalog.config.addresses import address_text
from stratalog.metadata.image import EMPTY, Image
from stratalog.wire.internal.security_records import ClientQuotaRecord

__all__ = [
    "CLIENT_ID",
    "CONNECTION_RATE",
    "CONSUMER_BYTE_RATE",
    "IP",
    "IP_KEYS",
    "MUTATION_RATE",
    "PRODUCER_BYTE_RATE",
    "REQUEST_PERCENTAGE",
    "USER",
    "USER_KEYS",
    "ClientQuotas",
    "Entity",
    "Limit",
    "by_value",
    "entity_of",
]

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"

PRODUCER_BYTE_RATE: Final = "producer_byte_rate"
CONSUMER_BYTE_RATE: Final = "consumer_byte_rate"
REQUEST_PERCENTAGE: Final = "request_percentage"
MUTATION_RATE: Final = "controller_mutation_rate"
CONNECTION_RATE: Final = "connection_creation_rate"
USER_KEYS: Final = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE, MUTATION_RATE)
"""The quotas of users and client ids."""
IP_KEYS: Final = (CONNECTION_RATE,)

Entity: TypeAlias = tuple[tuple[str, str | None], ...]
"""(type, name) pairs in order of their types, as Kafka writes them. The name None stands for every name without a quota
of its own."""
_RECORD: Final = ClientQuotaRecord.__name__


class Limit(NamedTuple):
    """The quota of a client: clients of the same `user` and `client_id` share it. "" stands for any."""

    user: str
    client_id: str
    bound: float


def entity_of(pairs: Iterable[tuple[str, str | None]]) -> Entity:
    """Return the entity that these pairs of type and name describe."""
    return tuple(sorted(pairs, key=lambda pair: pair[0]))


def by_value(entity: Entity) -> Entity:
    """Return the entity with its address in the form of `address_text`."""
    return tuple(
        (kind, address_text(name) if kind == IP and name else name) for kind, name in entity
    )


class ClientQuotas:
    """The client quotas of one image after another."""

    def __init__(self) -> None:
        self.by_entity: Mapping[Entity, Mapping[str, float]] = {}
        self.version = 0
        """Grows with each change."""
        self.keys: frozenset[str] = frozenset()
        """The quotas that at least one entity has."""
        self._seen = EMPTY.foreign
        self._records: list[ClientQuotaRecord] = []
        self._stored: dict[Entity, Entity] = {}
        """The entities as the cluster has them, by value."""

    def follow(self, image: Image) -> None:
        """Take the quotas of an image."""
        if image.foreign is self._seen:
            return
        self._seen = image.foreign
        records = [record for (kind, _), record in image.foreign.items() if kind == _RECORD]
        if records == self._records:
            return
        self._records = records
        found: dict[Entity, dict[str, float]] = {}
        for record in records:
            entity = entity_of((one.entity_type, one.entity_name) for one in record.entity)
            found.setdefault(entity, {})[record.key] = record.value
        self.by_entity = found
        self._stored = {by_value(entity): entity for entity in found}
        self.keys = frozenset(record.key for record in records)
        self.version += 1

    def limit(self, key: str, user: str, client_id: str) -> Limit | None:
        """Return the quota of a user's client; None where nothing limits it.

        The most specific entity wins: a user with a client id, a user, a client id, each name before the default. An
        empty client id has no quota of its own, and that of its user instead of the default client id's.
        """
        shared_user, shared_id = self._shared(key, user, client_id)
        for entity in _entities(shared_user, shared_id):
            bound = self.by_entity.get(entity, {}).get(key)
            if bound is not None:
                return Limit(shared_user, shared_id, bound)
        return None

    def connection_rate(self, address: str) -> float | None:
        """Return how many connections a second an address may open; None: any number.

        The address has the form of `address_text`; quotas may have others.
        """
        for name in (address, None):
            entity = self._stored.get(((IP, name),), ())
            bound = self.by_entity.get(entity, {}).get(CONNECTION_RATE)
            if bound is not None:
                return bound
        return None

    def as_stored(self, entity: Entity) -> Entity:
        """Return the entity as the cluster has it, whose address may be in another form."""
        return entity if entity in self.by_entity else self._stored.get(by_value(entity), entity)

    def _shared(self, key: str, user: str, client_id: str) -> tuple[str, str]:
        """Return the user and the client id that share one limit with this client, "" for any.

        Kafka: `DefaultQuotaCallback.quotaMetricTags`.
        """
        order = (
            (((CLIENT_ID, client_id), (USER, user)), (user, client_id)),
            (((CLIENT_ID, None), (USER, user)), (user, client_id)),
            (((USER, user),), (user, "")),
            (((CLIENT_ID, client_id), (USER, None)), (user, client_id)),
            (((CLIENT_ID, None), (USER, None)), (user, client_id)),
            (((USER, None),), (user, "")),
        )
        for entity, shared in order:
            if key in self.by_entity.get(entity, {}):
                return shared
        return "", client_id


def _entities(user: str, client_id: str) -> tuple[Entity, ...]:
    """Return the entities whose quota may limit those that share one, the most specific first."""
    if user and client_id:
        return (
            ((CLIENT_ID, client_id), (USER, user)),
            ((CLIENT_ID, None), (USER, user)),
            ((CLIENT_ID, client_id), (USER, None)),
            ((CLIENT_ID, None), (USER, None)),
        )
    if user:
        return ((USER, user),), ((USER, None),)
    if client_id:
        return ((CLIENT_ID, client_id),), ((CLIENT_ID, None),)
    return ()
