"""The client instances that ask for subscriptions and push metrics, and when they may.

In: the sessions of clients, the image's `client-metrics` resources, the steady clock's time. Out: an instance with its
subscription, or Rejected. It knows no metric, and keeps nothing of a client but its times and its subscription.

The rules are those of Apache Kafka 4.3's `ClientMetricsManager`. A subscription's id is the CRC-32C of its metrics and
interval, as there; several metrics are in alphabetical order, so that every node computes the same.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final, Protocol
from uuid import UUID

import structlog
from crc32c import crc32c
from msgspec import Struct

from stratalog.broker.network.session import Session
from stratalog.config import Subscription, parse_subscription
from stratalog.config.client_metrics import INTERVAL_MS
from stratalog.errors import ErrorCode, Rejected
from stratalog.metadata.image import Image, ResourceType
from stratalog.ports import Entropy
from stratalog.wire.compression import ZSTD
from stratalog.wire.ids import ZERO_ID, topic_id_text

__all__ = ["Instance", "Instances", "attributes_of"]

_INSTANCES_MAX: Final = 16_384
_EXPIRY_MS_MIN: Final = 60_000
_EXPIRY_INTERVALS: Final = 3
_EVERY_METRIC: Final = "*"
_RESERVED: Final = frozenset({ZERO_ID, UUID(int=1)})
_RETRIED_AT_ONCE: Final = frozenset(
    {ErrorCode.unknown_subscription_id, ErrorCode.unsupported_compression_type}
)
"""After these errors a client may ask for its subscription before the interval has passed."""


class HasImage(Protocol):
    """The part of the cluster's image that names the resources."""

    image: Image


class Instance(Struct):
    """One client instance. Times are of the steady clock."""

    version: int
    """The state of all subscriptions that this one is computed from."""
    subscription_id: int
    metrics: Sequence[str]
    interval_ms: int
    asked_ms: int = 0
    pushed_ms: int = 0
    expires_ms: int = 0
    is_terminating: bool = False
    error: ErrorCode = ErrorCode.none
    """The error of the newest answer."""

    def may_ask(self, now_ms: int) -> bool:
        """Return whether the client may ask for its subscription, and count the request if so."""
        if now_ms - max(self.asked_ms, self.pushed_ms) < self.interval_ms:
            return False
        self.asked_ms = now_ms
        return True

    def may_push(self, now_ms: int) -> bool:
        """Return whether the client may push, and count the push if so.

        The first push after a subscription may come early: clients add a jitter of half an interval.
        """
        if self.asked_ms <= self.pushed_ms and now_ms - self.pushed_ms < self.interval_ms:
            return False
        self.pushed_ms = now_ms
        return True


class Instances:
    """The instances of one broker; the least recently used of too many is forgotten."""

    def __init__(self, metadata: HasImage, entropy: Entropy, bytes_max: int) -> None:
        self._metadata = metadata
        self._entropy = entropy
        self.bytes_max = bytes_max
        """The largest push, as sent and as decompressed."""
        self._by_id: OrderedDict[UUID, Instance] = OrderedDict()
        self._configs: object = None
        self._subscriptions: dict[str, Subscription] = {}
        self._version = 0
        self._log = structlog.get_logger()

    def count(self, now_ms: int) -> int:
        """Return the number of instances that have not expired."""
        return sum(one.expires_ms > now_ms for one in self._by_id.values())

    def ask(self, session: Session, wanted: UUID, now_ms: int) -> tuple[UUID, Instance]:
        """Return a client's instance id, made where it has none, and its subscription.

        Raises Rejected: THROTTLING_QUOTA_EXCEEDED before the interval has passed.
        """
        name = wanted if wanted != ZERO_ID else self._new_id()
        instance = self._instance(name, session, now_ms)
        if not instance.may_ask(now_ms) and instance.error not in _RETRIED_AT_ONCE:
            raise Rejected(ErrorCode.throttling_quota_exceeded, "before the next push interval")
        instance.error = ErrorCode.none
        return name, instance

    def push(  # noqa: PLR0913 - the fields of a push
        self,
        session: Session,
        name: UUID,
        now_ms: int,
        *,
        subscription_id: int,
        is_last: bool,
        codec: int,
        size: int,
    ) -> Instance:
        """Return the instance of a push that may be taken. Raises Rejected with Kafka's codes."""
        if name in _RESERVED:
            raise Rejected(ErrorCode.invalid_request, f"{name} is no client instance id")
        instance = self._instance(name, session, now_ms)
        try:
            self._check(instance, now_ms, subscription_id, is_last, codec, size)
        except Rejected as refusal:
            instance.error = refusal.code
            raise
        finally:
            instance.is_terminating = is_last
        instance.error = ErrorCode.none
        return instance

    def _check(
        self,
        instance: Instance,
        now_ms: int,
        subscription_id: int,
        is_last: bool,  # noqa: FBT001 - as above
        codec: int,
        size: int,
    ) -> None:
        if instance.is_terminating:
            raise Rejected(ErrorCode.invalid_request, "the client has terminated")
        if not instance.may_push(now_ms) and not is_last:
            raise Rejected(ErrorCode.throttling_quota_exceeded, "before the next push interval")
        if subscription_id != instance.subscription_id:
            raise Rejected(ErrorCode.unknown_subscription_id, "the subscription has changed")
        if not 0 <= codec <= ZSTD:
            raise Rejected(ErrorCode.unsupported_compression_type, f"codec {codec}")
        if size > self.bytes_max:
            raise Rejected(ErrorCode.telemetry_too_large, f"more than {self.bytes_max} bytes")

    def _new_id(self) -> UUID:
        while (found := self._entropy.uuid()) in self._by_id or topic_id_text(found)[0] == "-":
            pass
        return found

    def _instance(self, name: UUID, session: Session, now_ms: int) -> Instance:
        self._follow()
        found = self._by_id.get(name)
        if found is None or found.expires_ms <= now_ms or found.version < self._version:
            if session.on_close is not None:
                session.on_close()  # a connection has one instance: a client may invent any number of ids
            found = self._by_id[name] = self._subscribe(name, session)
            # As in Kafka, the instance of a connection ends with it.
            session.on_close = partial(self._by_id.pop, name, None)
            if len(self._by_id) > _INSTANCES_MAX:
                self._by_id.popitem(last=False)
        self._by_id.move_to_end(name)
        found.expires_ms = now_ms + max(_EXPIRY_MS_MIN, _EXPIRY_INTERVALS * found.interval_ms)
        return found

    def _subscribe(self, name: UUID, session: Session) -> Instance:
        attributes = attributes_of(session, name)
        matching = [one for one in self._subscriptions.values() if one.matches(attributes)]
        wanted = frozenset[str]().union(*(one.metrics for one in matching))
        metrics = (_EVERY_METRIC,) if _EVERY_METRIC in wanted else tuple(sorted(wanted))
        interval_ms = min((one.interval_ms for one in matching), default=INTERVAL_MS)
        interval_ms = min(interval_ms, INTERVAL_MS)  # as in Kafka, which begins with the default
        return Instance(
            self._version, _subscription_id(metrics, interval_ms, name), metrics, interval_ms
        )

    def _follow(self) -> None:
        """Take the resources of the present image; a resource that cannot be read matches no client."""
        configs = self._metadata.image.configs
        if configs is self._configs:
            return
        self._configs = configs
        found: dict[str, Subscription] = {}
        for (kind, name), values in configs.items():
            if kind == ResourceType.CLIENT_METRICS:
                try:
                    found[name] = parse_subscription(name, values)
                except Rejected as refusal:  # Apache Kafka's controller took it
                    reason = refusal.message
                    self._log.warning("client-metrics resource unusable", name=name, reason=reason)
        if found != self._subscriptions:
            self._subscriptions = found
            self._version += 1


def attributes_of(session: Session, name: UUID) -> Mapping[str, str | None]:
    """Return what subscriptions may match of a client, by Kafka's names."""
    software, _, version = session.software.partition(" ")
    return {
        "client_instance_id": topic_id_text(name),
        "client_id": session.client_id,
        "client_software_name": software or None,
        "client_software_version": version or None,
        "client_source_address": session.host,
        "client_source_port": str(session.port),
    }


def _subscription_id(metrics: Sequence[str], interval_ms: int, name: UUID) -> int:
    crc = crc32c(f"[{', '.join(metrics)}]{interval_ms}".encode())
    halves = (name.int >> 64) ^ name.int
    value = crc ^ ((halves >> 32) ^ halves) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value
