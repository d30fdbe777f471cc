"""Choose where compiled kernels are cached, so that a new worker loads them and does not compile.

In: the environment and the file system. Out: numba's cache directory, chosen before the first kernel is declared. It
never deletes anything, and never uses a directory that another user could write to.

numba keeps machine code beside the module that declares it (`__pycache__`), else in the user's cache directory, and
fails where it can write to neither. In that case a directory of this user's own, below the system's temporary one,
takes their place.
"""

import os
import stat
import tempfile
from pathlib import Path


def choose_cache_directory(package_directory: Path) -> str | None:
    """Choose numba's cache directory; None leaves the choice to numba (NUMBA_CACHE_DIR, `__pycache__`, user's).

    Call before importing numba: it reads its environment once.
    """
    if os.environ.get("NUMBA_CACHE_DIR"):
        return None
    if _can_write(package_directory / "__pycache__") or _can_write(_user_cache()):
        return None
    private = Path(tempfile.gettempdir()) / f"stratalog-kernels-{os.getuid()}"
    try:
        private.mkdir(mode=0o700, exist_ok=True)
        found = private.lstat()
    except OSError:
        found = None
    mine = (
        found is not None
        and stat.S_ISDIR(found.st_mode)
        and found.st_uid == os.getuid()
        and not found.st_mode
        & 0o022  # machine code is loaded from here: only its owner may write it
    )
    chosen = str(private) if mine else tempfile.mkdtemp(prefix="stratalog-kernels-")
    os.environ["NUMBA_CACHE_DIR"] = chosen
    return chosen


def _user_cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path("~/.cache").expanduser()) / "numba"


def _can_write(directory: Path) -> bool:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            return True
    except OSError:
        return False
