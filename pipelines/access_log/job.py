"""The job behind ./run: an access log through a broker, its bucket and a Spark pipeline, and what it says.

In: log files. Out: a table, an HTML page, with --json one JSON object as the last line; exit 0 where as many records
came out as went in and the bucket alone gave the same answer. It leaves no process behind and, without --keep,
nothing on disk but the page.
"""

import asyncio
import json
import signal
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NoReturn

from answers import Answers, read_answers
from broker import RunningBroker, running_broker
from load import Survey, check_readable, create_topic, load, survey
from page import write_page
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from stratalog.adapters.network import TcpNetwork
from stratalog.adapters.object_store import open_store
from stratalog.adapters.system import SystemClock
from stratalog.cli.main import explanation
from stratalog.cli.pipeline import PipelineRun, shown_progress, spark_environment, start_spark
from stratalog.client.aio import Client
from stratalog.errors import Corrupt, Rejected, Unavailable, UserError
from stratalog.tier.reader import open_bucket

HERE = Path(__file__).parent
CHECKOUT = HERE.parent.parent
SAMPLE = HERE / "apache_access.log"
TOPIC = "access_log"
MASTER = "local[2]"
HEAP = "768m"
SMALL_LOG_BYTES = 1 << 26
TIERED_S = 120.0
"""How long the bucket may make no progress before the job gives up."""


@dataclass(slots=True)
class Steps:
    """Seconds that each step took, in order."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Time what is done inside."""
        clock = SystemClock()
        start_ms = clock.now_ms()
        yield
        self.seconds[name] = round((clock.now_ms() - start_ms) / 1000, 2)


@dataclass(frozen=True, slots=True)
class Place:
    """Where everything of one run lies."""

    root: Path
    page: Path

    @property
    def data(self) -> Path:
        return self.root / "data"

    @property
    def bucket(self) -> Path:
        return self.root / "bucket"

    @property
    def pipeline(self) -> Path:
        return self.root / "pipeline"

    def local_bytes(self) -> int:
        """Bytes of the topic's partitions on the broker's disk: segments, indexes, all else in their directories."""
        return sum(bytes_below(path) for path in self.data.glob(f"{TOPIC}-*"))

    def bucket_bytes(self) -> int:
        """Bytes of everything in the bucket: segment objects, manifests, identity."""
        return bytes_below(self.bucket)


def bytes_below(directory: Path) -> int:
    """Sum of the sizes of the files in a directory tree; a file that goes meanwhile counts as gone."""
    total = 0
    for path in directory.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue
    return total


@contextmanager
def a_place(keep: Path | None) -> Iterator[Place]:
    """The directory the user wants kept, which must have room for ours, or a temporary one."""
    if keep is None:
        page = CHECKOUT / ".state" / "report.html"
        page.parent.mkdir(exist_ok=True)
        with TemporaryDirectory(prefix="stratalog-run-", ignore_cleanup_errors=True) as root:
            yield Place(Path(root), page)
        return
    place = Place(keep, keep / "report.html")
    for taken in (place.data, place.bucket, place.pipeline):
        if taken.exists():
            raise UserError(
                f"--keep {keep}: {taken.name} is there already; name an empty directory"
            )
    keep.mkdir(parents=True, exist_ok=True)
    yield place


async def fill(
    broker: RunningBroker, paths: Sequence[Path], console: Console
) -> tuple[Survey, int]:
    """The files into the topic; returns what they are, and how many records the broker acknowledged."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    file_bytes = sum(path.stat().st_size for path in paths)
    with Progress(*columns, console=console) as progress:
        looking = progress.add_task("Look  ", total=file_bytes)
        seen = survey(paths, lambda read: progress.update(looking, advance=read))
        progress.update(looking, completed=file_bytes, visible=False)
        loading = progress.add_task("Load  ", total=file_bytes)
        async with await Client.connect(TcpNetwork(), broker.address) as client:
            await create_topic(client, TOPIC, seen)
            count = await load(
                client, TOPIC, paths, seen, lambda read: progress.update(loading, advance=read)
            )
    return seen, count


async def tiered(place: Place, console: Console) -> None:
    """Wait until every closed segment is in the bucket and gone from the local disk: one, the active, is left."""
    loop = asyncio.get_running_loop()
    patience = loop.time() + TIERED_S
    left_before = sys.maxsize
    with console.status("Waiting for closed segments to reach the bucket and leave the disk"):
        while True:
            left = sum(1 for _ in place.data.glob(f"{TOPIC}-*/*.log"))
            if left <= 1:
                return
            if left < left_before:
                left_before, patience = left, loop.time() + TIERED_S
            if loop.time() > patience:
                raise UserError(f"{left} segments are still on the local disk after {TIERED_S:g} s")
            await asyncio.sleep(0.1)


def java_options(seen: Survey) -> str:
    """Over in seconds, a JVM spends most of its time compiling: for a small log the quick compiler is enough."""
    return "-XX:TieredStopAtLevel=1" if seen.bytes < SMALL_LOG_BYTES else ""


def ask_pipeline(place: Place, broker: RunningBroker, options: str, console: Console) -> Answers:
    """One update of the pipeline over bucket and broker, and what its views say."""
    run = PipelineRun(
        HERE,
        place.pipeline,
        conf={
            "stratalog.kafka.bootstrap.servers": broker.address,
            "stratalog.tier.url": broker.tier_url,
            "stratalog.subscribe": TOPIC,
        },
        master=MASTER,
        memory=HEAP,
        java_options=options,
    )
    with shown_progress(console) as on_event:
        run.update(on_event)
    return read_answers(place.pipeline)


def ask_bucket(place: Place, tier_url: str, console: Console) -> dict[int | None, int]:
    """HTTP status -> requests (None -> bad lines) of all that is tiered, from the bucket alone."""
    environment = spark_environment(place.pipeline, master=MASTER, modules=HERE)
    del environment["SPARK_REMOTE"]  # a plain session is enough
    environment["PYSPARK_SUBMIT_ARGS"] = (
        f"--master {MASTER} --conf spark.sql.catalogImplementation=in-memory pyspark-shell"
    )
    log = place.root / "bucket-only.log"
    command = [str(HERE / "bucket_only.py"), tier_url, TOPIC]
    with (
        console.status("Asking the bucket alone, in a new Spark process"),
        log.open("w", encoding="utf-8") as stderr,
        start_spark(command, environment, place.pipeline, stderr=stderr.fileno()) as process,
    ):
        assert process.stdout is not None
        said = process.stdout.read().strip().splitlines()
    if process.returncode != 0 or not said:
        raise UserError(f"the bucket alone did not answer: {spark_error(log)}")
    answer: dict[str, int] = json.loads(said[-1])
    return {None if name == "bad" else int(name): count for name, count in answer.items()}


def spark_error(log: Path) -> str:
    """The line of a Spark program's log that says most."""
    said = log.read_text(encoding="utf-8", errors="replace").splitlines()
    telling = [line for line in said if "Error" in line or "Exception" in line]
    return (telling or said or ["no reason given"])[-1].strip()


def count_tiered(tier_url: str) -> int:
    """Segments that the bucket's manifests name."""
    bucket = open_bucket(open_store(tier_url))
    topic = bucket.topic(TOPIC)
    if topic is None:
        return 0
    return sum(sum(1 for _ in manifest.live()) for manifest in bucket.manifests(topic).values())


def show_answers(answers: Answers, console: Console) -> None:
    """The tables of results, and where the records came from."""
    status = Table(title="Requests by status", title_justify="left")
    status.add_column("status")
    status.add_column("requests", justify="right")
    for code, count in answers.status.items():
        status.add_row(str(code), f"{count:,}")
    status.add_row("bad lines", f"{answers.bad_lines:,}")
    top = Table(title=f"Top paths of {answers.path_count:,}", title_justify="left")
    top.add_column("path", overflow="fold")
    top.add_column("requests", justify="right")
    top.add_column("errors", justify="right")
    for path in answers.paths[:8]:
        top.add_row(escape(path.name or "(none)"), f"{path.requests:,}", f"{path.errors:,}")
    console.print(status, top, sep="\n")
    console.print(
        f"{answers.records_out:,} records out: {answers.origins.get('bucket', 0):,} from the bucket, "
        f"{answers.origins.get('broker', 0):,} from the broker"
    )


def run_job(paths: Sequence[Path], place: Place, console: Console) -> dict[str, Any]:
    """All steps; returns what --json prints. Raises Corrupt where the counts do not agree."""
    spark_environment(place.pipeline, master=MASTER)  # no Java: say so before anything is started
    steps = Steps()
    with steps.step("total"):
        with ExitStack() as running:
            with steps.step("broker"):
                broker = running.enter_context(
                    running_broker(place.data, place.bucket, place.root / "broker.log")
                )
            with steps.step("load"):
                seen, records_in = asyncio.run(fill(broker, paths, console))
            with steps.step("tier"):
                asyncio.run(tiered(place, console))
            with steps.step("pipeline"):
                answers = ask_pipeline(place, broker, java_options(seen), console)
            show_answers(answers, console)
            answers.check(records_in)
            with steps.step("page"):
                write_page(place.page, answers, [path.name for path in paths])
            console.print(f"Page: {place.page}", soft_wrap=True)
            with steps.step("stop"):
                broker.stop()
        segments = count_tiered(broker.tier_url)
        alone: dict[int | None, int] = {}
        with steps.step("bucket_only"):
            if segments:
                alone = ask_bucket(place, broker.tier_url, console)
    if alone != answers.tiered:
        raise Corrupt(f"the bucket alone says {alone}, with the broker it was {answers.tiered}")
    console.print(
        f"The bucket alone, broker gone: {sum(alone.values()):,} records, the same answer"
    )
    return {
        "records_in": records_in,
        "records_out": answers.records_out,
        "from_bucket": answers.origins.get("bucket", 0),
        "from_broker": answers.origins.get("broker", 0),
        "tiered_segments": segments,
        "local_bytes": place.local_bytes(),
        "bucket_bytes": place.bucket_bytes(),
        "status": {str(code): count for code, count in answers.status.items()},
        "bad_lines": answers.bad_lines,
        "bucket_only_records": sum(alone.values()),
        "seconds": steps.seconds,
    }


def parse_arguments(arguments: Sequence[str]) -> Namespace:
    """The command line of ./run."""
    parser = ArgumentParser(
        prog="./run",
        description="An access log through a broker, its bucket and a Spark pipeline.",
    )
    parser.add_argument(
        "logs", nargs="*", type=Path, metavar="LOGFILE", help="combined format, plain or gzip"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    parser.add_argument(
        "--keep", type=Path, metavar="DIR", help="leave bucket, data, tables and page in DIR"
    )
    return parser.parse_args(arguments)


def end(number: int, _frame: object) -> NoReturn:
    """A signal to end is an exit like any other: what was started is stopped."""
    raise SystemExit(128 + number)


def main(arguments: Sequence[str]) -> int:
    """Run the job; returns the exit status."""
    options = parse_arguments(arguments)
    console = Console(stderr=options.json)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)
    try:
        paths = options.logs or [SAMPLE]
        for path in paths:
            check_readable(path)
        with a_place(options.keep) as place:
            result = run_job(paths, place, console)
    except KeyboardInterrupt:
        sys.stderr.write("./run: interrupted\n")
        return 130
    except (BaseExceptionGroup, UserError, Unavailable, Rejected, Corrupt, OSError) as error:
        explained = explanation(error)
        if explained is None:
            raise
        sys.stderr.write(f"./run: {explained[0]}\n")
        return explained[1]
    if options.json:
        sys.stdout.write(json.dumps(result) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
