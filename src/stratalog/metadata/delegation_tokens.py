"""Delegation tokens: which ones the cluster has, and the key that the cluster's secret gives each of them.

In: images of the metadata, with their DelegationTokenRecords; the secret. Out: tokens by id and by key. It never
changes a token, and no record has a key or the secret.

Kafka: `DelegationTokenCache`, `DelegationTokenManager.createHmac` (KIP-48).
"""

import hmac
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final

from stratalog.metadata.image import Image
from stratalog.wire.internal.security_records import (
    DelegationTokenRecord,
    RemoveDelegationTokenRecord,
)

__all__ = ["DelegationTokens", "TokenSecret", "is_expired", "token_of", "tokens_of"]

_RECORD: Final = DelegationTokenRecord.__name__


@dataclass(frozen=True, slots=True)
class TokenSecret:
    """The secret of `delegation.token.secret.key`; an empty one turns tokens off. Its `repr` shows nothing."""

    text: str = field(default="", repr=False)

    @property
    def is_set(self) -> bool:
        """Whether tokens are on."""
        return bool(self.text)

    def key_of(self, token_id: str) -> bytes:
        """Return the key of a token, its HMAC: what a client shows to use the token."""
        return hmac.digest(self.text.encode(), token_id.encode(), "sha512")


def token_of(image: Image, token_id: str) -> DelegationTokenRecord | None:
    """Return a token of the cluster; None where there is none of that id."""
    found: DelegationTokenRecord | None = image.foreign.get((_RECORD, token_id))
    return found


def tokens_of(image: Image) -> Iterator[DelegationTokenRecord]:
    """Yield the cluster's tokens."""
    return (record for (kind, _), record in image.foreign.items() if kind == _RECORD)


def is_expired(token: DelegationTokenRecord, now_ms: int) -> bool:
    """Return whether a token's time is over; `now_ms`: epoch ms."""
    return min(token.max_timestamp, token.expiration_timestamp) < now_ms


class DelegationTokens:
    """Finds tokens by key: it knows the key of each token of an image, and of those that later records add.

    It looks keys up by their SHA-256. So the time of a look-up tells nothing about a key: a client cannot choose the
    bytes that are compared.
    """

    def __init__(self, secret: TokenSecret) -> None:
        self._secret = secret
        self._ids: dict[bytes, str] | None = None
        """By the key's SHA-256; None before the first question, because keys of thousands of tokens take a while."""

    def replay(self, record: Any) -> None:
        """Take a record that the image has from now on."""
        if self._ids is None:
            return
        if isinstance(record, DelegationTokenRecord):
            self._ids[self._place_of(record.token_id)] = record.token_id
        elif isinstance(record, RemoveDelegationTokenRecord):
            self._ids.pop(self._place_of(record.token_id), None)

    def of_key(self, image: Image, key: bytes) -> DelegationTokenRecord | None:
        """Return the token of a key; None where no token of the image has it."""
        if self._ids is None:
            ids = (one.token_id for one in tokens_of(image))
            self._ids = {self._place_of(token_id): token_id for token_id in ids}
        name = self._ids.get(sha256(key).digest())
        return None if name is None else token_of(image, name)

    def _place_of(self, token_id: str) -> bytes:
        return sha256(self._secret.key_of(token_id)).digest()
