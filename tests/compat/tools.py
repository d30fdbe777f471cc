"""Third-party tools, fetched once and kept outside the repository.

In: Maven coordinates, Go, npm and Debian packages. Out: Apache Kafka's jars, its command line tools as function calls;
programs. A missing tool skips the test with the reason, which the summary repeats; with CI=true it is a failure. It
never writes into the checkout, and imports no pytest: commands use it that run without the tests' packages.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import NoReturn
from unittest import SkipTest

from pipelines.access_log.fetched import FETCH_TIMEOUT_S, fetch_jars, fetching

KAFKA_VERSION = "4.3.1"
LOG4J_VERSION = "2.25.1"
KAFKA_ARTIFACTS = (
    f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}",
    f"org.apache.kafka:kafka-tools:{KAFKA_VERSION}",
    f"org.apache.logging.log4j:log4j-slf4j-impl:{LOG4J_VERSION}",
    f"org.apache.logging.log4j:log4j-core:{LOG4J_VERSION}",
    f"org.apache.logging.log4j:log4j-1.2-api:{LOG4J_VERSION}",
)
BUILD_TIMEOUT_S = 1800


IN_CI = os.environ.get("CI", "").lower() in {"true", "1"}


class CannotBeHadError(AssertionError if IN_CI else SkipTest):  # type: ignore[misc]
    """A tool that this machine lacks, with the reason. pytest skips the test that raises SkipTest."""


def cannot_be_had(what: str, why: str) -> NoReturn:
    """Raise CannotBeHadError: skips the test that needs `what`, and with CI=true fails it."""
    raise CannotBeHadError(f"not available: {what}: {why}")


@cache
def _kafka_lib() -> tuple[Path | None, str]:
    chosen = os.environ.get("STRATALOG_KAFKA_LIB")
    if chosen:
        found = any(Path(chosen).glob("kafka-tools-*.jar"))
        return (Path(chosen), "") if found else (None, f"STRATALOG_KAFKA_LIB={chosen} has none")
    with fetching(f"kafka-{KAFKA_VERSION}") as lib:
        failure = "" if lib.is_dir() else fetch_jars(KAFKA_ARTIFACTS, lib)
    return (None, failure) if failure else (lib, "")


def kafka_lib() -> Path:
    """The directory of Apache Kafka's jars ($STRATALOG_KAFKA_LIB, else fetched once); skips if it is not available."""
    java()
    lib, failure = _kafka_lib()
    if lib is None:
        cannot_be_had(f"Apache Kafka {KAFKA_VERSION}", failure)
    return lib


@cache
def kafka_tier_lib() -> Path:
    """The jars with Apache Kafka's own tier in a directory, `LocalTieredStorage`; skips if they are not available."""
    artifacts = [
        f"org.apache.kafka:{name}:{KAFKA_VERSION}:test"
        for name in ("kafka-storage", "kafka-clients")
    ]
    with fetching(f"kafka-tier-{KAFKA_VERSION}") as lib:
        failure = "" if lib.is_dir() else fetch_jars(artifacts, lib, with_dependencies=False)
    if failure:
        cannot_be_had("Apache Kafka's LocalTieredStorage", failure)
    return lib


@cache
def kafka_jars(name: str, *artifacts: str, with_dependencies: bool = True) -> Path:
    """The directory of more of Apache Kafka's jars, `artifact` or `artifact:version:classifier`; or skip."""
    named = [one if ":" in one else f"{one}:{KAFKA_VERSION}" for one in artifacts]
    with fetching(f"{name}-{KAFKA_VERSION}") as lib:
        failure = ""
        if not lib.is_dir():
            coordinates = [f"org.apache.kafka:{one}" for one in named]
            failure = fetch_jars(coordinates, lib, with_dependencies=with_dependencies)
    if failure:
        cannot_be_had(f"Apache Kafka's {name}", failure)
    return lib


@cache
def _java() -> str | None:
    home = os.environ.get("JAVA_HOME")
    candidates = [str(Path(home) / "bin" / "java")] if home else []
    candidates += [found for found in [shutil.which("java")] if found]
    for candidate in candidates:
        try:
            done = subprocess.run(
                [candidate, "-version"], capture_output=True, timeout=30, check=False
            )
        except OSError:
            continue
        if done.returncode == 0:
            return candidate
    return None


def java() -> str:
    """Path of a java that runs; skips where there is none."""
    found = _java()
    if found is None:
        cannot_be_had("Java", "no java that runs in JAVA_HOME or PATH")
    return found


def java_command(
    main_class: str, *args: str, heap: str = "256m", jars: Iterable[Path] = ()
) -> list[str]:
    """The command line of one of Kafka's classes, for tests that talk to it while it runs; `jars`: more directories."""
    return [
        java(),
        f"-Xmx{heap}",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-cp",
        os.pathsep.join(f"{place}{os.sep}*" for place in (kafka_lib(), *jars)),
        main_class,
        *args,
    ]


def java_environment() -> dict[str, str]:
    """The environment for a Java child: ours, less what would change its class path."""
    return {
        name: value
        for name, value in os.environ.items()
        if name not in {"CLASSPATH", "JAVA_TOOL_OPTIONS"}
    }


def java_tool(
    main_class: str,
    *args: str,
    input_text: str | None = None,
    timeout_s: float = 180,
    environ: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run one of Kafka's classes (`org.apache.kafka.tools.DumpLogSegments`) to its end, whatever its exit code."""
    return subprocess.run(
        java_command(main_class, *args),
        capture_output=True,
        text=True,
        input=input_text,
        timeout=timeout_s,
        check=False,
        env={**java_environment(), **(environ or {})},
    )


@cache
def _built(
    name: str, builder: str, words: tuple[str, ...], place: tuple[str, str]
) -> tuple[Path, str]:
    """Build a program once with `builder words`; `place` is the variable of its target folder, and the folder below."""
    with fetching(name) as program:
        if program.is_file():
            return program, ""
        command = shutil.which(builder)
        if command is None:
            return program, f"{builder} is not installed"
        variable, folder = place
        with tempfile.TemporaryDirectory(prefix="stratalog-build-", dir=program.parent) as scratch:
            try:
                done = subprocess.run(
                    [command, *words],
                    cwd=scratch,
                    env=os.environ | {variable: scratch},
                    capture_output=True,
                    text=True,
                    timeout=BUILD_TIMEOUT_S,
                    stdin=subprocess.DEVNULL,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                return program, f"{builder} install did not finish within {BUILD_TIMEOUT_S} s"
            if done.returncode != 0:
                return program, f"{builder} install failed: {done.stderr[-200:]}"
            next(Path(scratch, folder).iterdir()).rename(program)
        return program, ""


def go_program(name: str, package: str) -> Path:
    """A program built by `go install package@version`, once; skips if it is not available."""
    version = package.rpartition("@")[2]
    program, failure = _built(f"{name}-{version}", "go", ("install", package), ("GOBIN", ""))
    if failure:
        cannot_be_had(package, failure)
    return program


def go_built(name: str, source: Path) -> Path:
    """The program of a directory with a `go.mod`, built once for a name; skips if it is not available."""
    words = ("install", "-C", str(source), "-mod=readonly", ".")
    program, failure = _built(name, "go", words, ("GOBIN", ""))
    if failure:
        cannot_be_had(name, failure)
    return program


def cargo_program(package: str, features: str) -> Path:
    """A program built by `cargo install name@version`, once; skips if it is not available."""
    words = ("install", "--quiet", "--locked", "--features", features, "--target-dir", "t", package)
    name = package.replace("@", "-")
    program, failure = _built(name, "cargo", words, ("CARGO_INSTALL_ROOT", "bin"))
    if failure:
        cannot_be_had(package, failure)
    return program


def fetched(name: str, command: list[str], unpack: Callable[[Path, Path], list[str]]) -> Path:
    """A directory of the cache: what `command` fetches, each unpacked by the words of `unpack`, all or nothing."""
    with fetching(name) as target:
        if target.is_dir():
            return target
        with tempfile.TemporaryDirectory(prefix="stratalog-fetch-", dir=target.parent) as scratch:
            root = Path(scratch) / "root"
            root.mkdir()
            try:
                _quietly(command, scratch)
                for archive in sorted(Path(scratch).glob("*.*")):
                    _quietly(unpack(archive, root), scratch)
            except (OSError, subprocess.SubprocessError) as error:
                cannot_be_had(name, f"{' '.join(command)}: {error}")
            root.rename(target)
        return target


def _quietly(command: list[str], directory: str) -> None:
    subprocess.run(
        command,
        cwd=directory,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=FETCH_TIMEOUT_S,
        check=True,
    )


# A machine without an earlier update has no package lists.
_DOWNLOAD = 'apt-get download "$@" || { apt-get update && apt-get download "$@"; }'


@cache
def debian_packages(*names: str) -> Path:
    """Debian's packages unpacked below one directory, not installed; skips if they are not available."""
    return fetched(
        f"debian-{names[0]}",
        ["sh", "-c", _DOWNLOAD, "sh", *names],
        lambda archive, root: ["dpkg", "-x", str(archive), str(root)],
    )


@cache
def npm_package(package: str) -> Path:
    """npm's `name@version`, unpacked; what it needs is not fetched. Skips if it is not available."""
    return (
        fetched(
            f"npm-{package}",
            ["npm", "pack", "--silent", package],
            lambda archive, root: ["tar", "xzf", str(archive), "-C", str(root)],
        )
        / "package"
    )


@cache
def npm_installed(package: str) -> Path:
    """`node_modules` with npm's `name@version` and all that it needs. Skips if it is not available."""
    words = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", "root"]
    return (
        fetched(f"npm-installed-{package}", [*words, package], lambda archive, _: ["false"])
        / "node_modules"
    )


def node() -> str:
    """Path of Node.js; skips where there is none."""
    found = shutil.which("node")
    if found is None:
        cannot_be_had("Node.js", "no node in PATH")
    return found
