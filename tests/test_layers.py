"""Import-linter holds the layers (contracts in `pyproject.toml`); a wrong import makes the check fail."""

import subprocess
import sys
from pathlib import Path

import pytest


def lint_imports(top: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=top,
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(top / "src")},
        timeout=100,
    )


def test_dependencies_point_downward(repository: Path) -> None:
    done = lint_imports(repository)
    assert done.returncode == 0, done.stdout[-4000:]


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("log/upward.py", "from stratalog.tier.formats.paths import segment_path"),
        ("wire/clock.py", "import time"),
        ("quorum/keeps.py", "from stratalog.log.effects import Append"),
        ("broker/builds.py", "from stratalog.adapters import object_store"),
        ("tier/sparks.py", "import pyspark"),
    ],
)
def test_an_upward_import_is_found(
    repository: Path, tmp_path: Path, module: str, line: str
) -> None:
    # A copy with one wrong import each; links keep it cheap.
    copy_tree(repository / "src", tmp_path / "src")
    (tmp_path / "pyproject.toml").write_text((repository / "pyproject.toml").read_text())
    (tmp_path / "src" / "stratalog" / module).write_text(f"{line}\n")
    done = lint_imports(tmp_path)
    assert done.returncode == 1, done.stdout[-2000:]
    assert Path(module).stem in done.stdout


def copy_tree(source: Path, target: Path) -> None:
    for path in source.rglob("*.py"):
        copied = target / path.relative_to(source)
        copied.parent.mkdir(parents=True, exist_ok=True)
        copied.write_bytes(path.read_bytes())
