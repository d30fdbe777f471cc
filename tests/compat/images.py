"""The Containerfile's images without a container engine: its instructions run in overlays of this machine's own files.

In: a Containerfile and its context. Out: images, each a stack of directories above `/`. BuildKit's own parser reads the
file. For `python:X` stands this machine's Python X in `/usr/local`, where the image has its own; a `-slim` one has no
compiler. For `rust:1-slim` stands this machine's Rust. Writes go to the given place alone. It needs root, for mounts in
a name space of their own.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import translate
from functools import cache
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any

from tests.compat.tools import cannot_be_had, go_built

SOURCE = Path(__file__).parent / "containerfile"
RUN_TIMEOUT_S = 900
PATH = "/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
PASSED_ON = re.compile(
    r"PIP_(CERT|DEFAULT_TIMEOUT|INDEX_URL)|SSL_CERT_FILE|\w+_proxy", re.IGNORECASE
)
COMPILERS = "/usr/bin/*gcc* /usr/bin/*g++* /usr/bin/cc /usr/bin/c++ /usr/bin/clang*"
Instruction = dict[str, Any]


def parsed(text: str) -> list[dict[str, Any]]:
    """The stages of a Containerfile. Raises ValueError with BuildKit's reason where it finds something wrong."""
    digest = sha256(b"".join(file.read_bytes() for file in sorted(SOURCE.iterdir()))).hexdigest()
    done = subprocess.run(
        [go_built(f"containerfile-{digest[:12]}", SOURCE)],
        input=text,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if done.returncode:
        raise ValueError(done.stderr)
    return list(json.loads(done.stdout))


@dataclass(frozen=True)
class Image:
    """Layers, the newest first, and how a container of them starts."""

    layers: tuple[Path, ...]
    environ: Mapping[str, str] = field(default_factory=lambda: {"PATH": PATH, "LANG": "C.UTF-8"})
    user: str = "root"
    directory: str = "/"
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    health: tuple[str, ...] = ()
    ports: frozenset[int] = frozenset()


def mounted(root: Path, layers: Sequence[Path], writes: Path | None) -> list[str]:
    """Shell commands that make a root of the layers, with writes to `writes`, and this machine's devices."""
    options = f"lowerdir={':'.join(map(str, (*layers, '/')))}"
    lines = [f"mkdir -p {root}"]
    if writes is not None:
        lines.append(f"mkdir -p {writes} {writes}.work")
        options += f",upperdir={writes},workdir={writes}.work"
    lines.append(f"mount -t overlay overlay -o {options} {root}")
    lines += [f"mount --rbind /{one} {root}/{one}" for one in ("dev", "proc")]
    return [*lines, f"mount -t tmpfs -o mode=1777 tmpfs {root}/tmp"]


def alone(lines: Sequence[str]) -> None:
    """Run shell commands with mounts of their own. Raises AssertionError with what they said."""
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-ec", "\n".join(lines)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"{lines[-1]}: {done.stdout[-2000:]}{done.stderr[-3000:]}"


@cache
def _prefix(version: str) -> Path:
    """Where this machine has a Python of a version, in PATH or by pyenv; skips where it has none."""
    pyenv = [str(one) for one in Path.home().glob(f".pyenv/versions/{version}.*/bin/python")]
    for python in (f"python{version}", *pyenv):
        words = [shutil.which(python) or "false", "-c", "import sys; print(sys.base_prefix)"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return Path(done.stdout.strip())
    return cannot_be_had(f"Python {version}", "it is not in PATH")


class Builder:
    """Images by the names of their stages, each built once, with its layers below a place."""

    def __init__(self, file: Path, context: Path, place: Path) -> None:
        if os.geteuid():
            cannot_be_had("a build of the images", "overlays need root")
        self._stages = {one["Name"]: one for one in parsed(file.read_text())}
        self._context, self._place = context, place
        self._ignored = Path(f"{file}.dockerignore").read_text().split()
        self._images: dict[str, Image] = {}
        self._numbers = count()

    def image(self, name: str) -> Image:
        """The image of a stage, of `python:X` or of `rust:1-slim`."""
        if name not in self._images:
            stage = self._stages.get(name)
            self._images[name] = self._base(name) if stage is None else self._built(stage)
        return self._images[name]

    def empty(self) -> Path:
        """A new directory for writes."""
        return self._place / f"layer-{next(self._numbers)}"

    def _base(self, name: str) -> Image:
        return self._rust() if name == "rust:1-slim" else self._python(name)

    def _rust(self) -> Image:
        """An image with links to this machine's toolchain, at the places of the other one."""
        local = self.empty() / "usr" / "local"
        local.mkdir(parents=True)
        for name in ("cargo", "rustup"):
            if not (there := Path.home() / f".{name}").is_dir():
                cannot_be_had("Rust", f"there is no {there}")
            (local / name).symlink_to(there)
        return Image((local.parent.parent,))

    def _python(self, name: str) -> Image:
        found = re.fullmatch(r"python:(\d+\.\d+)(-slim)?", name)
        assert found, f"{name} is not an image that is known here"
        prefix, layer, root = _prefix(found[1]), self.empty(), self._place / "root"
        reachable = " ".join(f"{root}{one}" for one in prefix.parents)
        lines = [
            *mounted(root, (), layer),
            f"chmod a+rx {reachable}",
            f"chroot {root} {prefix}/bin/python{found[1]} -m venv --clear /usr/local",
        ]
        if found[2]:
            lines.append(f"rm -f {' '.join(f'{root}{one}' for one in COMPILERS.split())}")
        alone(lines)
        return Image((layer,))

    def _built(self, stage: dict[str, Any]) -> Image:
        base = self.image(stage["Base"])
        layer = self.empty()
        layer.mkdir(parents=True)
        image = replace(base, layers=(layer, *base.layers))
        for one in stage["Instructions"]:
            image = self._after(image, one)
        return image

    def _after(self, image: Image, one: Instruction) -> Image:
        """The image after an instruction."""
        of = one["Of"]
        match one["Kind"]:
            case "RUN":
                assert of["PrependShell"], of
                self._run(image, " ".join(of["CmdLine"]), one["Mounts"])
            case "COPY":
                self._copy(image, of)
            case "WORKDIR":
                self._inside(image, (f"mkdir -p $root{of['Path']}",))
                return replace(image, directory=of["Path"])
            case "ENV":
                named = {entry["Key"]: entry["Value"] for entry in of["Env"]}
                return replace(image, environ={**image.environ, **named})
            case "USER":
                return replace(image, user=of["User"])
            case "ENTRYPOINT":
                assert not of["PrependShell"], of
                return replace(image, entrypoint=tuple(of["CmdLine"]))
            case "CMD":
                assert not of["PrependShell"], of
                return replace(image, command=tuple(of["CmdLine"]))
            case "HEALTHCHECK":
                kind, *words = of["Health"]["Test"]
                assert kind == "CMD", of
                return replace(image, health=tuple(words))
            case "EXPOSE":
                return replace(image, ports=frozenset(int(port) for port in of["Ports"]))
            case "VOLUME":
                pass
            case other:
                raise AssertionError(f"{other} is not known here")
        return image

    def _inside(self, image: Image, lines: Sequence[str]) -> None:
        """Run shell commands with the image at $root; what they write becomes its newest layer."""
        root = self._place / "root"
        newest, *others = image.layers
        alone([*mounted(root, others, newest), f"root={root}", *lines])

    def _run(self, image: Image, script: str, mounts: Sequence[Instruction]) -> None:
        assert image.user == "root", "an installation by another user"
        lines = []
        for number, mount in enumerate(mounts):
            assert mount["Type"] == "bind", mount
            other = self._place / f"other-{number}"
            source, target = f"{other}{mount['Source']}", f"$root{mount['Target']}"
            lines += mounted(other, self.image(mount["From"]).layers, None)
            lines += [f"mkdir -p {target}", f"mount --bind -o ro {source} {target}"]
        passed = {name: value for name, value in os.environ.items() if PASSED_ON.fullmatch(name)}
        environ = {**image.environ, **passed, "HOME": "/tmp"}  # without this machine's programs
        given = [f"{name}={value}" for name, value in environ.items()]
        words = shlex.join(("-C", image.directory, *given, "sh", "-c", script))
        lines.append(f"chroot $root env -i {words}")
        self._inside(image, lines)

    def _copy(self, image: Image, of: Instruction) -> None:
        assert not of["From"], of
        sent = self._place / "context"
        shutil.rmtree(sent, ignore_errors=True)
        for file in self._sent():
            (sent / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(self._context / file, sent / file)
        target = f"$root{Path(image.directory, of['DestPath'])}"
        lines = [f"mkdir -p {target}"]
        for source in of["SourcePaths"]:
            there = sent / source
            assert there.exists(), f"COPY {source}: it is not there, or ignored"
            what = f"{there}/." if there.is_dir() else str(there)
            lines.append(f"cp -a {what} {target}")
        self._inside(image, lines)
        shutil.rmtree(sent)

    def _sent(self) -> Iterator[Path]:
        """The context's files, without those that `.dockerignore` names, from the top or at any depth (`**/`)."""
        ignored = [
            re.compile("(?:.*/)?" * one.startswith("**/") + translate(one.removeprefix("**/")))
            for one in self._ignored
        ]
        for folder, folders, files in os.walk(self._context):
            place = Path(folder).relative_to(self._context)

            def is_sent(name: str, place: Path = place) -> bool:
                return not any(one.match(str(place / name)) for one in ignored)

            folders[:] = filter(is_sent, folders)
            yield from (place / name for name in files if is_sent(name))
