"""The users that may log in: their SCRAM credentials in the cluster's metadata.

In: the cluster's image. Out: `Users`, of which listeners ask for a credential. It changes none.
"""

from functools import cache

from stratalog.broker.coordination.cluster_image import ClusterImage
from stratalog.broker.network.sasl import ScramUser, Users
from stratalog.ports import Entropy
from stratalog.wire.internal.security_records import UserScramCredentialRecord

__all__ = ["users_of"]


def users_of(metadata: ClusterImage, entropy: Entropy) -> Users:
    """Return the users of the cluster, as they are at each question."""

    def scram(mechanism: int, user: str) -> ScramUser | None:
        key = (UserScramCredentialRecord.__name__, (user, mechanism))
        found: UserScramCredentialRecord | None = metadata.image.foreign.get(key)
        if found is None:
            return None
        return ScramUser(found.salt, found.stored_key, found.server_key, found.iterations)

    pepper = cache(lambda: entropy.uuid().bytes + entropy.uuid().bytes)
    return Users(scram, lambda: entropy.uuid().hex, pepper)
