"""Our tables of settings equal Apache Kafka's: each setting exists, with Kafka's type, default, limits and mode.

Method: Kafka's own classes print names, types, defaults, limits and update modes on a running broker
(`ConfigDefs.java`). Ours must be the same, or be listed here with the reason. Kafka's internal settings (its
`defineInternal`) are no part of the claim.
"""

import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from tests.compat.tools import java, kafka_lib

from stratalog.config.broker_settings import BROKER_SETTINGS
from stratalog.config.kinds import INTEGER_RANGES, BadValue, Dynamic, Kind, Setting
from stratalog.config.topic_settings import TOPIC_SETTINGS

TIMEOUT_S = 120
ELSEWHERE_IN_KAFKA = {
    # `DynamicConfig.Broker`: set on running brokers only.
    "follower.replication.throttled.rate",
    "leader.replication.throttled.rate",
    "replica.alter.log.dirs.io.max.bytes.per.second",
    # Read by Kafka's authorizer itself.
    "allow.everyone.if.no.acl.found",
    "super.users",
    # Internal in Kafka; public here.
    "remote.log.manager.task.retry.backoff.max.ms",
    "remote.log.manager.task.retry.backoff.ms",
    "remote.log.manager.task.retry.jitter",
}
NOT_WHILE_RUNNING = {
    "listeners": "ports are opened at the start",
    "listener.security.protocol.map": "only PLAINTEXT is served",
}
"""Dynamic in Kafka, and not here."""
LOWEST = {
    # Kafka takes these and then refuses to create the topic, whose own limit is a mebibyte.
    "offsets.topic.segment.bytes": 1 << 20,
    "transaction.state.log.segment.bytes": 1 << 20,
}
"""Limits that are higher than Kafka's."""


@dataclass(frozen=True, slots=True)
class Known:
    """Kafka's definition of one setting. The default is as its tools print it, "null", or "none" if required."""

    kind: str
    default: str
    validator: str


@cache
def printed() -> list[list[str]]:
    source = Path(__file__).with_name("ConfigDefs.java")
    done = subprocess.run(
        [java(), "-XX:TieredStopAtLevel=1", "-cp", f"{kafka_lib()}/*", str(source)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [line.split("\t") for line in done.stdout.splitlines()]


def kafkas(table: str) -> dict[str, Known]:
    return {row[1]: Known(*row[2:]) for row in printed() if row[0] == table}


def ours(table: str) -> Mapping[str, Setting]:
    if table == "broker":
        return BROKER_SETTINGS
    return {name: topic.setting for name, topic in TOPIC_SETTINGS.items()}


TABLES = pytest.mark.parametrize("table", ["broker", "topic"])


@TABLES
def test_every_setting_of_kafka_is_known_and_no_other_has_its_mark(table: str) -> None:
    known, settings = kafkas(table), ours(table)
    assert len(known) > {"broker": 300, "topic": 30}[table]
    assert not known.keys() - settings.keys(), "our tables lack these settings"
    invented = {name for name, setting in settings.items() if not setting.ours} - known.keys()
    internal = {"internal.segment.bytes"}  # Kafka's table leaves its own internal ones out
    assert invented == (ELSEWHERE_IN_KAFKA if table == "broker" else internal)
    assert all(setting.doc for setting in settings.values())
    assert all(setting.inert.strip() == setting.inert for setting in settings.values())


@TABLES
def test_types_are_kafkas(table: str) -> None:
    settings = ours(table)
    others = {
        name: (settings[name].kind.name, known.kind)
        for name, known in kafkas(table).items()
        if settings[name].kind.name != known.kind
    }
    assert not others


@TABLES
def test_defaults_are_kafkas_or_documented_as_different(table: str) -> None:
    settings = ours(table)
    for name, known in kafkas(table).items():
        setting = settings[name]
        shown = setting.text(setting.default)
        same = shown == known.default or (shown is None and known.default in {"null", "none"})
        if setting.kind is Kind.DOUBLE:
            same = setting.default == float(known.default)
        assert same == (not setting.kafka_default), (
            f"{name}: {shown!r} here, {known.default!r} there"
        )
        if re.fullmatch(r"-?\d+|null|none", setting.kafka_default):
            assert setting.kafka_default == known.default, name


def test_a_running_broker_takes_the_same_settings_as_kafkas() -> None:
    modes = {row[1]: row[2] for row in printed() if row[0] == "mode"}
    assert len(modes) > 90
    for name, setting in BROKER_SETTINGS.items():
        if not setting.ours and name not in NOT_WHILE_RUNNING:
            assert setting.dynamic.value == modes.get(name, Dynamic.READ_ONLY.value), name
    assert NOT_WHILE_RUNNING.keys() <= modes.keys()


@TABLES
def test_limits_are_kafkas(table: str) -> None:
    """Each end of `[low,...,high]` is taken, and the next number beyond it is not."""
    looked_at = 0
    for name, known in kafkas(table).items():
        setting = ours(table)[name]
        found = re.fullmatch(r"\[(-?\d+),\.\.\.(?:,(-?\d+))?\](?: or (-?\d+))?", known.validator)
        if found is None or setting.kind not in INTEGER_RANGES or setting.inert:
            continue
        looked_at += 1
        low, also = LOWEST.get(name, int(found[1])), found[3]
        high = int(found[2]) if found[2] else INTEGER_RANGES[setting.kind][1]
        for number in (low, high, *([int(also)] if also else [])):
            assert setting.parse(str(number)) == number, name
        for number in (low - 1, high + 1):
            if str(number) != also:
                with pytest.raises(BadValue):
                    setting.parse(str(number))
    assert looked_at > 15
