"""`strata pipeline run DIR`: run one update of a declarative pipeline, on a permanent catalog.

In: a directory with a `spark-pipeline.yml` and its definitions; a state directory. Out: the pipeline's tables in
STATE/warehouse, its checkpoints, its catalog (Hive on Derby), the run's log, and progress on the terminal. It never
parses or changes the definitions, and starts only Spark's own runner.

The state directory holds all state: a second run with it reads only new records; without it a run starts from the
beginning.
"""

import json
import os
import re
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from shutil import rmtree, which
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import unquote, urlsplit

import typer

from stratalog.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    "PipelineRun",
    "pipeline_app",
    "spark_environment",
    "start_spark",
    "table_files",
    "table_rows",
]

JAVA_MIN = 17
PATIENCE_S = 10.0
RUNNER = ["-m", "stratalog.spark.pipeline_runner"]
SCRATCH = "tmp"
MODULES = "stratalog.modules"
"""The setting of a pipeline that shares modules with another: directories, from its own, with `:` between."""

EXTRA = ("pyspark", "pandas", "pyarrow", "numba", "yaml", "grpc")
"""Modules that `stratalog[spark]` installs; yaml and grpc come with `pyspark[pipelines]`."""

SPEC_NAMES = ("spark-pipeline.yml", "spark-pipeline.yaml")
EVENT = re.compile(r"Flow '?(?:[\w`]+\.)*`?(\w+)`?'? (?:is|has) ([A-Z]+)")
FAILED = re.compile(r"^(?:Error: |[\w.]+(?:Exception|Error): |Exception in thread .*?: )(.+)")
TRACEBACK = "Traceback (most recent call last):"

pipeline_app = typer.Typer(help="Declarative pipelines on Spark.", no_args_is_help=True)


@dataclass(frozen=True, slots=True)
class PipelineRun:
    """One pipeline and its options. `conf` overrides the specification's configuration; its `spark.…` settings are set
    before the JVM starts, so that they can name jars and extensions. `memory` is the JVM's heap; `java_options` are
    passed to the JVM unchanged.
    """

    directory: Path
    state: Path
    conf: Mapping[str, str] = field(default_factory=dict)
    master: str = "local[*]"
    memory: str = "1g"
    java_options: str = ""
    full: bool = False

    def update(self, on_event: Callable[[str, str], None]) -> None:
        """Run one update; `on_event(table, state)` receives each change of a table's state in Spark
        (QUEUED, STARTING, RUNNING, COMPLETED, FAILED, ...).

        Raises UserError with Spark's message and the place of its log.
        """
        self.prepared()(on_event)

    def prepared(self) -> Callable[[Callable[[str, str], None]], None]:
        """Return `update` with everything checked that can be checked before Spark starts.

        Raises UserError where the specification, Spark or Java cannot be used.
        """
        spec, modules = self._prepare()
        command = [*RUNNER, str(spec.resolve()), *(["full"] if self.full else [])]
        environment = spark_environment(self.state, master=self.master, modules=modules)
        return partial(self._update, command, environment)

    def _update(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        on_event: Callable[[str, str], None],
    ) -> None:
        log = self.state / "run.log"
        output: deque[str] = deque(maxlen=200)
        with (
            log.open("w", encoding="utf-8") as kept,
            start_spark(command, environment, self.state, stderr=subprocess.STDOUT) as process,
        ):
            assert process.stdout is not None
            for line in process.stdout:
                kept.write(line)
                output.append(line.rstrip())
                if event := EVENT.search(line):
                    on_event(event[1], event[2])
        rmtree(self.state / SCRATCH, ignore_errors=True)
        if process.returncode != 0:
            raise UserError(f"pipeline {self.directory}: {_reason(output)} (log: {log})")

    def _prepare(self) -> tuple[Path, list[Path]]:
        """Write the state directory's contents before a run. Return the specification, and the directories of Python
        modules: its own, and those of `stratalog.modules`.
        """
        written = _read_spec(self.directory)
        project = self.state / "project"
        conf = self.state / "conf"
        if project.exists():
            rmtree(project)
        for directory in (project, conf, self.state / SCRATCH):
            directory.mkdir(parents=True, exist_ok=True)
        for entry in self.directory.resolve().iterdir():
            if entry.name not in SPEC_NAMES:
                (project / entry.name).symlink_to(entry)
        written["storage"] = (self.state / "storage").resolve().as_uri()
        of_spark = {name: self.conf[name] for name in self.conf if name.startswith("spark.")}
        configuration = {**written.get("configuration", {}), **self.conf}
        written["configuration"] = {
            name: value for name, value in configuration.items() if name not in of_spark
        }
        spec = project / SPEC_NAMES[0]
        spec.write_text(json.dumps(written, indent=2), encoding="utf-8")  # JSON is YAML
        settings = _spark_conf(self.state, self.memory, self.java_options) | of_spark
        lines = (f"{name} {value}\n" for name, value in settings.items())
        (conf / "spark-defaults.conf").write_text("".join(lines), encoding="utf-8")
        (conf / "log4j2.properties").write_text(LOG4J, encoding="utf-8")
        more = str(written["configuration"].get(MODULES, "")).split(os.pathsep)
        return spec, [self.directory, *(self.directory / path for path in more if path)]


def _read_spec(directory: Path) -> dict[str, Any]:
    yaml: Any = import_module("yaml")  # comes with Spark, and has no types of its own
    if not directory.is_dir():
        raise UserError(f"{directory}: no such directory; name the directory of a {SPEC_NAMES[0]}")
    for name in SPEC_NAMES:
        path = directory / name
        if path.is_file():
            try:
                spec = yaml.safe_load(path.read_text(encoding="utf-8"))
            except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
                raise UserError(f"{path}: {' '.join(str(error).split())}") from error
            if not isinstance(spec, dict):
                raise UserError(f"{path}: a mapping is expected")
            return spec
    raise UserError(
        f"{directory}: no {SPEC_NAMES[0]} there; name the directory of a pipeline's {SPEC_NAMES[0]}"
    )


def _spark_conf(state: Path, memory: str, java_options: str) -> dict[str, str]:
    """Return the settings that the JVM and its catalog need at their start, so that no specification can hold them."""
    here = state.resolve()
    scratch = str(here / SCRATCH)
    return {
        "spark.driver.memory": memory,
        # A task buffers its output up to this size: the amount of input must not decide the memory.
        "spark.hadoop.parquet.block.size": str(16 << 20),
        "spark.driver.extraJavaOptions": (
            f"-XX:+UseParallelGC -Dderby.system.home={here} -Djava.io.tmpdir={scratch} {java_options}"
        ),
        "spark.sql.catalogImplementation": "hive",
        "spark.sql.warehouse.dir": (here / "warehouse").as_uri(),
        "spark.hadoop.javax.jdo.option.ConnectionURL": (
            f"jdbc:derby:;databaseName={here}/metastore;create=true"
        ),
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": scratch,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.python.daemon.module": "stratalog.spark.worker_daemon",
        "spark.sql.shuffle.partitions": "4",
        # A failure here would repeat, so report it at once.
        "spark.sql.pipelines.maxFlowRetryAttempts": "0",
    }


LOG4J = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""


def spark_home() -> Path:
    """Return where Spark is installed. Raises UserError where a module of the extra `stratalog[spark]` is missing."""
    for module in EXTRA:
        if find_spec(module) is None:
            raise UserError(f"Spark's {module} is missing: pip install 'stratalog[spark]'")
    found = find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent


def spark_environment(state: Path, *, master: str, modules: Sequence[Path] = ()) -> dict[str, str]:
    """Return the environment of a Spark process: this Python and its Spark, a recent Java, the import path.

    Raises UserError where Spark or Java is missing.
    """
    home = spark_home()
    paths = [*(str(path.resolve()) for path in modules), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "JAVA_HOME": _java_home(),
        "MALLOC_ARENA_MAX": "2",  # otherwise glibc's unused memory grows while the JVM runs
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONUNBUFFERED": "1",
        "SPARK_HOME": str(home),
        "SPARK_CONF_DIR": str((state / "conf").resolve()),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_REMOTE": master,
    }


def _java_home() -> str:
    """Return the home of Java 17 or newer, from JAVA_HOME or else from PATH."""
    advice = "install it (Debian: apt-get install openjdk-17-jre-headless) or set JAVA_HOME"
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else which("java")
    if java is None:
        raise UserError(f"Java is missing and Spark needs {JAVA_MIN} or newer: {advice}")
    try:
        output = subprocess.run(  # noqa: S603 - the user's own Java
            [java, "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            check=True,
            stdin=subprocess.DEVNULL,
        ).stderr
    except (OSError, subprocess.CalledProcessError) as error:
        raise UserError(f"{java} does not run: {advice}") from error
    settings: dict[str, str] = dict(re.findall(r"^ *([\w.]+) = (.*)$", output, re.MULTILINE))
    version = settings.get("java.specification.version", "0")
    if not version.isdigit() or int(version) < JAVA_MIN:
        raise UserError(f"{java} is Java {version} and Spark needs {JAVA_MIN} or newer: {advice}")
    return settings["java.home"]


@contextmanager
def start_spark(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    directory: Path,
    *,
    stderr: int | None = None,
) -> Iterator["subprocess.Popen[str]"]:
    """Start this Python with `arguments` in `directory`, as a process group of its own; the caller reads `stdout`. On
    leaving, normally or not, the whole group ends.
    """
    process = subprocess.Popen(  # noqa: S603 - this very Python
        [sys.executable, *arguments],
        env=dict(environment),
        cwd=directory,
        stdin=subprocess.PIPE,  # the lifeline: the system closes it when this process ends
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        yield process
        process.wait()
    finally:
        _end(process)


def _end(process: "subprocess.Popen[str]") -> None:
    for how in (signal.SIGTERM, signal.SIGKILL):
        # The group may have members left after its first process has ended.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, how)
        # The output ends with the last process of the group, including the JVM and its Python workers.
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=PATIENCE_S)
            return


def _reason(output: Sequence[str]) -> str:
    """Return the line of a failed run's log that explains the failure. A line of this project, which names broker or
    bucket, comes before a library's.

    Of a traceback only the last line explains anything.
    """
    from stratalog.spark.failures import OURS

    without_traceback = [line for line in output if not line.endswith(TRACEBACK)]
    for pattern in (OURS, FAILED):
        for line in without_traceback:
            if found := pattern.search(line):
                return found[1].rstrip(".")
    return next((line for line in reversed(output) if line.strip()), "Spark ended without a word")


def table_files(table: Path) -> list[Path]:
    """Return the Parquet files that make up a table in a pipeline's warehouse.

    A streaming table keeps a log of its committed files, because a failed update may leave others. The log is numbered
    files of JSON lines; the last `.compact` file holds everything before it (Spark: FileStreamSinkLog). A view is
    replaced as a whole.
    """
    log = table / "_spark_metadata"
    if not log.is_dir():
        return sorted(path for path in table.rglob("*.parquet") if path.is_file())
    batches = {int(path.name.split(".")[0]): path for path in sorted(log.glob("[0-9]*"))}
    compact = [number for number, path in batches.items() if path.suffix == ".compact"]
    files = []
    for number in sorted(batches):
        if number >= max(compact, default=0):
            for line in batches[number].read_text(encoding="utf-8").splitlines()[1:]:
                path = unquote(urlsplit(json.loads(line)["path"]).path)
                files.append(table / path.rpartition(f"/{table.name}/")[2])
    return files


def table_rows(state: Path) -> dict[str, int]:
    """Return the rows of each table in a pipeline's warehouse, by table."""
    from pyarrow.parquet import read_metadata

    tables = sorted(path for path in (state / "warehouse").iterdir() if path.is_dir())
    return {
        table.name: sum(read_metadata(path).num_rows for path in table_files(table))
        for table in tables
    }


@pipeline_app.callback()
def _pipeline() -> None:
    """Declarative pipelines on Spark."""


@pipeline_app.command("run")
def run_command(
    directory: Annotated[
        Path, typer.Argument(metavar="DIRECTORY", help="Directory with a spark-pipeline.yml.")
    ],
    state: Annotated[
        Path | None,
        typer.Option(
            metavar="DIRECTORY",
            help="Directory of tables, checkpoints and catalog; by default .state/ and the pipeline's name.",
        ),
    ] = None,
    conf: Annotated[
        list[str] | None,
        typer.Option("--conf", metavar="NAME=VALUE", help="Overrides the specification's setting."),
    ] = None,
    master: Annotated[str, typer.Option(metavar="URL", help="Spark's master.")] = "local[*]",
    memory: Annotated[str, typer.Option(metavar="SIZE", help="Heap of Spark's driver.")] = "1g",
    full: Annotated[bool, typer.Option("--full-refresh", help="Recompute everything.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print tables and rows as JSON.")] = False,
) -> None:
    """Run one update: streaming tables read new records, materialized views are recomputed.

    Example: strata pipeline run mine --conf stratalog.tier.url=s3://bucket
    """
    spark_home()
    chosen = state or Path(".state") / directory.resolve().name
    pairs = [pair.partition("=") for pair in conf or []]
    for name, equals, _ in pairs:
        if not equals or not name:
            raise UserError(f"--conf {name}: expected NAME=VALUE")
    run = PipelineRun(
        directory,
        chosen,
        conf={name: value for name, _, value in pairs},
        master=master,
        memory=memory,
        full=full,
    )
    from rich.console import Console

    update = run.prepared()  # before a bar is shown: it may fail
    with shown_progress(Console(stderr=True)) as on_event:
        update(on_event)
    rows = table_rows(chosen)
    if as_json:
        typer.echo(json.dumps({"tables": rows}))
        return
    for name, count in rows.items():
        typer.echo(f"{name:<24} {count:>14,} rows")


@contextmanager
def shown_progress(console: "Console") -> Iterator[Callable[[str, str], None]]:
    """Yield a listener for `PipelineRun.update` that shows how many tables are done, and which ones are in work."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[working]}"),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("Pipeline", total=None, working="starting Spark")
        states: dict[str, str] = {}

        def on_event(table: str, state: str) -> None:
            states[table] = state
            done = sum(state == "COMPLETED" for state in states.values())
            working = sorted(
                name for name, state in states.items() if state in {"STARTING", "RUNNING"}
            )
            progress.update(task, total=len(states), completed=done, working=", ".join(working))

        yield on_event
