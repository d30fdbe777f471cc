"""The users and the level of metadata.version that a cluster begins with, from `strata storage format` or Kafka's.

In: texts in Kafka's form, `SCRAM-SHA-256=[name=alice,password=…]`. Out: `bootstrap.checkpoint`, whose users and level
the first active controller writes into the empty metadata log. It keeps no password, and no error repeats one.

Kafka: `ScramParser`, `BootstrapDirectory`.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from stratalog.errors import UserError
from stratalog.metadata.image import METADATA_VERSION, METADATA_VERSION_LEVEL
from stratalog.metadata.snapshot import decode_snapshot, encode_checkpoint
from stratalog.ports import Disk, Entropy
from stratalog.quorum.scram_credentials import Upsertion, credential_record, refusal_of
from stratalog.wire import scram
from stratalog.wire.internal.metadata_records import FeatureLevelRecord
from stratalog.wire.internal.security_records import UserScramCredentialRecord

__all__ = [
    "BOOTSTRAP_FILE",
    "FirstRecord",
    "first_levels",
    "first_records",
    "first_users",
    "write_first_users",
]

FirstRecord = FeatureLevelRecord | UserScramCredentialRecord
BOOTSTRAP_FILE: Final = "bootstrap.checkpoint"
_ITERATIONS: Final = 4096
"""Kafka's default."""
_PARTS: Final = ("name", "password", "iterations", "salt", "saltedpassword")
_FORM: Final = "accepted: SCRAM-SHA-256=[name=alice,password=…], also iterations, salt and saltedpassword in base64"


def first_users(texts: Iterable[str], entropy: Entropy) -> list[UserScramCredentialRecord]:
    """Return the credentials. Raises UserError."""
    return [credential_record(_credential(text, entropy)) for text in texts]


def write_first_users(disk: Disk, users: Sequence[UserScramCredentialRecord], wall_ms: int) -> None:
    """Write the file into a log directory."""
    level = FeatureLevelRecord(name=METADATA_VERSION, feature_level=METADATA_VERSION_LEVEL)
    data = encode_checkpoint([level, *users], wall_ms, last_contained_timestamp_ms=0, epoch=0)
    disk.write_file(BOOTSTRAP_FILE, data)


def first_records(data: bytes) -> list[FirstRecord]:
    """Return the level of metadata.version and the users in a bootstrap file, ours or Kafka's. Raises Corrupt.

    Other features have the levels of a new cluster: those that are served.
    """
    return [
        one
        for one in decode_snapshot(data).records
        if isinstance(one, UserScramCredentialRecord)
        or (isinstance(one, FeatureLevelRecord) and one.name == METADATA_VERSION)
    ]


def first_levels(data: bytes) -> dict[str, int]:
    """Return the levels of features in a bootstrap file. Raises Corrupt."""
    records = decode_snapshot(data).records
    return {one.name: one.feature_level for one in records if isinstance(one, FeatureLevelRecord)}


def _credential(text: str, entropy: Entropy) -> Upsertion:
    mechanism, _, rest = text.strip().partition("=")
    if mechanism not in scram.MECHANISMS:
        raise UserError(
            f"--add-scram: mechanism {mechanism!r} is not accepted; accepted: {', '.join(scram.MECHANISMS)}"
        )
    if not (rest.startswith("[") and rest.endswith("]")):
        raise _refused(mechanism, "its settings are not in brackets")
    parts = dict(_part(mechanism, one) for one in rest[1:-1].split(","))
    number, hash_name = scram.MECHANISMS[mechanism]
    try:
        iterations = int(parts.get("iterations", _ITERATIONS))
        salt = scram.decoded(parts["salt"]) if "salt" in parts else _salt(entropy)
        salted = scram.decoded(parts["saltedpassword"]) if "saltedpassword" in parts else None
    except ValueError:
        raise _refused(mechanism, "iterations is no number, or a salt is no base64") from None
    if "name" not in parts:
        raise _refused(mechanism, "name is missing")
    if ("password" in parts) == (salted is not None):
        raise _refused(mechanism, "it needs one of password and saltedpassword")
    if salted is not None and "salt" not in parts:
        raise _refused(mechanism, "saltedpassword needs its salt")
    wanted = Upsertion(parts["name"], number, iterations, salt, salted or b"")
    refusal = refusal_of(wanted)
    if refusal is not None:
        raise _refused(mechanism, refusal.message)
    if salted is None:
        salted = scram.salted_password(hash_name, parts["password"], salt, iterations)
    return wanted._replace(salted_password=salted)


def _part(mechanism: str, text: str) -> tuple[str, str]:
    name, separator, value = text.strip().partition("=")
    if not separator or name not in _PARTS or not value:
        raise _refused(mechanism, f"a setting is not one of {', '.join(_PARTS)} with a value")
    return name, value


def _salt(entropy: Entropy) -> bytes:
    return entropy.uuid().bytes + entropy.uuid().bytes


def _refused(mechanism: str, reason: str) -> UserError:
    return UserError(f"--add-scram {mechanism}: {reason}; {_FORM}")
