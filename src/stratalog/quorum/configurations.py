"""Change settings of topics, brokers and client metrics: refuse, or return records.

In: alterations, the image, the rules of the settings. Out: records and one result per resource. It never changes an
image, and knows no setting: `SettingRules` does.

Refusals and their codes are Kafka's (ConfigurationControlManager, ControllerApis); the messages are this project's.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Protocol

from msgspec import Struct

from stratalog.errors import ErrorCode, Rejected
from stratalog.metadata.image import Image, ResourceType
from stratalog.quorum.electorate import MIN_INSYNC_REPLICAS, has_elr
from stratalog.quorum.topics import SETTINGS_MAX, check_topic_name
from stratalog.wire.internal.metadata_records import ConfigRecord

Values = Mapping[str, str]


class Operation(IntEnum):
    """The kind of a change; the numbers are the wire's (KIP-339)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class Change(Struct, frozen=True):
    """One change of a setting; `operation` is the request's number, `value` may be None."""

    name: str
    operation: int
    value: str | None


class Alteration(Struct, frozen=True):
    """A resource's changes; with `replaces`, settings that the request does not name are unset (AlterConfigs)."""

    resource_type: int
    resource_name: str
    changes: tuple[Change, ...]
    replaces: bool = False


class Altered(Struct, frozen=True):
    """The answer for one resource."""

    resource_type: int
    resource_name: str
    error: ErrorCode = ErrorCode.none
    message: str | None = None


class SettingRules(Protocol):
    """The rules that a controller needs of settings."""

    def check(self, resource_type: int, resource_name: str, before: Values, after: Values) -> None:
        """Raise Rejected (INVALID_CONFIG, INVALID_REQUEST) where `after` may not follow `before`."""

    def default_items(self, resource_type: int, name: str) -> tuple[str, ...] | None:
        """Return the default items of a list setting; None for a setting that is no list."""


def alter_records(
    image: Image, alterations: Sequence[Alteration], rules: SettingRules
) -> tuple[list[ConfigRecord], list[Altered]]:
    """Return records for the valid changes, and one result per resource, in order; a setting that stays equal needs no
    record.
    """
    counts = Counter((one.resource_type, one.resource_name) for one in alterations)
    records: list[ConfigRecord] = []
    results: list[Altered] = []
    for key, one in {(one.resource_type, one.resource_name): one for one in alterations}.items():
        before = image.configs.get(key, {})
        try:
            if counts[key] > 1:
                raise Rejected(ErrorCode.invalid_request, f"resource {key[1]!r} is named twice")
            _check_resource(image, *key)
            after = _after(before, one, rules)
            rules.check(*key, before, after)
            if key[0] == ResourceType.BROKER and has_elr(image):
                _check_min_isr(key[1], before, after)
        except Rejected as refusal:
            results.append(Altered(*key, refusal.code, refusal.message))
            continue
        records += [
            ConfigRecord(
                resource_type=key[0], resource_name=key[1], name=name, value=after.get(name)
            )
            for name in sorted(before.keys() | after.keys())
            if before.get(name) != after.get(name)
        ]
        results.append(Altered(*key))
    return records, results


def _check_resource(image: Image, resource_type: int, name: str) -> None:
    match resource_type:
        case ResourceType.TOPIC:
            check_topic_name(name)
            if name not in image.topic_ids_by_name:
                raise Rejected(ErrorCode.unknown_topic_or_partition, f"there is no topic {name}")
        case ResourceType.BROKER:
            # The empty name stands for all brokers.
            exists = not name or (name.isdecimal() and int(name) in image.brokers)
            if not exists:
                raise Rejected(ErrorCode.invalid_request, f"there is no broker {name!r}")
        case ResourceType.CLIENT_METRICS:
            pass  # its first setting makes it
        case _:
            raise Rejected(
                ErrorCode.invalid_request, f"resource type {resource_type} has no settings here"
            )


def _check_min_isr(broker: str, before: Values, after: Values) -> None:
    """Raise Rejected(INVALID_CONFIG) where eligible leaders would lose the one value for all brokers (KIP-966).

    Kafka: ConfigurationControlManager.isDisallowedBrokerMinIsrTransition, isDisallowedClusterMinIsrTransition.
    """
    name = MIN_INSYNC_REPLICAS
    if broker and before.get(name) != after.get(name):
        reason = "set it for all brokers"
    elif not broker and name in before and name not in after:
        reason = "it cannot be removed for all brokers"
    else:
        return
    message = f"{name}: with eligible.leader.replicas.version 1 it is the same everywhere: {reason}"
    raise Rejected(ErrorCode.invalid_config, message)


def _after(before: Values, one: Alteration, rules: SettingRules) -> dict[str, str]:
    """Return the resource's settings after all its changes."""
    if len(one.changes) > SETTINGS_MAX:
        raise Rejected(ErrorCode.invalid_request, f"more than {SETTINGS_MAX} settings")
    names = Counter(change.name for change in one.changes)
    twice = sorted(name for name, count in names.items() if count > 1)
    if twice:
        raise Rejected(ErrorCode.invalid_request, f"named twice: {', '.join(twice)}")
    after = {} if one.replaces else dict(before)
    for change in one.changes:
        if change.operation == Operation.DELETE:
            after.pop(change.name, None)
            continue
        if change.value is None:
            raise Rejected(ErrorCode.invalid_request, f"{change.name} without a value")
        match change.operation:
            case Operation.SET:
                after[change.name] = change.value
            case Operation.APPEND | Operation.SUBTRACT:
                after[change.name] = _edited(one.resource_type, change, after, rules)
            case _:
                raise Rejected(
                    ErrorCode.invalid_request, f"{change.name}: operation {change.operation}"
                )
    return after


def _edited(resource_type: int, change: Change, after: Values, rules: SettingRules) -> str:
    """Return a list with items added or removed: the resource's own list, else the default."""
    items: Sequence[str] | None = rules.default_items(resource_type, change.name)
    if items is None:
        raise Rejected(ErrorCode.invalid_config, f"{change.name} is not a list")
    if change.name in after:
        items = [one for one in _items(after[change.name]) if one]
    assert change.value is not None
    given = _items(change.value) or [""]  # to append nothing is refused, as in Kafka
    if change.operation == Operation.APPEND:
        return ",".join(dict.fromkeys([*items, *given]))
    return ",".join(item for item in items if item not in given)


def _items(text: str) -> list[str]:
    """Return the items of a list; an empty one stays, which the setting's rules refuse."""
    return [item.strip() for item in text.split(",")] if text.strip() else []
