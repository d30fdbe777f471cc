"""Goal: clients' metrics (KIP-714) are subscribed, pushed and refused as on Apache Kafka 4.3, and never do harm.

Method: a real node in virtual time, so that intervals are exact; raw requests; the whole exposition is parsed.
"""

import asyncio
import math
from collections.abc import Callable, Coroutine, Mapping
from itertools import pairwise
from typing import Any
from uuid import UUID

import pytest
from msgspec.structs import replace
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, MetricsData
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs
from tests.sim.loop import run
from tests.sim.machine import Machine
from tests.sim.raw import Raw
from tests.sim.world import World

from stratalog.broker.metrics import Histogram
from stratalog.broker.telemetry.exporter import QUEUE_BYTES_MAX, Exporter
from stratalog.broker.telemetry.series import LABELS_MAX, SERIES_MAX, ClientSeries
from stratalog.errors import ErrorCode, Unavailable
from stratalog.monitor.collect import Scraper
from stratalog.monitor.watched import Watched
from stratalog.wire.compression import GZIP, ZSTD, compress
from stratalog.wire.ids import ZERO_ID, topic_id_text
from stratalog.wire.messages.api_versions import ApiVersionsRequest
from stratalog.wire.messages.get_telemetry_subscriptions import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
)
from stratalog.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from stratalog.wire.messages.push_telemetry import PushTelemetryRequest
from stratalog.wire.otlp import Point, points_of

SERIES = {"telemetry.series.enable": "true"}
URL = "http://127.0.0.1:4318/v1/metrics"
MAX = 1 << 20
ONE = UUID(int=77)
Story = Callable[[Machine, Raw], Coroutine[Any, Any, None]]


def play(story: Story, settings: dict[str, str] | None = None) -> None:
    async def whole() -> None:
        machine = Machine(World(1), SERIES if settings is None else settings)
        await machine.restart()
        raw = await Raw.connect(machine.world.network)
        async with asyncio.timeout(10_000):
            await story(machine, raw)
        assert machine.broken_tasks == []
        raw.close()
        await machine.stop()

    run(whole())


async def subscribe(raw: Raw, name: str = "all", **values: str | None) -> None:
    configs = [
        AlterableConfig(name=key.replace("_", "."), config_operation=value is None, value=value)
        for key, value in values.items()
    ]
    resource = AlterConfigsResource(resource_type=16, resource_name=name, configs=configs)
    answer = await raw.ask(
        1, IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
    )
    assert answer.responses[0].error_code == 0, answer


async def ask(raw: Raw, instance: UUID = ONE) -> GetTelemetrySubscriptionsResponse:
    answer = await raw.ask(0, GetTelemetrySubscriptionsRequest(client_instance_id=instance))
    assert isinstance(answer, GetTelemetrySubscriptionsResponse)
    return answer


async def push(
    raw: Raw,
    metrics: bytes = b"",
    *,
    instance: UUID = ONE,
    subscription: int | None = None,
    codec: int = 0,
    last: bool = False,
) -> str:
    """Return the name of the error."""
    if subscription is None:
        subscription = (await ask(raw, instance)).subscription_id
    body = PushTelemetryRequest(
        client_instance_id=instance,
        subscription_id=subscription,
        terminating=last,
        compression_type=codec,
        metrics=metrics,
    )
    return ErrorCode((await raw.ask(0, body)).error_code).name


def gauges(*values: tuple[str, float], **attributes: str) -> bytes:
    data = MetricsData()
    scope = data.resource_metrics.add().scope_metrics.add()
    for name, value in values:
        metric = scope.metrics.add()
        metric.name = name
        point = metric.gauge.data_points.add()
        point.as_double = value
        for key, text in attributes.items():
            one = point.attributes.add()
            one.key, one.value.string_value = key, text
    return bytes(data.SerializeToString())


def joined(*data: bytes) -> bytes:
    """Return the metrics of several pushes as one push: messages of protobuf add up."""
    return b"".join(data)


def total(name: str, value: int, temporality: int) -> bytes:
    data = MetricsData()
    metric = data.resource_metrics.add().scope_metrics.add().metrics.add()
    metric.name = name
    metric.sum.aggregation_temporality = temporality
    metric.sum.data_points.add().as_int = value
    return bytes(data.SerializeToString())


class SlowClock:
    """A clock by which each step takes more than its share of a turn."""

    def __init__(self, clock: Any) -> None:
        self._clock, self._ns = clock, 0

    def elapsed_ns(self) -> int:
        self._ns += 5_000_000
        return self._ns

    def __getattr__(self, name: str) -> Any:
        return getattr(self._clock, name)


async def scrape(machine: Machine, clock: Any = None) -> dict[str, list[Any]]:
    """Return every sample of the exposition, by name, as Prometheus' own parser reads it."""
    watched = Watched(
        clock=clock or machine.broker.clock,
        broker=lambda: machine.broker,
        directories=list,
        disks=list,
        connections=lambda: machine.node._connections,
        stopping=lambda: False,
    )
    text = b"".join([piece async for piece in Scraper(watched, Histogram(), {}).pieces()]).decode()
    found: dict[str, list[Any]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample)
    return found


async def clients(machine: Machine) -> dict[str, float]:
    """Return the value of each client's series, by the name alone."""
    samples = await scrape(machine)
    return {
        name.removeprefix("kafka_client_"): rows[0].value
        for name, rows in samples.items()
        if name.startswith("kafka_client_")
    }


async def dropped(machine: Machine) -> dict[str, float]:
    rows = (await scrape(machine)).get("stratalog_client_metrics_dropped_points_total", [])
    return {row.labels["reason"]: row.value for row in rows if row.value}


@pytest.mark.parametrize(
    ("settings", "is_there"),
    [({}, False), (SERIES, True), ({"telemetry.otlp.url": URL}, True)],
)
def test_the_apis_are_advertised_only_where_something_becomes_of_the_metrics(
    settings: dict[str, str], is_there: bool
) -> None:
    async def story(_machine: Machine, raw: Raw) -> None:
        answer = await raw.ask(2, ApiVersionsRequest())
        assert ({71, 72} <= {one.api_key for one in answer.api_keys}) is is_there

    play(story, settings)


def test_a_client_without_a_subscription_pushes_no_metric_and_gets_kafkas_defaults() -> None:
    async def story(_machine: Machine, raw: Raw) -> None:
        answer = await ask(raw, ZERO_ID)
        assert answer.error_code == 0
        assert answer.client_instance_id != ZERO_ID
        assert (answer.push_interval_ms, answer.telemetry_max_bytes) == (300_000, MAX)
        assert tuple(answer.accepted_compression_types) == (4, 3, 1, 2)
        assert answer.delta_temporality
        assert not answer.requested_metrics

    play(story)


def test_subscriptions_add_up_and_the_shortest_interval_counts() -> None:
    async def story(_machine: Machine, raw: Raw) -> None:
        await subscribe(raw, "one", metrics="b.,a.", interval_ms="5000")
        await subscribe(raw, "two", metrics="c.", interval_ms="7000", match="client_id=raw")
        await subscribe(raw, "other", metrics="d.", interval_ms="100", match="client_id=else")
        await subscribe(raw, "port", metrics="e.", match="client_source_port=[0-9]+")
        address = "client_source_address=127\\.0\\.0\\.1"
        await subscribe(raw, "host", metrics="f.", match=address)
        await subscribe(raw, "name", metrics="g.", match=f"client_instance_id={topic_id_text(ONE)}")
        answer = await ask(raw)
        assert list(answer.requested_metrics) == ["a.", "b.", "c.", "e.", "f.", "g."]
        assert answer.push_interval_ms == 5000
        await subscribe(raw, "every", metrics="*,x")
        every = await ask(raw)
        assert list(every.requested_metrics) == ["*"]
        assert every.subscription_id != answer.subscription_id
        # A long interval does not lengthen the default.
        for name in ("one", "two", "every"):
            await subscribe(raw, name, metrics=None, interval_ms=None, match=None)
        await subscribe(raw, "one", interval_ms="3600000")
        assert (await ask(raw)).push_interval_ms == 300_000

    play(story)


def test_software_is_matched_by_its_name_and_version() -> None:
    async def story(_machine: Machine, raw: Raw) -> None:
        match = "client_software_name=apache-kafka-java,client_software_version=4\\..*"
        await subscribe(raw, metrics="*", match=match)
        assert not (await ask(raw, UUID(int=5))).requested_metrics
        software = ApiVersionsRequest(
            client_software_name="apache-kafka-java", client_software_version="4.3.1"
        )
        await raw.ask(3, software)
        assert list((await ask(raw, UUID(int=6))).requested_metrics) == ["*"]

    play(story)


def test_intervals_hold_with_kafkas_exceptions() -> None:
    async def story(_machine: Machine, raw: Raw) -> None:
        await subscribe(raw, metrics="*", interval_ms="10000")
        first = await ask(raw)
        assert (await ask(raw)).error_code == ErrorCode.throttling_quota_exceeded
        subscription = first.subscription_id
        # The first push after a subscription may come early; the next must wait.
        assert await push(raw, subscription=subscription) == "none"
        assert await push(raw, subscription=subscription) == "throttling_quota_exceeded"
        await asyncio.sleep(9.9)
        assert await push(raw, subscription=subscription) == "throttling_quota_exceeded"
        await asyncio.sleep(0.2)
        assert await push(raw, subscription=subscription) == "none"
        # The client learns of a changed subscription at once, before the interval has passed.
        await subscribe(raw, metrics="a.")
        assert await push(raw, subscription=subscription) == "unknown_subscription_id"
        changed = await ask(raw)
        assert (changed.error_code, list(changed.requested_metrics)) == (0, ["a."])
        # The refused push counts for the interval. The last push may come early, and ends the instance.
        early = await push(raw, subscription=changed.subscription_id)
        assert early == "throttling_quota_exceeded"
        await asyncio.sleep(10)
        assert await push(raw, subscription=changed.subscription_id) == "none"
        assert await push(raw, subscription=changed.subscription_id, last=True) == "none"
        assert await push(raw, subscription=changed.subscription_id) == "invalid_request"

    play(story)


def test_pushes_are_refused_with_kafkas_codes() -> None:
    async def story(_machine: Machine, raw: Raw) -> None:
        await subscribe(raw, metrics="*", interval_ms="100")

        async def refused(metrics: bytes, **more: Any) -> str:
            await asyncio.sleep(1)
            return await push(raw, metrics, **more)

        for reserved in (ZERO_ID, UUID(int=1)):
            assert await refused(b"", instance=reserved, subscription=0) == "invalid_request"
        assert await refused(b"", codec=5) == "unsupported_compression_type"
        assert await refused(b"", codec=-1) == "unsupported_compression_type"
        assert await refused(bytes(MAX + 1)) == "telemetry_too_large"
        assert await refused(b"no protobuf") == "invalid_record"
        assert await refused(b"no gzip", codec=GZIP) == "invalid_record"
        bomb = compress(ZSTD, bytes(64 << 20))
        assert len(bomb) < MAX
        assert await refused(bomb, codec=ZSTD) == "invalid_record"
        for codec in range(5):
            data = compress(codec, gauges(("org.apache.kafka.x", 1.0)))
            assert await refused(data, codec=codec) == "none"

    play(story)


def test_a_connection_that_ends_takes_its_instance_along() -> None:
    async def story(machine: Machine, raw: Raw) -> None:
        other = await Raw.connect(machine.world.network)
        assert (await ask(other)).error_code == 0
        assert (await ask(raw)).error_code == ErrorCode.throttling_quota_exceeded
        other.close()
        await asyncio.sleep(1)
        assert (await ask(raw)).error_code == 0

    play(story)


def test_gauges_have_the_newest_value_and_deltas_add_up() -> None:
    async def story(machine: Machine, raw: Raw) -> None:
        await subscribe(raw, metrics="*", interval_ms="100")
        delta = AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA
        cumulative = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
        for value in (3, 4):
            for data in (
                gauges(("org.apache.kafka.producer.queue-time.avg", value)),
                total("org.apache.kafka.sent", value, delta),
                total("org.apache.kafka.whole", value, cumulative),
            ):
                await asyncio.sleep(1)
                assert await push(raw, data) == "none"
        assert await clients(machine) == {"producer_queue_time_avg": 4, "sent": 7, "whole": 4}
        (sample,) = (await scrape(machine))["kafka_client_sent"]
        assert sample.labels == {"client_id": "raw", "client_instance_id": topic_id_text(ONE)}
        # Silent clients' series expire.
        await asyncio.sleep(61)
        assert await clients(machine) == {}

    play(story)


def test_hostile_pushes_leave_the_exposition_valid_and_bounded() -> None:
    async def story(machine: Machine, raw: Raw) -> None:
        await subscribe(raw, metrics="*", interval_ms="100")
        hostile = {
            "__name__": "stratalog_ready",
            "client_id": "another",
            "9 l\n\x00": 'a\n\x00"\\\r\u2028z',
            "": "empty",
            "x" * 20_000: "",
        }
        awful = 'n\x00"}\n# TYPE x counter\nx 1'
        pushes = [
            gauges((awful, 1.0), ("", 1.0), ("n" * (MAX // 2), 1.0)),
            gauges(("labels", 1.0), **dict(list(hostile.items())[:4])),
            gauges(("long", 1.0), **hostile),
            joined(gauges(("turned", 1.0), a="1", b="2"), gauges(("turned", 2.0), b="2", a="1")),
            gauges(("many", 1.0), **{f"l{number}": "v" for number in range(30)}),
            gauges(("nan", math.nan), ("inf", math.inf), ("minus", -math.inf)),
            gauges(*((f"distinct{number}", 1.0) for number in range(20_000))),
        ]
        names = gauges(*((f"d{number}", 1.0) for number in range(100_000)))
        assert await push(raw, compress(ZSTD, names), codec=ZSTD) == "invalid_record"
        for number, data in enumerate(pushes):
            assert await push(raw, data, instance=UUID(int=100 + number)) == "none"
        found = await scrape(machine)
        values = {name: rows[0] for name, rows in found.items() if "kafka_client_" in name}
        (labels,) = found["kafka_client_labels"]
        assert labels.labels["client_id"] == "raw"
        assert labels.labels["name"] == "stratalog_ready"
        assert labels.labels["_9_l"] == 'a??"\\??z'
        assert math.isnan(values["kafka_client_nan"].value)
        assert values["kafka_client_minus"].value == -math.inf
        assert "kafka_client_n_____" in "".join(values)
        assert [row.value for row in found["kafka_client_turned"]] == [2.0]
        assert len(values) == 1000 + 1 + 1 + 3 + 1
        assert await dropped(machine) == {"instance": 19_000, "name": 2, "labels": 2}
        assert [row.value for row in found["stratalog_ready"]] == [1]

    play(story)


def test_series_of_all_clients_together_are_bounded() -> None:
    async def story(machine: Machine, raw: Raw) -> None:
        await subscribe(raw, metrics="*", interval_ms="100")
        data = gauges(*((f"m{number}", 1.0) for number in range(1000)))
        for number in range(12):
            assert await push(raw, data, instance=UUID(int=100 + number)) == "none"
        found = await scrape(machine)
        assert (
            sum(len(rows) for name, rows in found.items() if "kafka_client" in name) == SERIES_MAX
        )
        assert await dropped(machine) == {"broker": 2000}

    play(story)


def test_a_scrape_of_many_series_gives_turns_between_them() -> None:
    """Series of one name and of many names: between two turns are the names of one instance, or one line."""
    instances, of_each = 4, 500

    async def story(machine: Machine, _raw: Raw) -> None:
        series = machine.broker.telemetry.series
        assert series is not None
        for instance in range(instances):
            for number in range(of_each):
                series.add(
                    UUID(int=instance),
                    1 << 60,
                    {"client_instance_id": str(instance)},
                    Point("one", [("number", str(number))], 1.0, is_delta=False),
                    "holder",
                )
        pauses = 0

        async def pause() -> None:
            nonlocal pauses
            pauses += 1

        await series.families(pause)
        assert pauses == instances
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(other())
        found = await scrape(machine, SlowClock(machine.broker.clock))
        task.cancel()
        assert len(found["kafka_client_one"]) == instances * of_each
        assert turns > instances * of_each

    play(story)


def test_instances_without_a_series_are_not_kept() -> None:
    """A client computes the subscription of any id, so it may invent ids without end."""

    async def story(machine: Machine, raw: Raw) -> None:
        await subscribe(raw, metrics="*", interval_ms="100")
        for number in range(100):
            data = gauges(("", 1.0)) if number % 2 else gauges()
            assert await push(raw, data, instance=UUID(int=100 + number)) == "none"
        series = machine.broker.telemetry.series
        assert series is not None
        assert not series._instances
        assert await push(raw, gauges(("x", 1.0))) == "none"
        assert list(series._instances) == [ONE]

    play(story)


def test_a_push_of_many_attributes_and_points_takes_no_memory_for_each_pair() -> None:
    """128 bytes, packed by zstd, took 4 GB: each point had its own list of 105,000 attributes."""

    async def story(machine: Machine, raw: Raw) -> None:
        await subscribe(raw, metrics="*", interval_ms="100")
        data = MetricsData.FromString(gauges(*((f"m{number}", 1.0) for number in range(2000))))
        own = data.resource_metrics[0].resource.attributes
        for _ in range(2000):
            own.add().value.string_value = ""
        points, _, _ = points_of(data, 5000, LABELS_MAX + 1)
        assert [len(one.attributes) for one in points] == [LABELS_MAX + 1] * 2000
        assert await push(raw, data.SerializeToString()) == "none"
        assert await dropped(machine) == {"labels": 2000}
        many = MetricsData()
        for _ in range(5001):
            many.resource_metrics.add()
        assert await push(raw, many.SerializeToString(), instance=UUID(int=9)) == "invalid_record"

    play(story)


def test_the_series_of_the_client_with_most_give_way() -> None:
    series = ClientSeries()

    def fill(holder: str, first: int, count: int) -> None:
        for number in range(first, first + count):
            for name in range(1000):
                series.add(UUID(int=number), 1, {}, Point(f"m{name}", [], 1.0, False), holder)

    fill("greedy", 0, 12)
    assert (len(series), series.dropped["broker"]) == (SERIES_MAX, 2000)
    fill("honest", 100, 2)
    fill("greedy", 200, 1)
    assert (len(series), series.dropped["broker"]) == (SERIES_MAX, 2000 + 2000 + 1000)
    assert [name.int for name in series._instances] == [*range(2, 10), 100, 101]


def test_a_connection_has_one_instance() -> None:
    async def story(machine: Machine, raw: Raw) -> None:
        for number in range(2, 100):
            await ask(raw, UUID(int=number))
        assert list(machine.broker.telemetry.instances._by_id) == [UUID(int=99)]

    play(story)


def test_pushes_are_passed_on_with_what_names_the_client() -> None:
    async def story(machine: Machine, raw: Raw) -> None:
        await subscribe(raw, metrics="*", interval_ms="100")
        world = machine.world
        world.post_statuses = [503, 0, 200, 400]
        data = MetricsData.FromString(gauges(("org.apache.kafka.x", 1.0)))
        own = data.resource_metrics[0].resource.attributes.add()
        own.key, own.value.string_value = "principal", "forged"
        for _ in range(3):
            assert await push(raw, data.SerializeToString()) == "none"
            await asyncio.sleep(30)
        assert {url for url, _ in world.posts} == {URL}
        assert len(world.posts) == 5
        passed = MetricsData.FromString(world.posts[0][1])
        attributes = {
            one.key: one.value.string_value
            for one in passed.resource_metrics[0].resource.attributes
        }
        assert attributes.pop("client_source_port").isdecimal()
        assert attributes == {
            "client_instance_id": topic_id_text(ONE),
            "client_id": "raw",
            "client_software_name": "",
            "client_software_version": "",
            "client_source_address": "127.0.0.1",
            "principal": "User:ANONYMOUS",
            "broker_id": "1",
        }
        rows = (await scrape(machine))["stratalog_client_metrics_otlp_pushes_total"]
        assert {row.labels["result"]: row.value for row in rows} == {"sent": 2, "refused": 1}

    play(story, {"telemetry.otlp.url": URL})


def test_a_receiver_that_refuses_fills_a_bounded_queue_and_holds_up_no_client() -> None:
    async def story(machine: Machine, raw: Raw) -> None:
        await subscribe(raw, metrics="*", interval_ms="100")
        machine.world.post_statuses = [503] * 1000
        data = gauges(("x" * (MAX - 1000), 1.0))
        began_s = asyncio.get_running_loop().time()
        for number in range(30):
            assert await push(raw, data, instance=UUID(int=100 + number)) == "none"
        assert asyncio.get_running_loop().time() - began_s < 10
        exporter = machine.broker.telemetry.exporter
        assert exporter is not None
        half = QUEUE_BYTES_MAX // 2
        assert half - MAX < exporter.queued_bytes <= half, "of one principal"
        assert exporter.counts["dropped"] == 22
        for _ in range(30):
            exporter.offer(data, "another")
        assert QUEUE_BYTES_MAX - 2 * MAX < exporter.queued_bytes <= QUEUE_BYTES_MAX

    play(story, {"telemetry.otlp.url": URL})


def test_a_push_that_finds_no_receiver_is_tried_again_ever_later_in_its_turn() -> None:
    """Every answer that OTLP calls temporary, and none at all; then a refusal, which is final."""
    answers = [None, 429, 502, 503, 504, 503, 503, 200, 503, 400, 200]
    tried: list[tuple[float, bytes]] = []

    async def story() -> None:
        world, loop = World(1), asyncio.get_running_loop()

        def post(url: str, body: bytes, headers: Mapping[str, str], *, timeout_s: float) -> int:
            assert (url, headers["Content-Type"]) == (URL, "application/x-protobuf")
            assert timeout_s <= 5
            tried.append((loop.time(), body))
            status = answers.pop(0)
            if status is None:
                raise Unavailable("no receiver")
            return status

        exporter = Exporter(URL, replace(world.outside, post=post))
        running = asyncio.create_task(exporter.run())
        for body in (b"first", b"second", b"third"):
            exporter.offer(body, "")
        assert exporter.queued_bytes == 16
        with capture_logs() as lines:
            await asyncio.sleep(200)
            exporter.offer(b"later", "")
            answers[:] = [503, 200]
            await asyncio.sleep(200)
        assert exporter.counts == {"sent": 3, "refused": 1}
        assert exporter.queued_bytes == 0
        # One line for each time that it began to fail: a success was between.
        assert [one["event"] for one in lines] == ["client metrics not passed on"] * 3
        running.cancel()
        await exporter.close()

    run(story())
    assert [body for _, body in tried] == [
        *[b"first"] * 8,
        *[b"second"] * 2,
        b"third",
        *[b"later"] * 2,
    ]
    times = [at for at, _ in tried]
    waits = [round(after - before) for before, after in pairwise(times)]
    assert waits[:-2] == [1, 2, 4, 8, 16, 30, 30, 0, 1, 0]
    assert waits[-1] == 1
