"""`strata bench machine` measures every limit, computes the shares correctly, and leaves no file behind."""

import json
import os
from pathlib import Path

import pytest
from tests.integration.server_process import strata, use_unreachable_profile

from stratalog.adapters.machine import process_cpu_s
from stratalog.cli.speed import bench
from stratalog.cli.speed.bench import Broker, Limits, broker_rows, machine_rows, shares_of

LIMITS = Limits(1e9, 20e-6, 8e9, 4e9, 2e9, 5e9, 1e8, 3e-3, 10e6)


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    use_unreachable_profile(tmp_path_factory.mktemp("config"), monkeypatch)
    monkeypatch.setattr(bench, "LIMIT_S", 0.02)
    monkeypatch.setattr(bench, "LOAD_S", 0.3)
    monkeypatch.setattr(bench, "FILE_BYTES", 4 << 20)
    monkeypatch.setattr(bench, "LOAD_RECORDS", 20_000)


@pytest.mark.usefixtures("little")
def test_a_machine_and_a_broker_are_measured(tmp_path: Path) -> None:
    done = strata("bench", "machine", "--json", "--directory", str(tmp_path))
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert all(rate > 0 for rate in printed["machine"].values())
    assert all(rate is not None and rate >= 0 for rate in printed["broker"].values())
    assert printed["broker"]["produce"] > 0
    assert printed["broker"]["consume"] > 0
    share = printed["broker"]["produce"] / printed["machine"]["loopback"]
    assert printed["shares"]["produce"]["loopback"] == pytest.approx(share, abs=0.001)
    assert list(tmp_path.iterdir()) == []


def test_shares_are_rates_over_limits_and_times_in_multiples() -> None:
    broker = Broker(5e8, 1.5, 1e9, 0.25, 1000.0, 200e-6, 50e-6)
    shares = shares_of(LIMITS, broker)
    assert shares["produce"] == {
        "loopback": 0.5,
        "page_cache_write": 0.25,
        "write_and_sync": 5.0,
        "crc32c": 0.125,
    }
    assert shares["consume"] == {"loopback": 1.0, "page_cache_read": 0.2}
    assert shares["request_p50_s"] == {"loopback_round_trip_s": 10.0}
    assert shares["request_cpu_s"] == {"python_calls": 500.0}
    shown = {row["broker"]: row for row in broker_rows(broker, shares)}
    assert shown["produce"]["measured"] == "500 MB/s"
    assert "50.0% of loopback, 25.0% of page cache write" in shown["produce"]["of the machine"]
    assert shown["one, median"]["of the machine"] == "10.0 loopback round trips"
    assert {row["machine"]: row["measured"] for row in machine_rows(LIMITS)}[
        "crc32c"
    ] == "4,000 MB/s"


def test_unknown_cpu_time_is_printed_as_a_dash() -> None:
    broker = Broker(5e8, None, 1e9, None, 1000.0, 200e-6, None)
    shares = shares_of(LIMITS, broker)
    assert "request_cpu_s" not in shares
    assert [row["measured"] for row in broker_rows(broker, shares) if "CPU" in row["broker"]] == [
        "-"
    ] * 3


def test_a_process_has_used_cpu() -> None:
    before = process_cpu_s(os.getpid())
    while process_cpu_s(os.getpid()) <= before:  # the command prints hundredths of a second
        sum(range(10_000))
    with pytest.raises(OSError, match="No such file"):
        process_cpu_s(2**22 + 1)


def test_a_wrong_place_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = strata("bench", "machine", "--directory", str(tmp_path / "missing"))
    assert done.returncode == 2
    assert done.stderr.startswith(f"strata: --directory {tmp_path / 'missing'}: No such file")
    monkeypatch.setattr(bench, "SPACE_BYTES", 1 << 60)
    full = strata("bench", "machine", "--directory", str(tmp_path))
    assert full.returncode == 2
    assert "name another place with --directory" in full.stderr
    assert list(tmp_path.iterdir()) == []
