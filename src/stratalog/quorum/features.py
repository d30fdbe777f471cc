"""Change finalized features: refuse, or return records.

In: updates, the image. Out: records. It never changes an image.

Refusals and their codes are Kafka's (FeatureControlManager, KIP-584, KIP-778); the messages are this project's.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from stratalog.errors import ErrorCode, Rejected
from stratalog.metadata.image import (
    ELIGIBLE_LEADER_REPLICAS_VERSION,
    METADATA_VERSION,
    METADATA_VERSION_LEVEL,
    FeatureRange,
    Image,
)
from stratalog.wire.internal.metadata_records import FeatureLevelRecord

SUPPORTED_FEATURES = (
    FeatureRange(ELIGIBLE_LEADER_REPLICAS_VERSION, 0, 1),
    FeatureRange("kraft.version", 0, 1),
    FeatureRange(METADATA_VERSION, METADATA_VERSION_LEVEL, METADATA_VERSION_LEVEL),
)

_CHANGEABLE = (ELIGIBLE_LEADER_REPLICAS_VERSION, METADATA_VERSION)


class UpgradeType(IntEnum):
    """The allowed directions of a level; the numbers are the protocol's."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


@dataclass(frozen=True, slots=True)
class FeatureUpdate:
    """A feature and its requested level; `upgrade_type` is the request's number."""

    name: str
    level: int
    upgrade_type: int = UpgradeType.UPGRADE


def feature_records(
    image: Image,
    supported: Sequence[FeatureRange],
    levels: dict[str, int],
    updates: Sequence[FeatureUpdate],
) -> list[FeatureLevelRecord]:
    """Return records that set every level, none for a level that is set already. Accept all updates or none.

    `levels` are finalized features outside the image (kraft.version). Raises Rejected: INVALID_UPDATE_VERSION,
    INVALID_REQUEST.
    """
    ranges = {one.name: one for one in supported}
    counts = Counter(update.name for update in updates)
    records = []
    for update in updates:
        if counts[update.name] > 1:
            raise Rejected(ErrorCode.invalid_request, f"feature {update.name} is named twice")
        now = {**levels, **image.features}.get(update.name, 0)
        _check(update, ranges.get(update.name), now)
        if update.level != now:
            records.append(FeatureLevelRecord(name=update.name, feature_level=update.level))
    return records


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
    elif update.level != now and update.name not in _CHANGEABLE:
        reason = f"it stays at {now}: the log has been written so"
    if reason is not None:
        raise Rejected(
            ErrorCode.invalid_update_version, f"feature {update.name} to {update.level}: {reason}"
        )
