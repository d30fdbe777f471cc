"""Delegation tokens: which ones the cluster has, and the key that the cluster's secret gives each of them.

In: images of the metadata, with their DelegationTokenRecords; the secret. Out: tokens by id and by key. It never
changes a token, and no record has a key or the secret.

Kafka: `DelegationTokenCache`, `DelegationTokenManager.createHmac` (KIP-48).
"""

import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from stratalog.metadata.image import EMPTY, Image
from stratalog.wire.internal.security_records import DelegationTokenRecord

__all__ = ["DelegationTokens", "TokenSecret", "is_expired", "token_of"]

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


def is_expired(token: DelegationTokenRecord, now_ms: int) -> bool:
    """Return whether a token's time is over; `now_ms`: epoch ms."""
    return min(token.max_timestamp, token.expiration_timestamp) < now_ms


class DelegationTokens:
    """The tokens of one image after another."""

    def __init__(self, secret: TokenSecret) -> None:
        self.by_id: Mapping[str, DelegationTokenRecord] = {}
        self._secret = secret
        self._seen = EMPTY.foreign
        self._ids: dict[bytes, str] = {}
        """By key."""

    def follow(self, image: Image) -> None:
        """Take the tokens of an image. A change costs what it adds and removes, and one look at each id."""
        if image.foreign is self._seen:
            return
        self._seen = image.foreign
        now = {name: record for (kind, name), record in image.foreign.items() if kind == _RECORD}
        if now.keys() != self.by_id.keys():
            self._ids = {key: name for key, name in self._ids.items() if name in now}
            self._ids |= {
                self._secret.key_of(name): name for name in now.keys() - self.by_id.keys()
            }
        self.by_id = now

    def of_key(self, key: bytes) -> DelegationTokenRecord | None:
        """Return the token of a key; None where no token has it."""
        name = self._ids.get(key)
        return None if name is None else self.by_id[name]
