"""Load tests: percentiles are those of single records, batches keep their size, settings have Kafka's names."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Self

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratalog.cli.speed.load import Latencies, Load, LoadCounts, Producing, produced_line
from stratalog.cli.speed.load import random_values as random_payload
from stratalog.cli.speed.perf import fetch_settings_of, pairs_of, producing_of, values_of
from stratalog.cli.speed.sweep import BATCH_BYTES, sizes_for
from stratalog.client.calls import Produced
from stratalog.client.reader import FetchSettings
from stratalog.errors import ErrorCode, UserError
from stratalog.wire.records import read_records


@given(st.lists(st.tuples(st.integers(0, 500_000), st.integers(1, 20)), min_size=1, max_size=50))
def test_percentiles_equal_those_of_single_records(batches: list[tuple[int, int]]) -> None:
    latencies = Latencies()
    each: list[float] = []
    for hundredths, records in batches:
        latencies.add(hundredths / 100, records)
        each += [hundredths / 100] * records
    each.sort()
    summary = latencies.summary()
    assert summary["max"] == each[-1]
    assert summary["avg"] == pytest.approx(sum(each) / len(each), abs=0.01)
    for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("p99_9", 0.999)):
        # The smallest latency that this share of the records does not exceed.
        wanted = next(x for n, x in enumerate(each, 1) if n >= share * len(each))
        assert summary[name] == pytest.approx(wanted, abs=0.001), name


def test_the_result_line_has_the_format_of_kafkas_tool() -> None:
    counts = LoadCounts(10.0, records=1000, value_bytes=2 * 1024 * 1024, batch_bytes=1)
    counts.latencies.add(1.5, 1000)
    line = produced_line(counts.summary(12.0), percentiles=True)
    assert line == (
        "1000 records sent, 500.0 records/sec (1.00 MB/sec), 1.50 ms avg latency, 1.50 ms max latency, "
        "1.50 ms 50th, 1.50 ms 95th, 1.50 ms 99th, 1.50 ms 99.9th."
    )


class Sent:
    """A client whose pipeline keeps each batch and acknowledges it one turn of the loop later."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, bytes]] = []

    def pipeline(self, *, acks: int, window: int) -> "Sent":
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.sleep(0)

    async def send(self, _topic: str, partition: int, batch: bytes) -> "asyncio.Future[Produced]":
        self.batches.append((partition, batch))
        future: asyncio.Future[Produced] = asyncio.get_running_loop().create_future()
        answer = Produced(ErrorCode.none, None, 0, 0)
        asyncio.get_running_loop().call_soon(future.set_result, answer)
        return future


@settings(max_examples=40)
@given(
    values=st.lists(st.binary(max_size=400), min_size=1, max_size=30),
    records=st.integers(1, 300),
    partitions=st.integers(1, 3),
)
def test_every_value_is_sent_once_in_turn_in_batches_within_their_size(
    values: list[bytes], records: int, partitions: int
) -> None:
    async def send() -> tuple[Sent, Load]:
        sent = Sent()
        load = Load(sent, "t", range(partitions), values, Producing(batch_bytes=1000))  # type: ignore[arg-type]
        await load.run(records)
        return sent, load

    sent, load = asyncio.run(send())
    found = [record.value for _, batch in sent.batches for record in read_records(batch)]
    assert found == [values[n % len(values)] for n in range(records)]
    assert all(len(batch) <= 1000 for _, batch in sent.batches)
    assert [partition for partition, _ in sent.batches] == [
        n % partitions for n in range(len(sent.batches))
    ]
    assert load.total.records == load.total.latencies.count == records
    assert load.total.value_bytes == sum(map(len, found))
    assert load.total.batch_bytes == sum(len(batch) for _, batch in sent.batches)


def test_a_record_larger_than_a_batch_goes_alone() -> None:
    async def send() -> Sent:
        sent = Sent()
        await Load(sent, "t", [0], [b"x" * 5000], Producing(batch_bytes=100)).run(3)  # type: ignore[arg-type]
        return sent

    assert [len(list(read_records(b))) for _, b in asyncio.run(send()).batches] == [1, 1, 1]


def test_a_limited_load_keeps_its_rate_and_waits_at_most_linger(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = SimpleNamespace(s=100.0)
    monkeypatch.setattr("stratalog.adapters.system.monotonic_s", lambda: now.s)

    def tick(_now_s: float) -> None:
        now.s += 0.001

    async def send() -> Sent:
        sent = Sent()
        load = Load(sent, "t", [0], [b"v"], Producing(linger_ms=10, batch_bytes=1 << 20))  # type: ignore[arg-type]
        await load.run(500, throughput=1000, each_tick=tick)
        return sent

    counts = [len(list(read_records(batch))) for _, batch in asyncio.run(send()).batches]
    assert sum(counts) == 500
    # One record each millisecond for ten milliseconds; each may fall into the next tick.
    assert all(9 <= count <= 12 for count in counts[:-1])


def test_settings_have_kafkas_names() -> None:
    assert producing_of([]) == Producing()
    given = ["acks=all", "batch.size=7", "linger.ms=0", "compression.type=zstd"]
    assert producing_of([*given, "max.in.flight.requests.per.connection=1"]) == Producing(
        -1, 7, 0, "zstd", 1
    )
    assert fetch_settings_of(["fetch.max.wait.ms=9", "isolation.level=read_committed"]) == (
        FetchSettings(max_wait_ms=9, isolation=1),
        True,
    )
    assert fetch_settings_of(["check.crcs=false"])[1] is False
    for wrong, said in (
        ("foo=1", "foo: not a setting of this client; accepted: acks, batch.size"),
        ("acks=2", "acks: '2' is not accepted; accepted: all, -1, 1, 0"),
        ("batch.size=0", "batch.size: '0' is not accepted; accepted: a whole number from 1"),
        ("linger.ms=x", "linger.ms: 'x' is not accepted; accepted: a whole number from 0"),
        ("compression.type=rar", "compression.type: 'rar' is not accepted; accepted: none, gzip"),
        ("acks", "expected NAME=VALUE"),
    ):
        with pytest.raises(UserError, match=said):
            producing_of([wrong])
    with pytest.raises(
        UserError, match=r"isolation\.level: 'x' is not accepted; accepted: read_unc"
    ):
        fetch_settings_of(["isolation.level=x"])
    assert pairs_of("-X", ["a=b=c"]) == {"a": "b=c"}


def test_records_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"one\n\nthree\n")
    assert values_of(file, "\\n") == [b"one", b"", b"three"]
    assert values_of(file, "\\n\\n") == [b"one", b"three\n"]
    file.write_bytes(b"\n")
    with pytest.raises(UserError, match="no records in it"):
        values_of(file, "\\n")
    with pytest.raises(UserError, match="No such file"):
        values_of(tmp_path / "missing", "\\n")
    with pytest.raises(UserError, match="payload-delimiter"):
        values_of(file, "")


def test_random_values_are_letters_of_the_requested_size_and_repeatable() -> None:
    values = random_payload(100)
    assert values == random_payload(100)
    assert {len(value) for value in values} == {100}
    assert len(set(values)) == len(values) > 10_000
    assert b"".join(values[:50]).isalpha()
    assert b"".join(values[:50]).isupper()
    assert len(random_payload(10 << 20)) == 1


def test_batches_of_a_sweep_are_smaller_than_the_data(capsys: pytest.CaptureFixture[str]) -> None:
    assert sizes_for(1 << 30) == list(BATCH_BYTES)
    assert capsys.readouterr().err == ""
    assert sizes_for(100_000) == [16 << 10, 64 << 10]
    assert "above 65536 bytes are left out" in capsys.readouterr().err
    assert sizes_for(5) == [16 << 10]
    assert "repeats" in capsys.readouterr().err
