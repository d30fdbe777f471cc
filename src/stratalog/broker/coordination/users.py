"""The users that may log in: SCRAM credentials and delegation tokens in the cluster's metadata.

In: the cluster's image, the secret of delegation tokens. Out: `Users`, of which listeners ask for a credential. It
changes none.

A name without a credential has an invented one, so that its salt and its iterations do not tell that it is unknown. All
nodes invent the same, also after a restart: from the secret of delegation tokens, or without one from the ids of a
broker's directories. These are random, and no client sees them that has no right to describe the cluster.
"""

from bisect import bisect_left
from functools import lru_cache
from hashlib import new, sha256, shake_256
from typing import Final

from stratalog.broker.coordination.cluster_image import ClusterImage
from stratalog.broker.network.sasl import ScramUser, TokenUser, Users
from stratalog.broker.network.session import USER
from stratalog.config import BrokerConfig
from stratalog.metadata.delegation_tokens import TokenSecret, is_expired, token_of
from stratalog.metadata.image import DIRECTORY_RESERVED_MAX
from stratalog.ports import Entropy, Outside
from stratalog.wire import scram
from stratalog.wire.internal.security_records import UserScramCredentialRecord

__all__ = ["users_of"]

_HASHES: Final = dict(scram.MECHANISMS.values())
_OWNER: Final = f"{USER}:"
_KEY_BYTES: Final = {number: new(name).digest_size for number, name in _HASHES.items()}
_CREDENTIAL: Final = UserScramCredentialRecord.__name__
_SALT_BYTES: Final = 32
"""As `strata user create` stores."""
_KEPT_MAX: Final = 10_000
"""Credentials of tokens to keep: each takes some milliseconds to compute, and as long in Kafka with each new token."""


def users_of(metadata: ClusterImage, outside: Outside, config: BrokerConfig) -> Users:
    """Return the users of the cluster, as they are at each question."""
    entropy, clock = outside.entropy, outside.clock
    secret = TokenSecret(config.token_secret)
    invented = _Invented(metadata, config.token_secret, entropy)

    def credential(mechanism: int, user: str) -> ScramUser | None:
        key = (_CREDENTIAL, (user, mechanism))
        found: UserScramCredentialRecord | None = metadata.image.foreign.get(key)
        if found is None:
            return None
        return ScramUser(found.salt, found.stored_key, found.server_key, found.iterations)

    @lru_cache(_KEPT_MAX)
    def of_token(mechanism: int, token_id: str) -> ScramUser:
        """Return the credential of which the password is the token's key in base64."""
        hash_name, salt = _HASHES[mechanism], invented.of_token(mechanism, token_id).salt
        password = scram.encoded(secret.key_of(token_id))
        salted = scram.salted_password(hash_name, password, salt, scram.ITERATIONS_MIN)
        return ScramUser(salt, *scram.keys_of(hash_name, salted), scram.ITERATIONS_MIN)

    def token(mechanism: int, token_id: str) -> TokenUser | None:
        found, now_ms = token_of(metadata.image, token_id), clock.now_ms()
        if found is None or not secret.is_set or is_expired(found, now_ms):
            return None
        if not found.owner.startswith(_OWNER):
            return None
        lifetime_ms = max(1, min(found.expiration_timestamp, found.max_timestamp) - now_ms)
        owner = found.owner.removeprefix(_OWNER)
        return TokenUser(of_token(mechanism, token_id), owner, lifetime_ms)

    def unknown(mechanism: int, name: str, by_token: bool) -> ScramUser:  # noqa: FBT001 - of `Users`
        return invented.of_token(mechanism, name) if by_token else invented.of_user(mechanism, name)

    return Users(credential, token, unknown, lambda: entropy.uuid().hex)


class _Invented:
    """Credentials of names that have none."""

    def __init__(self, metadata: ClusterImage, secret: str, entropy: Entropy) -> None:
        self._metadata = metadata
        self._secret = secret.encode()
        self._of_process = entropy.uuid().bytes + entropy.uuid().bytes
        self._seen: object = None
        self._rings: dict[int, list[tuple[bytes, int, int]]] = {}
        """By mechanism: the sizes of salts and the iterations of all users, in order of a hash of the salt."""

    def of_token(self, mechanism: int, name: str) -> ScramUser:
        """Return the credential of a token; that of a real one has the same salt."""
        return self._made(mechanism, b"token", name, _SALT_BYTES, scram.ITERATIONS_MIN)

    def of_user(self, mechanism: int, name: str) -> ScramUser:
        """Return a credential like that of some user of the mechanism: many names are like the most common ones.

        Another user makes another name's credential differ seldom.
        """
        ring = self._ring(mechanism)
        if not ring:
            return self._made(mechanism, b"user", name, _SALT_BYTES, scram.ITERATIONS_MIN)
        place = bisect_left(ring, (self._drawn(b"place", name, _SALT_BYTES),)) % len(ring)
        _, size, iterations = ring[place]
        return self._made(mechanism, b"user", name, size, iterations)

    def _made(
        self, mechanism: int, kind: bytes, name: str, size: int, iterations: int
    ) -> ScramUser:
        proof = self._drawn(b"key of " + kind, name, _KEY_BYTES[mechanism])
        return ScramUser(self._drawn(kind, name, size), proof, proof, iterations)

    def _drawn(self, kind: bytes, name: str, size: int) -> bytes:
        return shake_256(b"\0".join((self._pepper(), kind, name.encode()))).digest(size)

    def _pepper(self) -> bytes:
        """Return bytes that clients do not know, of one length, the same on all nodes."""
        if self._secret:
            return sha256(self._secret).digest()
        brokers = self._metadata.image.brokers
        first = brokers[min(brokers)].directories if brokers else ()
        ids = b"".join(one.bytes for one in first if one.int > DIRECTORY_RESERVED_MAX)
        return sha256(ids or self._of_process).digest()

    def _ring(self, mechanism: int) -> list[tuple[bytes, int, int]]:
        foreign = self._metadata.image.foreign
        if foreign is not self._seen:
            self._seen = foreign
            self._rings = {number: [] for number in _HASHES}
            for (kind, _), one in foreign.items():
                if kind == _CREDENTIAL and one.mechanism in self._rings:
                    point = sha256(one.salt).digest()
                    self._rings[one.mechanism].append((point, len(one.salt), one.iterations))
            for ring in self._rings.values():
                ring.sort()
        return self._rings[mechanism]
