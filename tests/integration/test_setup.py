"""The set-up that ./run and ./test share, on a checkout whose Python and Java are stand-ins that record calls."""

import shutil
import subprocess
import sys
from hashlib import sha256
from importlib import import_module
from pathlib import Path

import pytest
from hatch_build import DOOR, MODULES, inputs
from tests.compat.tools import cannot_be_had

TOP = Path(__file__).parent.parent.parent
PYTHON = """#!/bin/sh
echo "$*" >>"$CALLS"
case "$*" in
*hatch_build.py*) exec REAL "$@" ;;
*"-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
*fails*) echo "ERROR: no such package" && exit 1 ;;
esac
""".replace("REAL", sys.executable)
JAVA = """#!/bin/sh
case "$*" in
*-XshowSettings*) echo "    java.home = HOME" >&2 ;;
*) echo 'openjdk version "VERSION.0.1" 2024-01-01' >&2 ;;
esac
"""


COMPILED = [one.relative_to(TOP) for one in inputs(TOP)]


@pytest.fixture
def checkout(tmp_path):
    place = tmp_path / "checkout"
    for name in ("scripts/setup.sh", "pyproject.toml", "requirements", *COMPILED):
        source, target = TOP / name, place / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)
    stand_in(tmp_path / "bin" / "python3", PYTHON)
    return place


def stand_in(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def shell(checkout, script, **environment):
    """Source the set-up and run `script`; return (status, output, errors, effective calls of Python)."""
    calls = checkout.parent / "calls"
    calls.write_text("")
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", f"source scripts/setup.sh\n{script}"],
        cwd=checkout,
        capture_output=True,
        text=True,
        env={
            "PATH": f"{checkout.parent}/bin:/usr/bin:/bin",
            "CALLS": str(calls),
            "PYTHON": str(checkout.parent / "bin" / "python3"),
            **environment,
        },
        check=False,
    )
    did = [call for call in calls.read_text().splitlines() if call.startswith("-m ")]
    return done.returncode, done.stdout, done.stderr, did


def test_a_second_run_repeats_no_set_up(checkout):
    status, _, _, calls = shell(checkout, "setup_python run")
    assert status == 0
    assert [call.split()[1] for call in calls] == ["venv", "pip", "pip", "pip"]
    assert all("--require-hashes" in call or "--editable" in call for call in calls[1:])
    assert shell(checkout, "setup_python run") == (0, "", "", [])


def test_the_tests_requirements_include_the_jobs(checkout):
    assert shell(checkout, "setup_python run; setup_python test")[0] == 0
    assert shell(checkout, "setup_python run; setup_python test") == (0, "", "", [])
    _, _, _, calls = shell(checkout, "rm -r .venv; setup_python test; setup_python run")
    assert [call.split()[1] for call in calls] == ["venv", "pip", "pip", "pip"]
    assert any("dev.txt" in call for call in calls)


def test_new_requirements_and_another_place_are_set_up_again(checkout):
    shell(checkout, "setup_python run")
    with (checkout / "requirements" / "spark.txt").open("a") as requirements:
        requirements.write("# one more\n")
    _, _, _, calls = shell(checkout, "setup_python run")
    assert [call.split()[1] for call in calls] == ["pip", "pip", "pip"]
    moved = checkout.with_name("moved")
    checkout.rename(moved)
    _, _, _, calls = shell(moved, "setup_python run")
    assert [call.split()[1] for call in calls] == ["venv", "pip", "pip", "pip"]


@pytest.mark.parametrize("compiled", COMPILED, ids=str)
def test_an_edit_of_a_compiled_file_is_compiled_again(checkout, compiled):
    shell(checkout, "setup_python run")
    with (checkout / compiled).open("a") as edited:
        edited.write("\n")
    _, _, _, calls = shell(checkout, "setup_python run")
    assert [call.split()[1] for call in calls] == ["pip", "pip", "pip"]


def test_each_extension_of_this_checkout_is_made_of_a_known_file():
    made = [one for one in TOP.glob("src/**/*.so") if one != TOP / DOOR]
    sources = {one.parent / f"{one.name.partition('.')[0]}.py" for one in made}
    assert sources <= {TOP / one for one in MODULES}


@pytest.mark.parametrize("module", MODULES, ids=lambda one: one.stem)
def test_an_extension_is_made_of_the_present_text(module):
    imported = import_module(f"stratalog.wire.{module.stem}")
    if imported.__file__.endswith(".py"):
        cannot_be_had(f"compiled {module.stem}", "no C compiler, or hatch_build.py has not run")
    made_of = getattr(imported, "COMPILED_FROM", "an older version")
    assert made_of == sha256((TOP / module).read_bytes()).hexdigest(), "run hatch_build.py"


def test_a_set_up_that_fails_is_one_reason_and_is_tried_again(checkout):
    (checkout / "requirements" / "spark.txt").unlink()
    (checkout / "requirements" / "spark.txt").symlink_to("fails")
    broken = PYTHON.replace("*fails*", "*spark.txt*")
    stand_in(checkout.parent / "bin" / "python3", broken)
    status, _, errors, _ = shell(checkout, "setup_python run")
    assert status == 2
    assert "set-up failed: ERROR: no such package" in errors
    _, _, _, calls = shell(checkout, "setup_python run")
    assert calls


def test_a_set_up_without_a_c_compiler_warns_of_the_cost(checkout):
    _, _, errors, _ = shell(checkout, "setup_python run")
    assert errors.splitlines()[-1].startswith(
        "No C compiler: brokers take records at half the speed"
    )
    (checkout / "src/stratalog/wire/walk.cpython-311.so").touch()
    _, _, errors, _ = shell(checkout, "rm -r .venv; setup_python run")
    assert "compiler" not in errors


def test_missing_java_is_one_line(checkout):
    """The stand-ins hide this machine's Java: its version cannot be read, and nothing may be installed."""
    tools = checkout.parent / "bin"
    stand_in(tools / "id", "#!/bin/sh\necho 1000\n")
    stand_in(tools / "sed", "#!/bin/sh\n")
    (tools / "dirname").symlink_to(shutil.which("dirname"))
    (tools / "bash").symlink_to(shutil.which("bash"))
    status, _, errors, _ = shell(checkout, "setup_java", PATH=str(tools))
    assert status == 2
    assert errors.count("\n") == 1
    assert "Java 17 or newer is missing" in errors


def test_java_is_found_by_the_order_of_its_variables(checkout):
    for name, version in (("old", "11"), ("named", "21"), ("bin", "17")):
        home = checkout.parent / name
        script = JAVA.replace("VERSION", version).replace("HOME", f"home-of-{name}")
        stand_in((home if name == "bin" else home / "bin") / "java", script)
    parent = checkout.parent
    find = "setup_java; echo $JAVA_HOME"
    assert shell(checkout, find, JAVA_HOME=str(parent / "named"))[1] == "home-of-named\n"
    assert shell(checkout, find, JAVA_HOME=str(parent / "old"))[1] == "home-of-bin\n"
    assert shell(checkout, find)[1] == "home-of-bin\n"
