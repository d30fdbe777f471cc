"""The newest values of clients' metrics, as series of bounded number and size.

In: the points of a push, and its client. Out: families of series that are valid in Prometheus' text format, whatever
the client sent. It never keeps more than `SERIES_MAX` series, and none for longer than its client's expiry. Where there
is no room, the series of the principal that has most give way to those of others.

A name is `kafka_client_` and the metric's own without `org.apache.kafka.`; other characters than letters, digits and
`_` become `_`. A delta is added to the series' value: a series that expired begins again at 0, like a counter.
"""

import re
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator, Mapping
from math import isfinite
from typing import Final
from uuid import UUID

from msgspec import Struct

from stratalog.shares import Shares
from stratalog.wire.otlp import Point

__all__ = ["LABELS_MAX", "SERIES_MAX", "ClientSeries"]

SERIES_MAX: Final = 10_000
_SERIES_OF_INSTANCE_MAX: Final = 1000
_NAME_CHARACTERS_MAX: Final = 200
LABELS_MAX: Final = 20
_LABEL_CHARACTERS_MAX: Final = 1000
"""Of all labels of a series, names and values."""
_OF_KAFKA: Final = "org.apache.kafka."
_OTHER: Final = re.compile(r"[^a-zA-Z0-9_]")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")

Labels = tuple[tuple[str, str], ...]


class _Instance(Struct):
    """The series of one client instance."""

    expires_ms: int
    holder: Hashable
    values: dict[tuple[str, Labels], float] = {}


class ClientSeries:
    """The series of one broker's clients."""

    def __init__(self) -> None:
        self._instances: dict[UUID, _Instance] = {}
        self._held = Shares()
        self.dropped: Counter[str] = Counter()
        """Points without a series, by reason (`monitor.metrics.CLIENT_POINTS_DROPPED`)."""

    def __len__(self) -> int:
        return self._held.total

    def begin(self, instance: UUID, now_ms: int, expires_ms: int) -> None:
        """Take an instance's push; its series stay until `expires_ms` of the steady clock."""
        self.expire(now_ms)
        found = self._instances.get(instance)
        if found is not None:
            found.expires_ms = expires_ms

    def add(
        self,
        instance: UUID,
        expires_ms: int,
        client: Mapping[str, str],
        point: Point,
        holder: Hashable,
    ) -> None:
        """Take one point of a push that has begun; `client` has the labels that name the client, a `holder` of series.

        An instance without a series is not kept: a client may invent any number of ids.
        """
        found = self._instances.get(instance) or _Instance(expires_ms, holder)
        name = _name(point.name)
        labels = None if name is None else _labels(client, point.attributes)
        if name is None or labels is None:
            self.dropped["name" if name is None else "labels"] += 1
            return
        key = name, labels
        before = found.values.get(key)
        if before is None and self._is_full(found):
            return
        if point.is_delta and not isfinite(point.value):
            self.dropped["value"] += 1
            return
        found.values[key] = point.value + (before or 0.0) if point.is_delta else point.value
        self._instances[instance] = found
        self._held.add(found.holder, before is None)

    def expire(self, now_ms: int) -> None:
        """Drop the series of instances that have not pushed for long."""
        for name in [name for name, one in self._instances.items() if one.expires_ms <= now_ms]:
            self._drop(name)

    async def families(
        self, pause: Callable[[], Awaitable[None]]
    ) -> Mapping[str, list[tuple[Labels, float]]]:
        """Return each name with its series; `pause` comes after each instance."""
        found: dict[str, list[tuple[Labels, float]]] = {}
        for one in list(self._instances.values()):
            for (name, labels), value in one.values.items():
                found.setdefault(name, []).append((labels, value))
            await pause()
        return found

    def _is_full(self, instance: _Instance) -> bool:
        """Return whether there is no room for one more series, and count the point if so."""
        if len(instance.values) >= _SERIES_OF_INSTANCE_MAX:
            self.dropped["instance"] += 1
        elif len(self) >= SERIES_MAX and not self._gives_way(instance.holder):
            self.dropped["broker"] += 1
        else:
            return False
        return True

    def _gives_way(self, holder: Hashable) -> bool:
        """Drop an instance of the holder that has most series, if that has more than this one."""
        largest = self._held.yields_to(holder, 1)
        if largest is None:
            return False
        self.dropped["broker"] += self._drop(
            next(name for name, one in self._instances.items() if one.holder == largest)
        )
        return True

    def _drop(self, instance: UUID) -> int:
        gone = self._instances.pop(instance)
        self._held.add(gone.holder, -len(gone.values))
        return len(gone.values)


def _name(text: str) -> str | None:
    own = text.removeprefix(_OF_KAFKA)
    if not own or len(own) > _NAME_CHARACTERS_MAX:
        return None
    return "kafka_client_" + _OTHER.sub("_", own)


def _labels(client: Mapping[str, str], attributes: Iterable[tuple[str, str]]) -> Labels | None:
    """Return the labels of a series, in alphabetical order; None for too many or too long ones."""
    found: dict[str, str] = {}
    for number, (name, value) in enumerate(_all(client, attributes)):
        if number >= LABELS_MAX:
            return None
        found.setdefault(name, value)
    if sum(len(name) + len(value) for name, value in found.items()) > _LABEL_CHARACTERS_MAX:
        return None
    # Sorted: the same labels in another order are the same series to Prometheus.
    return tuple((name, _CONTROL.sub("?", value)) for name, value in sorted(found.items()))


def _all(
    client: Mapping[str, str], attributes: Iterable[tuple[str, str]]
) -> Iterator[tuple[str, str]]:
    yield from client.items()
    for name, value in attributes:
        # A name may not begin with a digit, and those that begin with two underscores are Prometheus' own.
        own = _OTHER.sub("_", name[:_LABEL_CHARACTERS_MAX]).strip("_")
        yield (f"_{own}" if not own or own[0].isdigit() else own), value
