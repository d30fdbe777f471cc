"""Installations that lack something: an extra, or the compiled module. Each is one line that names the remedy."""

import ast
import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from tests.integration.server_process import Server

from stratalog.wire import validation
from stratalog.wire.interpreted import INTERPRETED

SOURCE = Path(validation.__file__).parent.parent
INSTALLED = Path(pytest.__file__).parent.parent


def installation(place: Path, *without: str) -> dict[str, str]:
    """Return the environment of a Python with the test's packages except `without`."""
    for entry in INSTALLED.iterdir():
        if entry.name.partition(".")[0] not in without:
            (place / entry.name).symlink_to(entry)
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(SOURCE.parent), str(place)])}


def python(environment: dict[str, str], *words: str) -> "subprocess.CompletedProcess[str]":
    """Run this Python with only the packages of the environment."""
    return subprocess.run(
        [sys.executable, "-S", *words],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("module", ["pyspark", "pandas", "pyarrow", "numba", "yaml", "grpc"])
def test_a_pipeline_without_its_extra_is_one_line_that_names_it(tmp_path, module):
    environment = installation(tmp_path, module)
    done = python(
        environment, "-m", "stratalog.cli.main", "pipeline", "run", "pipelines/access_log"
    )
    said = f"strata: Spark's {module} is missing: pip install 'stratalog[spark]'\n"
    assert (done.returncode, done.stderr) == (2, said)


@pytest.mark.parametrize("module", ["pyarrow", "numba"])
def test_reading_without_its_extra_names_it(tmp_path, module):
    environment = installation(tmp_path, module)
    done = python(environment, "-c", "import stratalog; stratalog.read('t', tier_url='file:///b')")
    assert done.stderr.splitlines()[-1] == (
        f"ModuleNotFoundError: stratalog.read needs {module}: pip install 'stratalog[arrow]'"
    )


@pytest.mark.parametrize(
    "setting", ["telemetry.series.enable=true", "telemetry.otlp.url=http://127.0.0.1:1/v1/metrics"]
)
def test_a_server_for_clients_metrics_without_its_extra_names_it(tmp_path, setting):
    place = tmp_path / "packages"
    place.mkdir()
    listener = "--override=listeners=PLAINTEXT://127.0.0.1:0"
    data = f"--override=log.dirs={tmp_path / 'data'}"
    words = ("server", data, listener, "--override", setting)
    done = python(installation(place, "opentelemetry"), "-m", "stratalog.cli.main", *words)
    name = setting.partition("=")[0]
    remedy = f"{name} needs the package opentelemetry-proto; pip install 'stratalog[telemetry]'"
    assert (done.returncode, done.stderr.splitlines()[-1]) == (2, f"strata: {remedy}")
    assert "Traceback" not in done.stderr


def test_an_installation_without_a_compiler_warns_that_it_is_slow(tmp_path, monkeypatch):
    without = shutil.ignore_patterns("walk.*.so", "walk.*.pyd", "__pycache__")
    shutil.copytree(SOURCE, tmp_path / "stratalog", ignore=without)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    command = [sys.executable, "-m", "stratalog.cli.main", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith("strata ")
    assert "install a C compiler" in done.stderr
    with Server(tmp_path) as server:
        said = server.output.read_text()
        assert server.stop() == 0
    (line,) = [line for line in said.splitlines() if "not compiled" in line]
    assert "install a C compiler" in line


def test_a_build_has_what_its_compiled_modules_import():
    """mypyc reads the imports' types: pip builds where nothing else is installed, and hides why a module failed."""
    top = SOURCE.parent.parent
    build = tomllib.loads((top / "pyproject.toml").read_text())["build-system"]["requires"]
    there = {re.split(r"\W", one)[0] for one in build}
    there |= {"librt", "mypy_extensions"}  # mypy's own
    compiled = runpy.run_path(str(top / "hatch_build.py"))["MODULES"]
    assert len(compiled) == 4
    for module in compiled:
        tree = ast.parse((top / module).read_text())
        names = {one.module for one in tree.body if isinstance(one, ast.ImportFrom)}
        roots = {str(name).partition(".")[0] for name in names}
        assert roots <= there | sys.stdlib_module_names, module


def test_a_compiled_installation_prints_no_warning():
    command = [sys.executable, "-m", "stratalog.cli.main", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert ("compiler" in done.stderr) == bool(INTERPRETED)
    assert bool(INTERPRETED) == (not list((SOURCE / "wire").glob("walk.*.so")))
