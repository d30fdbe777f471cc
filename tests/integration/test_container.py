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
def composed() -> dict[str, Any]:
    return dict(yaml.safe_load((PLACE / "compose.yaml").read_text()))


@pytest.fixture(scope="module")
def services(composed: dict[str, Any]) -> dict[str, Any]:
    return dict(composed["services"])


@pytest.fixture(scope="module")
def configs(composed: dict[str, Any]) -> dict[str, Any]:
    return dict(composed["configs"])


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
    names += re.findall(r"from=([^,\s]+)", (PLACE / "Containerfile").read_text())
    names += [one["image"] for one in services.values()]
    assert all(re.fullmatch(r"[a-z0-9-]+(/[a-z0-9-]+)?(:[\w.-]+)?", name) for name in names), names


def test_ours_run_read_only_and_publish_on_localhost_alone(services: dict[str, Any]) -> None:
    for name in ("broker", "console"):
        assert services[name]["read_only"] is True
        assert services[name]["cap_drop"] == ["ALL"]
        assert services[name]["security_opt"] == ["no-new-privileges:true"]
        assert services[name]["tmpfs"] == ["/tmp"], (
            "keys of TLS and compiled kernels pass through it"
        )
    for one in services.values():
        assert all(port.startswith("127.0.0.1:") for port in one.get("ports", []))


def options_of(service: dict[str, Any]) -> dict[str, str]:
    """The options of a service's command by name, `--conf NAME=VALUE` and `--override=NAME=VALUE` by that name."""
    words = [re.sub(r"^--override=", "", word) for word in service["command"]]
    return dict(word.split("=", 1) for word in words if "=" in word)


def test_a_published_port_is_one_at_which_its_service_accepts_other_machines(
    services: dict[str, Any],
) -> None:
    names = {"broker": "listeners", "console": "--listen"}
    for service, name in names.items():
        open_ports = re.findall(r"0\.0\.0\.0:(\d+)", options_of(services[service])[name])
        for port in services[service]["ports"]:
            assert port.rpartition(":")[2] in open_ports, (service, port)


def test_what_a_service_names_of_another_is_there(
    services: dict[str, Any], configs: dict[str, Any]
) -> None:
    broker = options_of(services["broker"])
    inside = re.search(r"INSIDE://([\w:]+)", broker["advertised.listeners"])
    assert inside is not None
    monitor = broker["monitor.listener"].replace("0.0.0.0", "broker")
    bucket = broker["tier.url"].removesuffix("&create_bucket=true")
    console, spark = options_of(services["console"]), options_of(services["spark"])
    assert console["--bootstrap-server"] == spark["stratalog.kafka.bootstrap.servers"] == inside[1]
    assert console["--tier"] == spark["stratalog.tier.url"] == bucket
    assert console["--monitor"] == monitor
    scraped = yaml.safe_load(configs["prometheus"]["content"])["scrape_configs"]
    assert [one["static_configs"] for one in scraped] == [[{"targets": [monitor]}]]
    keys = services["broker"]["environment"]
    minio = services["minio"]["environment"]
    assert [keys["AWS_ACCESS_KEY_ID"], keys["AWS_SECRET_ACCESS_KEY"]] == [
        minio["MINIO_ROOT_USER"],
        minio["MINIO_ROOT_PASSWORD"],
    ]
    assert services["console"]["environment"] == services["spark"]["environment"] == keys


def test_spark_runs_a_pipeline_that_its_image_has_and_only_when_asked(
    services: dict[str, Any],
) -> None:
    spark = services["spark"]
    assert spark["profiles"] == ["spark"]
    assert spark["command"][:2] == ["pipeline", "run"]
    copied = next(rest.split() for one, rest in stage("spark") if one == "COPY")
    place = PLACE.parent / copied[0] / Path(spark["command"][2]).relative_to(copied[1])
    known = yaml.safe_load((place / "spark-pipeline.yml").read_text())["configuration"]
    assert options_of(spark).keys() <= known.keys()


def test_a_service_waits_for_those_without_which_it_ends(services: dict[str, Any]) -> None:
    """A broker ends where MinIO does not answer yet, so it starts again; the others wait until it is healthy."""
    assert services["broker"]["restart"] == "on-failure"
    assert services["broker"]["depends_on"] == {"minio": {"condition": "service_started"}}
    for name in ("console", "spark"):
        assert services[name]["depends_on"] == {"broker": {"condition": "service_healthy"}}


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
