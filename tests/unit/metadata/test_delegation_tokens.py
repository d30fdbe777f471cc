"""The cluster's tokens follow its image, and each has the key that Kafka gives it."""

from stratalog.metadata.delegation_tokens import DelegationTokens, TokenSecret, token_of, tokens_of
from stratalog.metadata.delta import Delta
from stratalog.metadata.image import EMPTY, Image
from stratalog.metadata.snapshot import SnapshotId, decode_snapshot, encode_snapshot, image_of
from stratalog.wire.internal.security_records import (
    DelegationTokenRecord,
    RemoveDelegationTokenRecord,
)

SECRET = TokenSecret("secretkey")


def token(token_id: str, expires: int = 2) -> DelegationTokenRecord:
    return DelegationTokenRecord(
        owner="User:alice",
        requester="User:bob",
        renewers=("User:carol",),
        issue_timestamp=1,
        max_timestamp=3,
        expiration_timestamp=expires,
        token_id=token_id,
    )


def replayed(image: Image, *records: object) -> Image:
    delta = Delta(image)
    delta.replay_all(image.offset + 1, records)
    return delta.image()


def test_the_key_is_kafkas_hmac() -> None:
    # `printf token-1 | openssl dgst -sha512 -hmac secretkey`, as DelegationTokenManager.createHmac computes it.
    assert SECRET.key_of("token-1").hex().startswith("5a2d6109ac82d1ed0d2ecd61a1d5d9d6")


def test_tokens_are_found_by_key_until_they_are_removed() -> None:
    tokens = DelegationTokens(SECRET)
    first, second = SECRET.key_of("token-1"), SECRET.key_of("token-2")
    image = replayed(EMPTY, token("token-1"))
    assert tokens.of_key(image, first) == token_of(image, "token-1") == token("token-1")
    assert tokens.of_key(image, b"") is None
    kept = repr(vars(tokens))
    assert repr(first) not in kept, "keys are looked up by their hash"
    assert SECRET.text not in kept
    changes = [token("token-2"), token("token-2", expires=3)]
    gone = RemoveDelegationTokenRecord(token_id="token-1")
    for record in (*changes, gone):
        image = replayed(image, record)
        tokens.replay(record)
    assert tokens.of_key(image, first) is None
    assert tokens.of_key(image, second) == token("token-2", expires=3)
    assert list(tokens_of(image)) == [changes[1]]
    assert token_of(image, "token-1") is None


def test_a_snapshot_keeps_them() -> None:
    image = replayed(EMPTY, token("token-1"), token("token-2"))
    identity = SnapshotId(image.offset + 1, image.epoch)
    found = image_of(decode_snapshot(encode_snapshot(image, 0, 0)), identity)
    assert found.foreign == image.foreign
