"""The files in `container/`: read as their programs read them, and their commands run as processes.

There is no container engine in the tests: no image is built here.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.broker_process import BrokerProcess
from tests.integration.console_process import console_process

PLACE = Path(__file__).parents[2] / "container"
ENTRYPOINT = ["strata"]


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    return dict(yaml.safe_load((PLACE / "compose.yaml").read_text())["services"])


def instructions() -> list[tuple[str, str]]:
    """The Containerfile's instructions, without comments, each on one line."""
    text = re.sub(r"(?m)^#.*\n", "", (PLACE / "Containerfile").read_text()).replace("\\\n", "")
    return [
        (name, rest)
        for name, _, rest in (line.partition(" ") for line in text.splitlines() if line)
    ]


def stage(name: str) -> list[tuple[str, str]]:
    """The instructions of a stage, behind those of the stages of this file that it is made from."""
    found: list[tuple[str, str]] = []
    inside = False
    for instruction, rest in instructions():
        if instruction == "FROM":
            base, _, own = rest.partition(" AS ")
            inside = own == name
            if inside and ":" not in base:
                found = stage(base)
        if inside:
            found.append((instruction, rest))
    return found


@pytest.mark.parametrize("name", ["broker", "spark"])
def test_what_runs_is_not_root_and_needs_no_compiler(name: str) -> None:
    found = stage(name)
    assert [rest for instruction, rest in found if instruction == "USER"] == ["strata"]
    assert json.loads(next(rest for one, rest in found if one == "ENTRYPOINT")) == ENTRYPOINT
    installs = [rest for one, rest in found if one == "RUN" and "pip install" in rest]
    assert installs
    assert all("--no-index" in one for one in installs)
    assert not [rest for _, rest in found if re.search(r"gcc|build-essential|cargo", rest)]


def test_no_image_names_a_registry(services: dict[str, Any]) -> None:
    names = [rest.partition(" ")[0] for one, rest in instructions() if one == "FROM"]
    names += [one["image"] for one in services.values()]
    assert all(re.fullmatch(r"[a-z0-9-]+(/[a-z0-9-]+)?(:[\w.-]+)?", name) for name in names), names


def test_ours_run_read_only_and_publish_on_localhost_alone(services: dict[str, Any]) -> None:
    for name in ("broker", "console"):
        assert services[name]["read_only"] is True
        assert services[name]["cap_drop"] == ["ALL"]
    for one in services.values():
        assert all(port.startswith("127.0.0.1:") for port in one.get("ports", []))


def test_the_brokers_and_the_consoles_commands_run(
    services: dict[str, Any], tmp_path: Path
) -> None:
    """With the bucket in a directory, and free ports: names of other services are this machine."""
    bucket = (tmp_path / "bucket").as_uri()
    server, *words = services["broker"]["command"]
    assert server == "server"
    settings = dict(word.removeprefix("--override=").split("=", 1) for word in words)
    settings |= {
        "log.dirs": str(tmp_path / "log"),
        "tier.url": bucket,
        "listeners": re.sub(r"0\.0\.0\.0:\d+", "127.0.0.1:0", settings["listeners"]),
        "monitor.listener": "127.0.0.1:0",
    }
    del settings["advertised.listeners"]
    broker = BrokerProcess(tmp_path / "broker", settings)
    console, *options = services["console"]["command"]
    assert console == "console"
    try:
        broker.start()
        monitor = json.loads((broker.directory / "ready.json").read_text())["monitor_port"]
        changed = {
            "--bootstrap-server": broker.address,
            "--tier": bucket,
            "--monitor": f"127.0.0.1:{monitor}",
            "--listen": "127.0.0.1:0",
        }
        named = dict(word.partition("=")[::2] for word in options)
        assert changed.keys() <= named.keys()
        given = [f"{name}={value}" if value else name for name, value in (named | changed).items()]
        with console_process(tmp_path / "console", broker.address, *given) as started:
            assert started.json("/overview.json")["brokers"] == 1
            assert started.json("/tier.json")["url"] == bucket
            assert started.json("/metrics.json")["monitors"][0]["address"] == changed["--monitor"]
    finally:
        broker.kill()
