"""A new worker process loads compiled kernels from the cache and compiles nothing."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from stratalog.kernels.cache import choose_cache_directory

COUNT_COMPILED = """
from stratalog.kernels import compiled
from stratalog.kernels.decode import warm
assert warm() == 2
kernels = [compiled.scan, compiled.sift, compiled.read_rows]
print(sum(sum(kernel.stats.cache_misses.values()) for kernel in kernels))
"""


def test_a_second_process_compiles_nothing(tmp_path: Path) -> None:
    def compiled() -> int:
        environ = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
        ended = subprocess.run(
            [sys.executable, "-c", COUNT_COMPILED],
            env=environ,
            capture_output=True,
            text=True,
            timeout=100,
            check=True,
        )
        return int(ended.stdout)

    assert compiled() > 0
    assert compiled() == 0


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a package directory that no process can write: it and the cache home are below a file."""
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("NUMBA_CACHE_DIR", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(file / "home"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return file / "package"


def test_numba_chooses_a_directory_that_it_can_write(nowhere: Path, tmp_path: Path) -> None:
    assert choose_cache_directory(tmp_path) is None


def test_an_explicit_cache_directory_is_kept(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", "/somewhere")
    assert choose_cache_directory(nowhere) is None
    assert os.environ["NUMBA_CACHE_DIR"] == "/somewhere"


def test_without_a_writable_directory_the_cache_is_private(nowhere: Path, tmp_path: Path) -> None:
    chosen = choose_cache_directory(nowhere)
    assert chosen is not None
    assert Path(chosen).parent == tmp_path
    assert Path(chosen).stat().st_mode & 0o777 == 0o700
    assert os.environ.pop("NUMBA_CACHE_DIR") == chosen
    assert choose_cache_directory(nowhere) == chosen


def test_a_directory_that_others_can_write_is_not_trusted(nowhere: Path) -> None:
    """The process loads machine code from the directory."""
    chosen = choose_cache_directory(nowhere)
    assert chosen is not None
    del os.environ["NUMBA_CACHE_DIR"]
    Path(chosen).chmod(0o777)
    assert choose_cache_directory(nowhere) != chosen
