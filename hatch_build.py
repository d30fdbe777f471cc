"""Compile modules of `stratalog.wire` (`walk`, `sift`, `keys`, `murmur2`) with mypyc, and the crate `door/` with cargo.

In: the checkout. Out: an extension module beside each module, and the library of the door beside its adapter: in the
wheel or, for an editable install, in the checkout. Without mypyc or a C compiler the modules run as Python, ten to
thirty times slower. Without cargo, and on other systems than Linux, the broker has no door: small requests cost more.

    python hatch_build.py             compile in the checkout, for use without an installation
    python hatch_build.py --inputs    print the text of all that is compiled, and of this file
"""

import os
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from shutil import copy2, rmtree, which
from tempfile import mkdtemp
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ModuleNotFoundError:  # run by hand
    BuildHookInterface = object  # type: ignore[assignment, misc]

MODULES = tuple(
    Path(f"src/stratalog/wire/{name}.py") for name in ("walk", "sift", "keys", "murmur2")
)
DOOR = Path("src/stratalog/adapters/stratalog_door.so")
TIMEOUT_S = 300
_STAMP = b'\nCOMPILED_FROM = "%s"\n'
"""An extension says of which text it was made, so that a test notices one of an older text."""


def compiled(root: Path, module: Path) -> Path | None:
    """The extension made of a module in `root`, in a directory of its own; None where none can be made."""
    scratch = Path(mkdtemp(prefix="stratalog-build-"))
    text = (root / module).read_bytes()
    (scratch / module.name).write_bytes(text + _STAMP % sha256(text).hexdigest().encode())
    command = [sys.executable, "-m", "mypyc", module.name]
    # Compilers for Linux inline no function that another library may replace: hidden ones none may.
    flags = f"{os.environ.get('CFLAGS', '')} -fvisibility=hidden"
    try:
        done = subprocess.run(  # noqa: S603 - ourselves, with what pip brought
            command,
            cwd=scratch,
            env={**os.environ, "CFLAGS": flags},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        reason: object = error
    else:
        made = _extensions(scratch, module)
        if done.returncode == 0 and made:
            return made[0]
        reason = (done.stderr or done.stdout).strip().splitlines()[-1:] or "nothing made"
    sys.stderr.write(f"{module} is not compiled, and slower: {reason}\n")
    rmtree(scratch)
    return None


def compiled_door(root: Path) -> Path | None:
    """The door's library made from the crate in `root`, in a directory of its own; None where none can be made."""
    if sys.platform != "linux":
        return None
    scratch = Path(mkdtemp(prefix="stratalog-build-"))
    cargo = which("cargo") or str(Path.home() / ".cargo/bin/cargo")
    manifest = str(root / "door/Cargo.toml")
    command = [cargo, "build", "--release", "--locked", "--offline", "--manifest-path", manifest]
    environment = {**os.environ, "CARGO_TARGET_DIR": str(scratch)}
    try:
        done = subprocess.run(  # noqa: S603 - cargo, with a crate that depends on nothing
            command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        reason: object = error
    else:
        made = scratch / "release/libstratalog_door.so"
        if done.returncode == 0 and made.exists():
            return made
        reason = done.stderr.strip().splitlines()[-1:] or "nothing made"
    sys.stderr.write(f"the door is not compiled, small requests cost more: {reason}\n")
    rmtree(scratch)
    return None


def _extensions(folder: Path, module: Path) -> list[Path]:
    return [*folder.glob(f"{module.stem}.*.so"), *folder.glob(f"{module.stem}.*.pyd")]


def compile_in_place(root: Path) -> None:
    """Put each extension beside its module, and none that was made of another text."""
    for module in MODULES:
        folder = (root / module).parent
        for old in _extensions(folder, module):
            old.unlink()
        made = compiled(root, module)
        if made is not None:
            copy2(made, folder)
            rmtree(made.parent)
    (root / DOOR).unlink(missing_ok=True)
    door = compiled_door(root)
    if door is not None:
        copy2(door, root / DOOR)
        rmtree(door.parent.parent)


class CompiledModules(BuildHookInterface):  # type: ignore[type-arg]
    """Hatchling calls it for each build of a wheel."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile; `version` is "editable" where the checkout itself is installed."""
        root = Path(self.root)
        self._made: list[Path] = []
        if version == "editable":
            compile_in_place(root)
            return
        for module in MODULES:
            made = compiled(root, module)
            if made is not None:
                self._made.append(made)
                build_data["pure_python"] = False
                build_data["infer_tag"] = True
                build_data["force_include"][str(made)] = f"stratalog/wire/{made.name}"
        door = compiled_door(root)
        if door is not None:
            self._made.append(door.parent)
            build_data["pure_python"] = False
            build_data["infer_tag"] = True
            build_data["force_include"][str(door)] = str(DOOR).removeprefix("src/")

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Leave nothing behind."""
        del version, build_data, artifact_path
        for made in self._made:
            rmtree(made.parent)


def inputs(root: Path) -> list[Path]:
    """Every file of which an extension or the door is made."""
    crate = sorted([*root.glob("door/Cargo.*"), *root.glob("door/src/**/*.rs")])
    return [root / "hatch_build.py", *(root / module for module in MODULES), *crate]


if __name__ == "__main__":
    if sys.argv[1:] == ["--inputs"]:
        sys.stdout.buffer.writelines(one.read_bytes() for one in inputs(Path(__file__).parent))
    else:
        compile_in_place(Path(__file__).parent)
