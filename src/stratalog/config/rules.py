"""The rules for changing settings of a running cluster.

In: the settings of a topic or broker before and after a change. Out: nothing, or a rejection that names the setting,
its value and the accepted values. It never looks up a resource.
"""

from collections.abc import Mapping
from enum import IntEnum

from stratalog.config.broker import BrokerConfig
from stratalog.config.broker_settings import BROKER_SETTINGS, setting_of
from stratalog.config.client_metrics import parse_subscription
from stratalog.config.kinds import BadValue, Dynamic, Kind
from stratalog.config.listeners import check_cordoned, items_of
from stratalog.config.log import broker_default, check_topic_configs
from stratalog.config.security_settings import KEYSTORE_SETTINGS
from stratalog.config.topic_settings import TOPIC_SETTINGS
from stratalog.errors import ErrorCode, Rejected, UserError

Values = Mapping[str, str]
_CORDONED = "cordoned.log.dirs"
_REMOTE = "remote.storage.enable"
_DELETES = "remote.log.delete.on.disable"


class Resource(IntEnum):
    """The kind of resource that has settings (Kafka: ConfigResource.Type)."""

    TOPIC = 2
    BROKER = 4
    CLIENT_METRICS = 16


class ClusterRules:
    """The rules that the controller applies to alterations (`quorum.configurations.SettingRules`)."""

    def __init__(self, broker: BrokerConfig) -> None:
        self._broker = broker

    def check(self, resource_type: int, resource_name: str, before: Values, after: Values) -> None:
        """Raise Rejected where `after` may not follow: INVALID_CONFIG (topics), INVALID_REQUEST (brokers), either for
        client metrics.
        """
        if resource_type == Resource.TOPIC:
            check_topic_configs(after, self._broker)
            self._check_tier_stays(before, after)
        elif resource_type == Resource.CLIENT_METRICS:
            parse_subscription(resource_name, after)
        else:
            changed = {name for name in {**before, **after} if before.get(name) != after.get(name)}
            check_broker_configs(changed, after, cluster_wide=not resource_name)
            if resource_name == str(self._broker.int("node.id")) and _CORDONED in changed:
                # Those of other brokers are unknown here: the broker that a client asked has checked them.
                check_asked(self._broker, resource_name, after)

    def default_items(self, resource_type: int, name: str) -> tuple[str, ...] | None:
        """Return the default items of a list setting; None for a setting that is no list."""
        if resource_type == Resource.TOPIC:
            is_list = name in TOPIC_SETTINGS and TOPIC_SETTINGS[name].setting.kind is Kind.LIST
            value = broker_default(self._broker, name) if is_list else None
        elif resource_type == Resource.CLIENT_METRICS:
            return None  # as in Kafka, whose controller does not know that they are lists
        else:
            is_list = name in BROKER_SETTINGS and BROKER_SETTINGS[name].kind is Kind.LIST
            value = self._broker.get(name) if is_list else None
        return value if isinstance(value, tuple) else () if is_list else None

    def _check_tier_stays(self, before: Values, after: Values) -> None:
        """Refuse to remove a tier, unless the topic also gives up its history in the bucket (KIP-950)."""
        was, is_now = (
            values.get(_REMOTE, str(broker_default(self._broker, _REMOTE))).strip().lower()
            for values in (before, after)
        )
        deletes = after.get(_DELETES, "false").strip().lower() == "true"
        if was == "true" and is_now != "true" and not deletes:
            raise Rejected(
                ErrorCode.invalid_config,
                f"{_REMOTE}: 'false' is not accepted; accepted: true (with "
                "remote.log.copy.disable=true nothing more is copied), or false together with "
                f"{_DELETES}=true, which deletes the history in the bucket",
            )


def check_asked(config: BrokerConfig, broker: str, new: Values) -> None:
    """Raise Rejected(INVALID_REQUEST) for cordoned directories that the broker that a client asked does not know."""
    own = str(config.int("node.id"))
    cordoned = items_of(new.get(_CORDONED, ""))
    if broker == own:
        try:
            check_cordoned(cordoned, config.log_dirs)
        except UserError as error:
            raise Rejected(ErrorCode.invalid_request, str(error)) from None
    elif set(cordoned) - {"*"}:
        raise Rejected(
            ErrorCode.invalid_request,
            f"cordoned.log.dirs: {','.join(cordoned)!r} of broker {broker} is not accepted by broker {own}, which does "
            f"not know its directories; accepted: *, or ask broker {broker}",
        )


def check_broker_configs(changed: set[str], after: Values, *, cluster_wide: bool) -> None:
    """Raise Rejected(INVALID_REQUEST) for a setting that a running broker does not take, or a wrong value (KIP-226)."""
    for name in sorted(changed):
        setting = setting_of(name)
        if setting is None:
            raise Rejected(ErrorCode.invalid_request, f"unknown broker setting {name}")
        if setting.dynamic is Dynamic.READ_ONLY:
            raise Rejected(
                ErrorCode.invalid_request, f"{name} cannot be changed while the broker runs"
            )
        if cluster_wide and setting.dynamic is Dynamic.PER_BROKER:
            raise Rejected(ErrorCode.invalid_request, f"{name} is set broker by broker")
        if name in after and name in KEYSTORE_SETTINGS:
            raise Rejected(
                ErrorCode.invalid_request,
                f"{name} is set for one listener: listener.name.NAME.{name}",
            )
        if name in after:
            try:
                setting.parse(after[name])
            except BadValue as bad:
                raise Rejected(ErrorCode.invalid_request, str(bad)) from None
