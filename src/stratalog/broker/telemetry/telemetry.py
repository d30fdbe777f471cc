"""Take the pushes of clients: decompress and read them on a thread, then keep series of them and pass them on.

In: pushes that `Instances` lets through. Out: series for the monitor, OTLP for the exporter. A push takes no turn of
the event loop longer than others; it is read on one thread of low priority, one after another.
"""

from collections.abc import Hashable
from functools import partial
from typing import Any, Final, NamedTuple
from uuid import UUID

from stratalog.broker.network.session import Session
from stratalog.broker.network.turns import Pace
from stratalog.broker.telemetry import OTLP_URL, SERIES_ENABLE, is_configured
from stratalog.broker.telemetry.exporter import Exporter
from stratalog.broker.telemetry.instances import HasImage, Instances, attributes_of
from stratalog.broker.telemetry.series import LABELS_MAX, ClientSeries
from stratalog.config import BrokerConfig
from stratalog.errors import Corrupt, ErrorCode, Rejected
from stratalog.ports import Outside, Worker
from stratalog.wire.compression import decompress
from stratalog.wire.messages.push_telemetry import PushTelemetryRequest
from stratalog.wire.otlp import Point, check_available, described, parse_metrics, points_of

__all__ = ["Telemetry"]

_POINTS_MAX: Final = 5000
"""Points of a push that count; an instance has fewer series."""
_ATTRIBUTE_CHARACTERS_MAX: Final = 1000
"""Of each text that describes the client to a receiver of OTLP: a client id may have 32 KiB."""


class _Read(NamedTuple):
    """What the thread returns of a push."""

    points: list[Point]
    more: int
    others: int
    otlp: bytes


class Telemetry:
    """The clients' metrics on one broker."""

    def __init__(self, config: BrokerConfig, metadata: HasImage, outside: Outside) -> None:
        """Raises UserError where it is configured and its library is missing."""
        self.is_on = is_configured(config)
        if self.is_on:
            check_available(SERIES_ENABLE if config.bool(SERIES_ENABLE) else OTLP_URL)
        self.clock = outside.clock
        self.instances = Instances(metadata, outside.entropy, config.int("telemetry.max.bytes"))
        self.series = ClientSeries() if config.bool(SERIES_ENABLE) else None
        url = config.str(OTLP_URL)
        self.exporter = Exporter(url, outside) if url else None
        self._node_id = config.int("node.id")
        self._workers = outside.workers
        self._worker: Worker | None = None

    async def take(self, session: Session, push: PushTelemetryRequest, pace: Pace) -> None:
        """Take a push. Raises Rejected: as `Instances.push`, and INVALID_RECORD for metrics that cannot be read."""
        name, now_ms = push.client_instance_id, self.clock.steady_ms()
        instance = self.instances.push(
            session,
            name,
            now_ms,
            subscription_id=push.subscription_id,
            is_last=push.terminating,
            codec=push.compression_type,
            size=len(push.metrics),
        )
        if not push.metrics:
            return
        if self._worker is None:
            self._worker = self._workers.start("client-telemetry", background=True)
        client = {key: value or "" for key, value in attributes_of(session, name).items()}
        client = {key: value[:_ATTRIBUTE_CHARACTERS_MAX] for key, value in client.items()}
        client |= {"principal": str(session.principal), "broker_id": str(self._node_id)}
        try:
            read = await self._worker.submit(partial(self._read, push, client))
        except Corrupt as error:
            instance.error = ErrorCode.invalid_record
            raise Rejected(ErrorCode.invalid_record, str(error)) from None
        if self.exporter is not None:
            self.exporter.offer(read.otlp, session.holder)
        await self._keep(session.holder, name, client, read, instance.expires_ms, pace)

    async def run(self) -> None:
        """Pass pushes on, where a receiver is configured, until cancelled."""
        if self.exporter is not None:
            await self.exporter.run()

    async def close(self) -> None:
        """End the threads."""
        if self._worker is not None:
            await self._worker.close()
        if self.exporter is not None:
            await self.exporter.close()

    def _read(self, push: PushTelemetryRequest, client: dict[str, str]) -> _Read:
        """Read a push, on the thread. Raises Corrupt. As in Kafka, it may be no larger once it is decompressed."""
        data = decompress(push.compression_type, push.metrics, max_bytes=self.instances.bytes_max)
        metrics: Any = parse_metrics(data)
        points: tuple[list[Point], int, int] = ([], 0, 0)
        if self.series is not None:
            points = points_of(metrics, _POINTS_MAX, LABELS_MAX + 1)
        return _Read(*points, described(metrics, client) if self.exporter is not None else b"")

    async def _keep(
        self,
        holder: Hashable,
        name: UUID,
        client: dict[str, str],
        read: _Read,
        expires_ms: int,
        pace: Pace,
    ) -> None:
        series = self.series
        if series is None:
            return
        series.dropped["instance"] += read.more
        series.dropped["kind"] += read.others
        series.begin(name, self.clock.steady_ms(), expires_ms)
        labels = {key: client[key] for key in ("client_id", "client_instance_id")}
        async for point in pace.each(read.points):
            series.add(name, expires_ms, labels, point, holder)
