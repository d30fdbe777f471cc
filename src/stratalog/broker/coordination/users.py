"""The users that may log in: SCRAM credentials and delegation tokens in the cluster's metadata.

In: the cluster's image, the secret of delegation tokens. Out: `Users`, of which listeners ask for a credential. It
changes none.
"""

from functools import cache, lru_cache
from typing import Final

from stratalog.broker.coordination.cluster_image import ClusterImage
from stratalog.broker.network.sasl import ScramUser, TokenUser, Users, salt_of
from stratalog.broker.network.session import USER
from stratalog.config import BrokerConfig
from stratalog.metadata.delegation_tokens import TokenSecret, is_expired, token_of
from stratalog.ports import Outside
from stratalog.wire import scram
from stratalog.wire.internal.security_records import UserScramCredentialRecord

__all__ = ["users_of"]

_HASHES: Final = dict(scram.MECHANISMS.values())
_OWNER: Final = f"{USER}:"
_KEPT_MAX: Final = 10_000
"""Credentials of tokens to keep: each takes some milliseconds to compute, and as long in Kafka with each new token."""


def users_of(metadata: ClusterImage, outside: Outside, config: BrokerConfig) -> Users:
    """Return the users of the cluster, as they are at each question."""
    entropy, clock = outside.entropy, outside.clock
    secret = TokenSecret(config.token_secret)
    pepper = cache(lambda: entropy.uuid().bytes + entropy.uuid().bytes)

    def credential(mechanism: int, user: str) -> ScramUser | None:
        key = (UserScramCredentialRecord.__name__, (user, mechanism))
        found: UserScramCredentialRecord | None = metadata.image.foreign.get(key)
        if found is None:
            return None
        return ScramUser(found.salt, found.stored_key, found.server_key, found.iterations)

    @lru_cache(_KEPT_MAX)
    def of_token(mechanism: int, token_id: str) -> ScramUser:
        """Return the credential of which the password is the token's key in base64."""
        hash_name, salt = _HASHES[mechanism], salt_of(token_id, pepper())
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

    return Users(credential, token, lambda: entropy.uuid().hex, pepper)
