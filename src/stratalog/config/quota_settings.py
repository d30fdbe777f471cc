"""The settings of client quotas, by Kafka's names; the quotas themselves are in the metadata log.

In: nothing. Out: `QUOTAS`, a part of `broker_settings.BROKER_SETTINGS`. Data only.
"""

from typing import Final

from stratalog.config.kinds import Between, Kind, Setting

__all__ = ["QUOTAS"]

QUOTAS: Final = (
    Setting(
        "quota.window.num",
        Kind.INT,
        11,
        "Samples of the window over which a client's bytes, request time and connections count.",
        Between(1),
    ),
    Setting(
        "quota.window.size.seconds",
        Kind.INT,
        1,
        "Length of each of these samples. A client over its request percentage waits so long at most.",
        Between(1),
    ),
    Setting(
        "controller.quota.window.num",
        Kind.INT,
        11,
        "How many samples' worth of partitions a client may create or delete at once, where a quota limits it.",
        Between(1),
    ),
    Setting(
        "controller.quota.window.size.seconds",
        Kind.INT,
        1,
        "Length of each of these samples.",
        Between(1),
    ),
)
