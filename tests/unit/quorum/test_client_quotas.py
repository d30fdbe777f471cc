"""Quotas are set and removed by records in Kafka's form, and refused with INVALID_REQUEST."""

from math import inf, nan

import pytest

from stratalog.errors import ErrorCode
from stratalog.metadata.client_quotas import CLIENT_ID, IP, USER, Entity
from stratalog.quorum.client_quotas import QuotaAlteration, QuotaChange
from stratalog.quorum.controller import Controller
from stratalog.wire.internal.security_records import ClientQuotaRecord, EntityData

ALICE: Entity = ((USER, "alice"),)
BOTH: Entity = ((CLIENT_ID, "app"), (USER, "alice"))
RATE = "producer_byte_rate"


def alter(
    controller: Controller, *alterations: tuple[Entity, dict[str, float | None]]
) -> list[str]:
    """Alter quotas; return each refusal's text, "" for none."""
    decision = controller.alter_client_quotas(
        [
            QuotaAlteration(entity, [QuotaChange(*one) for one in changes.items()])
            for entity, changes in alterations
        ]
    )
    controller.replay_batch(controller.image.offset + 1, decision.records)
    assert all(one is None or one.code is ErrorCode.invalid_request for one in decision.answer)
    return ["" if one is None else one.message for one in decision.answer]


def present(controller: Controller) -> list[tuple[list[str | None], str, float]]:
    return [
        ([one.entity_name for one in record.entity], record.key, record.value)
        for record in controller.image.foreign.values()
    ]


def test_quotas_are_set_replaced_and_removed() -> None:
    controller = Controller()
    assert alter(controller, (ALICE, {RATE: 1000, "request_percentage": 12.5})) == [""]
    assert alter(controller, (BOTH, {RATE: 5}), (ALICE, {RATE: 2000})) == ["", ""]
    assert sorted(present(controller), key=str) == [
        (["alice"], "producer_byte_rate", 2000),
        (["alice"], "request_percentage", 12.5),
        (["app", "alice"], "producer_byte_rate", 5),
    ]
    assert alter(controller, (ALICE, {RATE: None, "request_percentage": None})) == [""]
    assert present(controller) == [(["app", "alice"], "producer_byte_rate", 5)]


def test_a_change_that_changes_nothing_writes_nothing() -> None:
    controller = Controller()
    alter(controller, (ALICE, {RATE: 1000}))
    for changes in ({RATE: 1000.0}, {"consumer_byte_rate": None}):
        alteration = QuotaAlteration(ALICE, [QuotaChange(*one) for one in changes.items()])
        assert controller.alter_client_quotas([alteration]).records == []


def test_an_entity_is_altered_whole_or_not_at_all() -> None:
    controller = Controller()
    refusals = alter(controller, (ALICE, {RATE: 10, "consumer_byte_rate": -1}), (BOTH, {RATE: 1}))
    assert "consumer_byte_rate -1" in refusals[0]
    assert [names for names, _, _ in present(controller)] == [["app", "alice"]]


@pytest.mark.parametrize(
    ("entity", "key", "value", "reason"),
    [
        ((), RATE, 1, "a quota needs a user"),
        ((("group", "g"),), RATE, 1, "'group'"),
        (((USER, ""),), RATE, 1, "user ''"),
        (((USER, "a\nb"),), RATE, 1, "user 'a\\nb'"),
        (((CLIENT_ID, "c"), (IP, "10.0.0.1")), "connection_creation_rate", 1, "cannot also name"),
        (((IP, "localhost"),), "connection_creation_rate", 1, "'localhost'"),
        (((IP, "10.0.0.1"),), RATE, 1, "accepted: connection_creation_rate"),
        (ALICE, "connection_creation_rate", 1, "accepted: producer_byte_rate"),
        (ALICE, RATE, 0, "above 0"),
        (ALICE, RATE, nan, "above 0"),
        (ALICE, "request_percentage", inf, "above 0"),
        (ALICE, RATE, 1.5, "a whole number"),
        (ALICE, RATE, 2.0**63 * 2, "a whole number"),
        (((IP, None),), "connection_creation_rate", 2.0**31, "a whole number"),
    ],
)
def test_a_quota_that_cannot_be_is_refused(
    entity: Entity, key: str, value: float, reason: str
) -> None:
    controller = Controller()
    (refusal,) = alter(controller, (entity, {key: value}))
    assert reason in refusal
    assert present(controller) == []


@pytest.mark.parametrize("entity", [((USER, "a\nb"),), ((IP, "localhost"),)])
def test_a_quota_of_a_name_that_kafka_let_in_can_be_removed(entity: Entity) -> None:
    key = "connection_creation_rate" if entity[0][0] == IP else RATE
    data = [EntityData(entity_type=kind, entity_name=name) for kind, name in entity]
    controller = Controller()
    there = ClientQuotaRecord(entity=tuple(data), key=key, value=1.0, remove=False)
    controller.replay_batch(1, [there])
    assert alter(controller, (entity, {key: 2})) != [""]
    assert alter(controller, (entity, {key: None})) == [""]
    assert present(controller) == []


def test_one_entity_twice_in_a_request_and_one_quota_twice_are_refused() -> None:
    controller = Controller()
    first, second = alter(controller, (ALICE, {RATE: 1}), (ALICE, {RATE: 2}))
    assert (first, "twice" in second) == ("", True)
    twice = QuotaAlteration(BOTH, [QuotaChange(RATE, 1), QuotaChange(RATE, 2)])
    (refusal,) = controller.alter_client_quotas([twice]).answer
    assert "altered twice" in str(refusal)


def test_a_dry_run_refuses_and_writes_nothing() -> None:
    changes = [QuotaAlteration(ALICE, [QuotaChange(RATE, 1)])]
    decision = Controller().alter_client_quotas(changes, validate_only=True)
    assert (decision.records, decision.answer) == ([], [None])


def test_a_quota_of_an_address_is_altered_in_each_form() -> None:
    controller, rate = Controller(), "connection_creation_rate"
    assert alter(controller, (((IP, "0:0:0:0:0:0:0:1"),), {rate: 5})) == [""]
    assert alter(controller, (((IP, "::1"),), {rate: 6})) == [""]
    assert present(controller) == [(["0:0:0:0:0:0:0:1"], rate, 6)]
    assert (
        "altered twice"
        in alter(controller, (((IP, "::1"),), {rate: 7}), (((IP, "0::1"),), {rate: 8}))[1]
    )
    assert alter(controller, (((IP, "::1"),), {rate: None})) == [""]
    assert present(controller) == []
