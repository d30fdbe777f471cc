"""Java programs from Maven, fetched once and kept outside the checkout.

In: Maven coordinates. Out: a directory of jars in `$STRATALOG_CACHE` (by default below the user's cache directory),
complete or absent. Never here: the use of the jars.
"""

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from xml.sax.saxutils import escape

from stratalog.errors import UserError

FETCH_TIMEOUT_S = 300


def cache_directory() -> Path:
    """Return the cache directory: $STRATALOG_CACHE, else one below the user's cache directory."""
    chosen = os.environ.get("STRATALOG_CACHE")
    return Path(chosen) if chosen else Path.home() / ".cache" / "stratalog"


@contextmanager
def fetching(name: str) -> Iterator[Path]:
    """Yield the cache path of `name`, locked against other processes. The block creates a missing path."""
    directory = cache_directory()
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield directory / name


def jars(name: str, artifacts: Sequence[str], *, with_dependencies: bool = True) -> Path:
    """Return the cache directory `name` with Maven's `group:artifact:version` jars; fetch them if they are missing.

    With `with_dependencies` it also has their run-time dependencies. Raises UserError if the fetch fails.
    """
    with fetching(name) as directory:
        if not directory.is_dir():
            failure = fetch_jars(artifacts, directory, with_dependencies=with_dependencies)
            if failure:
                raise UserError(f"{', '.join(artifacts)} could not be fetched: {failure}")
        return directory


def fetch_jars(artifacts: Sequence[str], target: Path, *, with_dependencies: bool = True) -> str:
    """Copy Maven artifacts (group:name:version, or with a classifier behind it) and their run-time dependencies to
    `target`, all or none. Return the error, or "".
    """
    maven = shutil.which("mvn")
    if maven is None:
        return "Maven (mvn) is not installed"
    with tempfile.TemporaryDirectory(prefix="stratalog-maven-", dir=target.parent) as scratch:
        (Path(scratch) / "pom.xml").write_text(_project(artifacts), encoding="utf-8")
        copy = ["dependency:copy-dependencies", "-DincludeScope=runtime", "-DoutputDirectory=lib"]
        copy += [] if with_dependencies else ["-DexcludeTransitive=true"]
        try:
            done = subprocess.run(  # noqa: S603 - the user's own Maven
                [maven, "-q", "-B", *copy],
                cwd=scratch,
                capture_output=True,
                text=True,
                timeout=FETCH_TIMEOUT_S,
                stdin=subprocess.DEVNULL,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"Maven did not finish within {FETCH_TIMEOUT_S} s"
        if done.returncode != 0:
            errors = [line for line in done.stdout.splitlines() if line.startswith("[ERROR]")]
            return f"Maven failed: {errors[0] if errors else done.stderr[-200:]}"
        (Path(scratch) / "lib").rename(target)
    return ""


def _project(artifacts: Sequence[str]) -> str:
    dependencies = ""
    for artifact in artifacts:
        group, name, version, *classifier = map(escape, artifact.split(":"))
        more = "".join(f"<classifier>{one}</classifier>" for one in classifier)
        dependencies += (
            f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId>"
            f"<version>{version}</version>{more}</dependency>\n"
        )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>stratalog</groupId><artifactId>fetched</artifactId><version>1</version>"
        f"<dependencies>\n{dependencies}</dependencies></project>\n"
    )
