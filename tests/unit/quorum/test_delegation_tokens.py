"""Delegation tokens are created, renewed and ended as Kafka's controller does it, and refused with its codes."""

from typing import Any

import pytest
from tests.unit.quorum.metadata_log import NOW_MS, SeededEntropy

from stratalog.errors import ErrorCode, Rejected
from stratalog.metadata.delegation_tokens import TokenSecret, is_expired
from stratalog.quorum.controller import Controller
from stratalog.quorum.delegation_tokens import (
    RENEWER_CHARACTERS_MAX,
    RENEWERS_MAX,
    TOKENS_MAX,
    NewToken,
    TokenRules,
    new_id,
)
from stratalog.wire.internal.security_records import DelegationTokenRecord

ALICE, BOB, CAROL = "User:alice", "User:bob", "User:carol"
SECRET = TokenSecret("a secret")
RULES = TokenRules(SECRET, lifetime_ms_max=1000, renewal_ms=100)
SEEDED = SeededEntropy(1)


class Cluster:
    """A controller, and the records that it decided."""

    def __init__(self, rules: TokenRules = RULES) -> None:
        self.controller = Controller(token_rules=rules)

    def create(self, *renewers: str, lifetime_ms: int = -1) -> DelegationTokenRecord:
        wanted = NewToken(ALICE, BOB, renewers, lifetime_ms)
        return self.decided(self.controller.create_token(wanted, SEEDED, NOW_MS))

    def decided(self, decision: Any) -> Any:
        self.controller.replay_batch(self.controller.image.offset + 1, decision.records)
        return decision.answer

    def renew(self, key: bytes, client: str = ALICE, period_ms: int = -1, at: int = 0) -> int:
        decision = self.controller.renew_token(key, client, period_ms, NOW_MS + at)
        return self.decided(decision).expiration_timestamp - NOW_MS

    def expire(self, key: bytes, client: str = ALICE, period_ms: int = -1, at: int = 0) -> int:
        decision = self.controller.expire_token(key, client, period_ms, NOW_MS + at)
        return self.decided(decision).expiration_timestamp - NOW_MS

    @property
    def tokens(self) -> list[Any]:
        return list(self.controller.image.foreign.values())


def key_of(token: DelegationTokenRecord) -> bytes:
    return SECRET.key_of(token.token_id)


def code_of(refused: pytest.ExceptionInfo[Rejected]) -> str:
    return refused.value.code.name.removeprefix("delegation_token_")


def test_a_new_token_has_kafkas_times_and_a_key_that_no_record_has() -> None:
    cluster = Cluster()
    token = cluster.create(CAROL)
    assert cluster.tokens == [token]
    assert (token.owner, token.requester, token.renewers) == (ALICE, BOB, (CAROL,))
    assert token.issue_timestamp == NOW_MS
    assert token.expiration_timestamp == NOW_MS + 100
    assert token.max_timestamp == NOW_MS + 1000
    assert len(token.token_id) == 22
    assert len(key_of(token)) == 64
    assert "a secret" not in repr((SECRET, RULES, cluster.controller.__dict__))
    shortest = cluster.create(lifetime_ms=50)
    assert shortest.expiration_timestamp == shortest.max_timestamp == NOW_MS + 50
    assert cluster.create(lifetime_ms=5000).max_timestamp == NOW_MS + 1000
    endless = TokenRules(SECRET, lifetime_ms_max=(1 << 63) - 1, renewal_ms=(1 << 63) - 1)
    assert Cluster(endless).create().expiration_timestamp == (1 << 63) - 1


def test_no_id_begins_with_a_dash() -> None:
    first = {new_id(SEEDED)[0] for _ in range(2000)}
    assert "-" not in first
    assert len(first) == 63


def test_a_token_has_few_renewers() -> None:
    """Each client may create tokens for itself: 30,000 renewers made a record of 6 MB."""
    cluster = Cluster()
    size = RENEWER_CHARACTERS_MAX // RENEWERS_MAX
    assert len(cluster.create(*["r" * size] * RENEWERS_MAX).renewers) == RENEWERS_MAX
    for renewers in (["r"] * (RENEWERS_MAX + 1), ["r" * RENEWER_CHARACTERS_MAX, "r"]):
        with pytest.raises(Rejected) as refused:
            cluster.create(*renewers)
        assert code_of(refused) == "invalid_request"


def test_an_owner_and_a_requester_have_few_tokens() -> None:
    cluster = Cluster()
    for _ in range(TOKENS_MAX):
        newest = cluster.create(lifetime_ms=50)

    def create(owner: str, requester: str) -> None:
        wanted = NewToken(owner, requester)
        cluster.decided(cluster.controller.create_token(wanted, SEEDED, NOW_MS))

    for owner, requester in ((ALICE, ALICE), (ALICE, CAROL), (CAROL, BOB)):
        with pytest.raises(Rejected, match=f"{TOKENS_MAX} tokens") as refused:
            create(owner, requester)
        assert code_of(refused) == "invalid_request"
    create(CAROL, CAROL)
    cluster.expire(key_of(newest), period_ms=-1)
    create(ALICE, BOB)


def test_only_owner_and_renewers_renew_and_end_a_token() -> None:
    cluster = Cluster()
    key = key_of(cluster.create(CAROL))
    assert cluster.renew(key, at=50) == 150
    assert cluster.renew(key, CAROL, period_ms=10, at=60) == 70
    assert cluster.renew(key, period_ms=5000, at=70) == 170
    for change in (cluster.renew, cluster.expire):
        with pytest.raises(Rejected) as refused:
            change(key, BOB)
        assert code_of(refused) == "owner_mismatch"
        with pytest.raises(Rejected) as refused:
            change(key + b"x")
        assert code_of(refused) == "not_found"
    assert cluster.expire(key, CAROL, period_ms=20, at=100) == 120
    assert cluster.expire(key, period_ms=99_999, at=100) == 1000
    (token,) = cluster.tokens
    assert token.renewers == (CAROL,)
    assert cluster.expire(key, CAROL, at=110) == 110
    assert cluster.tokens == []
    with pytest.raises(Rejected) as refused:
        cluster.renew(key)
    assert code_of(refused) == "not_found"


def test_no_renewal_lives_longer_than_the_token_may() -> None:
    cluster = Cluster()
    key = key_of(cluster.create(lifetime_ms=120))
    assert cluster.renew(key, at=80) == 120


def test_an_expired_token_can_only_be_removed() -> None:
    cluster = Cluster()
    token = cluster.create()
    key = key_of(token)
    assert not is_expired(token, NOW_MS + 100)
    assert cluster.renew(key, at=100) == 200
    for change in (cluster.renew, cluster.expire):
        with pytest.raises(Rejected) as refused:
            change(key, period_ms=5, at=201)
        assert code_of(refused) == "expired"
    assert cluster.expire(key, at=300) == 300
    assert cluster.tokens == []


def test_the_sweep_removes_expired_tokens_some_at_once() -> None:
    cluster = Cluster()
    for lifetime_ms in (10, 10, 10, 99):
        cluster.create(lifetime_ms=lifetime_ms)

    def sweep(at: int) -> int:
        return len(
            cluster.decided(cluster.controller.remove_expired_tokens(NOW_MS + at, at_most=2))
        )

    assert [sweep(10), sweep(11), sweep(11), sweep(11)] == [0, 2, 1, 0]
    assert len(cluster.tokens) == 1


def test_without_a_secret_there_are_no_tokens() -> None:
    cluster = Cluster(TokenRules())
    for ask in (cluster.create, lambda: cluster.renew(b"x"), lambda: cluster.expire(b"x")):
        with pytest.raises(Rejected) as refused:
            ask()
        assert refused.value.code is ErrorCode.delegation_token_auth_disabled
