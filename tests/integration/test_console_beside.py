"""A console beside a broker: it shows that broker, the monitor links to it, and it never outlives the broker."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.integration.monitor_scrape import get
from tests.integration.server_process import Server, use_unreachable_profile

WAIT_S = 60


@pytest.fixture(autouse=True)
def profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's own settings do not count for the broker beside."""
    use_unreachable_profile(tmp_path / "config", monkeypatch)


def page(url: str) -> str:
    with urllib.request.urlopen(url, timeout=WAIT_S) as answer:
        return str(answer.read().decode())


def until_gone(url: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            page(url)
        except OSError:
            return
        assert time.monotonic() < deadline, "the console outlived its broker"
        time.sleep(0.1)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_server_has_a_console_that_ends_with_it(
    tmp_path: Path, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    settings = ["monitor.listener=127.0.0.1:0", f"tier.url={(tmp_path / 'bucket').as_uri()}"]
    with Server(tmp_path, settings, options=["--console"]) as server:
        monitor = json.loads((tmp_path / "ready.json").read_text())["monitor_port"]
        deadline = time.monotonic() + WAIT_S
        while not (found := re.search(r"console of \S+ is at (\S+)", server.output.read_text())):
            assert time.monotonic() < deadline, server.output.read_text()
            time.sleep(0.1)
        url = found[1]
        assert json.loads(page(f"{url}/overview.json"))["brokers"] == 1
        assert "No topic is in the bucket yet" in page(f"{url}/tier")
        status, text = get(monitor, "/")
        assert (status, f'<a href="{url}">' in text) == (200, True)
        assert '<a href="/metrics">' in text
        os.kill(server.pid, number)
        until_gone(url)
    assert not list(scratch.iterdir())  # after kill -9, too


def test_the_monitors_first_page_without_a_console_names_the_command(tmp_path: Path) -> None:
    with Server(tmp_path, ["monitor.listener=127.0.0.1:0"]):
        monitor = json.loads((tmp_path / "ready.json").read_text())["monitor_port"]
        status, text = get(monitor, "/")
    assert (status, "<code>strata console</code>" in text) == (200, True)


@contextmanager
def demo_with_console() -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """Yield a demo that has made its data and stays with a console, and the console's address."""
    command = [sys.executable, "-m", "stratalog.cli.main", "demo", "--console"]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as demo:
        try:
            assert demo.stdout is not None
            assert demo.stderr is not None
            assert any("Look at it" in line for line in demo.stdout)
            yield demo, demo.stderr.readline().split()[-1]
        finally:
            demo.kill()


def test_a_demo_whose_broker_dies_says_so_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    with demo_with_console() as (demo, url):
        ours = Path(f"/proc/{demo.pid}/task/{demo.pid}/children").read_text().split()
        (broker,) = (
            int(pid) for pid in ours if b"\0server\0" in Path(f"/proc/{pid}/cmdline").read_bytes()
        )
        os.kill(broker, signal.SIGKILL)
        _, said = demo.communicate(timeout=WAIT_S)
    assert demo.returncode == 2, said
    (line,) = said.splitlines()
    assert line.startswith("strata: the broker was ended by SIGKILL: ")
    assert not list(scratch.iterdir())
    until_gone(url)


def test_the_demo_stays_with_a_console_until_it_is_interrupted() -> None:
    with demo_with_console() as (demo, url):
        found = json.loads(page(f"{url}/topics/demo.json"))
        assert found["records"] == 40_000
        assert found["tiered_bytes"] > 0
        (lane,) = json.loads(page(f"{url}/tier.json?topic=demo"))["axis"]["lanes"]
        assert len({box["x"] for box in lane["boxes"]}) == len(lane["boxes"]) > 1
        (monitor,) = json.loads(page(f"{url}/metrics.json"))["monitors"]
        assert monitor["address"].startswith("127.0.0.1:")
        demo.send_signal(signal.SIGINT)
        said, _ = demo.communicate(timeout=WAIT_S)
        assert (demo.returncode, "are gone" in said) == (0, True)
    until_gone(url)
