"""Change finalized features: refuse, or return records.

In: updates, the image. Out: records. It never changes an image.

Refusals and their codes are Kafka's (FeatureControlManager, KIP-584, KIP-778); the messages are this project's.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from enum import IntEnum

from msgspec import Struct

from stratalog.errors import ErrorCode, Rejected
from stratalog.metadata.image import (
    CORDONED_FROM,
    ELIGIBLE_LEADER_REPLICAS_VERSION,
    METADATA_VERSION,
    METADATA_VERSION_LEVEL,
    METADATA_VERSION_MIN,
    TRANSACTION_VERSION,
    FeatureRange,
    Image,
    ResourceType,
)
from stratalog.quorum.electorate import MIN_INSYNC_REPLICAS, has_elr
from stratalog.wire.internal.metadata_records import ConfigRecord, FeatureLevelRecord

SUPPORTED_FEATURES = (
    FeatureRange(ELIGIBLE_LEADER_REPLICAS_VERSION, 0, 1),
    FeatureRange("kraft.version", 0, 1),
    FeatureRange(METADATA_VERSION, METADATA_VERSION_MIN, METADATA_VERSION_LEVEL),
    FeatureRange(TRANSACTION_VERSION, 0, 2),
)

INITIAL_LEVELS = {
    METADATA_VERSION: METADATA_VERSION_LEVEL,
    ELIGIBLE_LEADER_REPLICAS_VERSION: 1,
    TRANSACTION_VERSION: 2,
}
"""The levels of a new cluster: those that Apache Kafka 4.3 formats with, of the features that are served here."""
_CHANGEABLE = (ELIGIBLE_LEADER_REPLICAS_VERSION, METADATA_VERSION, TRANSACTION_VERSION)


class UpgradeType(IntEnum):
    """The allowed directions of a level; the numbers are the protocol's."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


class FeatureUpdate(Struct, frozen=True):
    """A feature and its requested level; `upgrade_type` is the request's number."""

    name: str
    level: int
    upgrade_type: int = UpgradeType.UPGRADE


FeatureRecord = FeatureLevelRecord | ConfigRecord


def initial_records(
    image: Image, min_insync_replicas: int, metadata_version: int
) -> list[FeatureRecord]:
    """Return the first records of a cluster without levels, whose brokers are set to `min.insync.replicas`."""
    named = {**INITIAL_LEVELS, METADATA_VERSION: metadata_version}
    levels = [FeatureLevelRecord(name=one, feature_level=level) for one, level in named.items()]
    return [*levels, *_one_min_isr(image, min_insync_replicas)]


def feature_records(
    image: Image,
    supported: Sequence[FeatureRange],
    levels: dict[str, int],
    updates: Sequence[FeatureUpdate],
    min_insync_replicas: int,
) -> list[FeatureRecord]:
    """Return records that set every level, none for a level that is set already. Accept all updates or none.

    `levels` are finalized features outside the image (kraft.version). Eligible leaders need one `min.insync.replicas`
    for all brokers: `min_insync_replicas` where the cluster has none. Raises Rejected: INVALID_UPDATE_VERSION,
    INVALID_REQUEST.
    """
    ranges = {one.name: one for one in supported}
    counts = Counter(update.name for update in updates)
    records: list[FeatureRecord] = []
    for update in updates:
        if counts[update.name] > 1:
            raise Rejected(ErrorCode.invalid_request, f"feature {update.name} is named twice")
        now = {**levels, **image.features}.get(update.name, 0)
        _check(update, ranges.get(update.name), now)
        if update.level != now:
            if update.name == ELIGIBLE_LEADER_REPLICAS_VERSION and not has_elr(image):
                records += _one_min_isr(image, min_insync_replicas)
            records.append(FeatureLevelRecord(name=update.name, feature_level=update.level))
    return records


def _one_min_isr(image: Image, min_insync_replicas: int) -> list[FeatureRecord]:
    """Return records that give all brokers the same `min.insync.replicas`: the controller must know the value.

    Kafka: ConfigurationControlManager.maybeGenerateElrSafetyRecords.
    """
    records: list[FeatureRecord] = []
    if MIN_INSYNC_REPLICAS not in image.configs.get((ResourceType.BROKER, ""), {}):
        records.append(_min_isr("", str(min_insync_replicas)))
    for (kind, name), values in image.configs.items():
        if kind == ResourceType.BROKER and name and MIN_INSYNC_REPLICAS in values:
            records.append(_min_isr(name, None))
    return records


def _min_isr(broker: str, value: str | None) -> ConfigRecord:
    return ConfigRecord(
        resource_type=ResourceType.BROKER,
        resource_name=broker,
        name=MIN_INSYNC_REPLICAS,
        value=value,
    )


def _check(update: FeatureUpdate, supported: FeatureRange | None, now: int) -> None:
    """Raise Rejected where the update may not change a feature from level `now`."""
    directions = set(UpgradeType)
    reason = None
    if supported is None:
        reason = "the controller does not know it"
    elif update.level < 0 or not supported.min_level <= update.level <= supported.max_level:
        reason = f"levels {supported.min_level} to {supported.max_level} are supported"
    elif update.upgrade_type not in directions:
        reason = f"there is no upgrade type {update.upgrade_type}"
    elif update.level < now and update.upgrade_type == UpgradeType.UPGRADE:
        reason = f"it is at {now}, and a downgrade was not asked for"
    elif update.level > now and update.upgrade_type != UpgradeType.UPGRADE:
        reason = f"it is at {now}, and an upgrade was not asked for"
    elif update.name == METADATA_VERSION and update.level < CORDONED_FROM <= now:
        reason = f"it stays at {now}: a downgrade might lose cordoned directories, safe or not"
    elif update.level != now and update.name not in _CHANGEABLE:
        reason = f"it stays at {now}: the log has been written so"
    if reason is not None:
        raise Rejected(
            ErrorCode.invalid_update_version, f"feature {update.name} to {update.level}: {reason}"
        )


def unserved(levels: Mapping[str, int], supported: Sequence[FeatureRange]) -> str:
    """Return which finalized features a broker does not serve, and levels that it does; "" for none.

    A controller answers such a broker's registration with UNSUPPORTED_VERSION, and names no feature.
    """
    ranges = {one.name: one for one in supported}
    found, accepted = [], []
    for name, level in sorted(levels.items()):
        served = ranges.get(name, FeatureRange(name, 0, 0))
        if not served.min_level <= level <= served.max_level:
            found.append(f"{name}={level}")
            accepted.append(f"{name}={min(max(level, served.min_level), served.max_level)}")
    if not found:
        return ""
    return (
        f"this release does not serve the cluster's {', '.join(found)}; accepted: {', '.join(accepted)}, which "
        "kafka-features.sh sets"
    )
