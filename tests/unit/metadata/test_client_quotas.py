"""The most specific quota limits a client, and the clients that it names together share it."""

import pytest

from stratalog.metadata.client_quotas import CLIENT_ID, IP, USER, ClientQuotas, Entity, Limit
from stratalog.metadata.delta import Delta
from stratalog.metadata.image import EMPTY, Image
from stratalog.metadata.snapshot import SnapshotId, decode_snapshot, encode_snapshot, image_of
from stratalog.wire.internal.security_records import ClientQuotaRecord, EntityData

KEY = "producer_byte_rate"
ORDER: list[tuple[Entity, Limit]] = [
    (((CLIENT_ID, "c"), (USER, "u")), Limit("u", "c", 1.0)),
    (((CLIENT_ID, None), (USER, "u")), Limit("u", "c", 2.0)),
    (((USER, "u"),), Limit("u", "", 3.0)),
    (((CLIENT_ID, "c"), (USER, None)), Limit("u", "c", 4.0)),
    (((CLIENT_ID, None), (USER, None)), Limit("u", "c", 5.0)),
    (((USER, None),), Limit("u", "", 6.0)),
    (((CLIENT_ID, "c"),), Limit("", "c", 7.0)),
    (((CLIENT_ID, None),), Limit("", "c", 8.0)),
]
"""Kafka's order (`ClientQuotaManager`), and the clients that share each limit."""


def record(entity: Entity, value: float, key: str = KEY, *, remove: bool = False) -> object:
    named = tuple(EntityData(entity_type=kind, entity_name=name) for kind, name in entity)
    return ClientQuotaRecord(entity=named, key=key, value=value, remove=remove)


def replayed(image: Image, *records: object) -> Image:
    delta = Delta(image)
    delta.replay_all(image.offset + 1, records)
    return delta.image()


def following(image: Image) -> ClientQuotas:
    quotas = ClientQuotas()
    quotas.follow(image)
    return quotas


def test_the_most_specific_quota_wins_and_the_next_takes_its_place() -> None:
    image = replayed(EMPTY, *(record(entity, limit.bound) for entity, limit in ORDER))
    quotas = following(image)
    for entity, limit in ORDER:
        assert quotas.limit(KEY, "u", "c") == limit
        assert quotas.limit("consumer_byte_rate", "u", "c") is None
        version = quotas.version
        image = replayed(image, record(entity, 0, remove=True))
        quotas.follow(image)
        assert quotas.version == version + 1
    assert quotas.limit(KEY, "u", "c") is None
    assert not quotas.keys


@pytest.mark.parametrize(
    ("user", "client_id", "wanted"),
    [
        ("v", "c", Limit("v", "c", 4.0)),
        ("v", "d", Limit("v", "d", 5.0)),
        ("u", "d", Limit("u", "d", 2.0)),
        # As in Kafka: a default client id names the client, and a client without an id has its user's quota.
        ("u", "", Limit("u", "", 3.0)),
        ("v", "", Limit("v", "", 6.0)),
    ],
)
def test_defaults_stand_for_names_without_a_quota(user: str, client_id: str, wanted: Limit) -> None:
    quotas = following(replayed(EMPTY, *(record(entity, one.bound) for entity, one in ORDER)))
    assert quotas.limit(KEY, user, client_id) == wanted


def test_an_address_has_its_own_connection_rate_or_the_default() -> None:
    rate = "connection_creation_rate"
    quotas = following(replayed(EMPTY, record(((IP, "10.0.0.1"),), 5, rate)))
    assert quotas.connection_rate("10.0.0.1") == 5
    assert quotas.connection_rate("10.0.0.2") is None
    quotas.follow(replayed(EMPTY, record(((IP, None),), 7, rate)))
    assert quotas.connection_rate("10.0.0.1") == 7
    assert quotas.limit(KEY, "10.0.0.1", "10.0.0.1") is None


def test_a_snapshot_keeps_quotas() -> None:
    image = replayed(EMPTY, *(record(entity, limit.bound) for entity, limit in ORDER))
    identity = SnapshotId(image.offset + 1, image.epoch)
    loaded = image_of(decode_snapshot(encode_snapshot(image, 0, 0)), identity)
    assert following(loaded).by_entity == following(image).by_entity
    assert len(following(loaded).by_entity) == len(ORDER)


def test_an_address_has_its_quota_in_each_form() -> None:
    rate = "connection_creation_rate"
    quotas = following(replayed(EMPTY, record(((IP, "2001:DB8::1"),), 5, rate)))
    assert quotas.connection_rate("2001:db8:0:0:0:0:0:1") == 5
    assert quotas.connection_rate("2001:db8:0:0:0:0:0:2") is None
