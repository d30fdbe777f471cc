"""The job behind ./run: send an access log through a broker, its bucket and a Spark pipeline, and print the results.

In: log files. Out: a table, an HTML page, with --json one JSON object as the last line. Exit 0 if as many records
came out as went in, and the bucket alone gave the same answer; 1 if not, or if every line is bad; 2 if a person must
act. It leaves no process behind and, without --keep, nothing on disk but the page.
"""

import asyncio
import json
import signal
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from answers import Answers
from ask import ask_bucket, ask_pipeline, java_options
from broker import Serving, running_broker
from brokers import NODES_MAX, RunningCluster, check_count, running_cluster
from load import Survey, check_readable, create_topic, load, survey
from page import write_page
from place import TOPIC, Place, a_place
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn
from secured import Secured, mutual_tls
from shown import show_answers
from sinks import SINKS
from sinks.sink import Sink, SinkPlace
from spark_process import MASTER

from stratalog.adapters.network import TcpNetwork
from stratalog.adapters.object_store import open_store
from stratalog.adapters.system import SystemClock
from stratalog.cli.main import explanation
from stratalog.cli.pipeline import spark_environment
from stratalog.client.aio import Client
from stratalog.client.idempotent import IdempotentPipeline
from stratalog.errors import Corrupt, Rejected, Unavailable, UserError
from stratalog.tier.reading.reader import open_bucket

HERE = Path(__file__).parent
SAMPLE = HERE / "apache_access.log"
TIERED_S = 120.0
"""How long the bucket may make no progress before the job gives up."""

SinkCounts = tuple[str, dict[int, int]]
"""A sink's place, and its rows by HTTP status."""


@dataclass(slots=True)
class Steps:
    """Seconds that each step took, in order."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Measure the time of the block."""
        clock = SystemClock()
        start_ms = clock.now_ms()
        yield
        self.seconds[name] = round((clock.now_ms() - start_ms) / 1000, 2)


async def fill(
    broker: Serving, paths: Sequence[Path], console: Console, replicas: int
) -> tuple[Survey, int]:
    """Load the files into the topic; return their survey, and the number of acknowledged records.

    Of a cluster, the topic's leader dies in the middle.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    file_bytes = sum(path.stat().st_size for path in paths)
    with Progress(*columns, console=console) as progress:
        looking = progress.add_task("Look  ", total=file_bytes)
        seen = survey(paths, lambda read: progress.update(looking, advance=read))
        progress.update(looking, completed=file_bytes, visible=False)
        loading = progress.add_task("Load  ", total=file_bytes)
        security = broker.secured.security
        async with await Client.connect(TcpNetwork(), broker.address, security=security) as client:
            await create_topic(client, TOPIC, seen, replicas)
            end_one = None
            if isinstance(broker, RunningCluster):
                end_one = partial(broker.kill_leader, TOPIC)
            async with IdempotentPipeline(client) as pipeline:
                count = await load(
                    pipeline,
                    TOPIC,
                    paths,
                    seen,
                    lambda read: progress.update(loading, advance=read),
                    end_one,
                )
    return seen, count


async def tiered(broker: Serving, console: Console) -> None:
    """Wait until every closed segment is in the bucket and has left the leader's disk, so that only the active one
    stays.
    """
    loop = asyncio.get_running_loop()
    patience = loop.time() + TIERED_S
    left_before = sys.maxsize
    data = await broker.leader_data(TOPIC)
    with console.status("Waiting for closed segments to reach the bucket and leave the disk"):
        while True:
            left = sum(1 for _ in data.glob(f"{TOPIC}-*/*.log"))
            if left <= 1:
                return
            if left < left_before:
                left_before, patience = left, loop.time() + TIERED_S
            if loop.time() > patience:
                raise UserError(f"{left} segments are still on the local disk after {TIERED_S:g} s")
            await asyncio.sleep(0.1)


def count_tiered(tier_url: str) -> int:
    """Segments that the bucket's manifests name."""
    bucket = open_bucket(open_store(tier_url))
    topic = bucket.topic(TOPIC)
    if topic is None:
        return 0
    manifests = bucket.manifests(topic).values()
    return sum(one.segments for manifest in manifests for one in manifest.live_totals())


@contextmanager
def opened_sink(options: Namespace, place: Place, steps: Steps) -> Iterator[Sink | None]:
    """Open the requested sink for the time of the block; None without one."""
    if options.sink is None:
        yield None
        return
    with ExitStack() as running:
        with steps.step("sink_start"):
            sink = running.enter_context(
                SINKS[options.sink](SinkPlace(place.sink, options.sink_url))
            )
        yield sink


def ask_sink(sink: Sink, answers: Answers) -> SinkCounts:
    """Return the sink's place and its counts. Raises Corrupt unless they equal the pipeline's."""
    counts = sink.status_counts()
    if counts != answers.status:
        raise Corrupt(f"{sink.url} says {counts}, the pipeline {answers.status}")
    return sink.url, counts


def through(
    paths: Sequence[Path], place: Place, options: Namespace, steps: Steps, console: Console
) -> tuple[int, Answers, SinkCounts | None, int | None]:
    """Send the files through a broker, its bucket and the pipeline; return the number of records, the answers, those of
    the sink, and the killed broker.
    """
    asked: SinkCounts | None = None
    with ExitStack() as running:
        sink = running.enter_context(opened_sink(options, place, steps))
        with steps.step("broker"):
            secured = mutual_tls(place.keys) if options.secure else Secured()
            broker: Serving = running.enter_context(
                running_broker(place.data, place.tier_url, place.root / "broker.log", secured)
                if options.brokers == 1
                else running_cluster(place.data, place.tier_url, options.brokers, secured)
            )
        if options.secure:
            console.print("Mutual TLS: brokers serve only clients with a certificate of this run")
        with steps.step("load"):
            seen, records_in = asyncio.run(fill(broker, paths, console, min(options.brokers, 3)))
        if isinstance(broker, RunningCluster):
            console.print(f"Broker {broker.killed} led the topic, and was killed in the middle")
        with steps.step("tier"):
            asyncio.run(tiered(broker, console))
        with steps.step("pipeline"):
            answers = ask_pipeline(place, broker, sink, java_options(seen.bytes), console)
        show_answers(answers, console)
        answers.check(records_in)
        if sink is not None:
            with steps.step("sink_counts"), console.status("Asking the sink"):
                asked = ask_sink(sink, answers)
            console.print(
                f"Sink: {sink.url}: {sum(asked[1].values()):,} rows, the same counts",
                soft_wrap=True,
            )
        with steps.step("page"):
            write_page(place.page, answers, [path.name for path in paths])
        console.print(f"Page: {place.page}", soft_wrap=True)
        with steps.step("stop"):
            broker.stop()
        killed = broker.killed if isinstance(broker, RunningCluster) else None
    return records_in, answers, asked, killed


def run_job(
    paths: Sequence[Path], place: Place, options: Namespace, console: Console
) -> dict[str, Any]:
    """Run all steps; return the object for --json. Raises Corrupt where the counts differ."""
    spark_environment(place.pipeline, master=MASTER)  # no Java: say so before anything is started
    steps = Steps()
    with steps.step("total"):
        records_in, answers, asked, killed = through(paths, place, options, steps, console)
        segments = count_tiered(place.tier_url)
        alone: dict[int | None, int] = {}
        with steps.step("bucket_only"), console.status("Asking the bucket alone"):
            if segments:
                alone = ask_bucket(place)
    if alone != answers.tiered:
        raise Corrupt(f"the bucket alone says {alone}, with the broker it was {answers.tiered}")
    console.print(
        f"The bucket alone, broker gone: {sum(alone.values()):,} records, the same answer"
    )
    sizes = place.bucket_sizes()
    result = {
        "records_in": records_in,
        "records_out": answers.records_out,
        "from_bucket": answers.origins.get("bucket", 0),
        "from_broker": answers.origins.get("broker", 0),
        "tiered_segments": segments,
        "local_bytes": place.local_bytes(),
        "bucket_bytes": sum(sizes),
        "status": by_name(answers.status),
        "bad_lines": answers.bad_lines,
        "bad_reasons": answers.bad_reasons,
        "late_lines": answers.late_lines,
        "bucket_only_records": sum(alone.values()),
        "seconds": steps.seconds,
    }
    if killed is not None:
        result["killed_broker"] = killed
    if place.own_bucket is not None:
        stays = f"{len(sizes):,} objects, {sum(sizes):,} bytes, in {place.own_bucket}"
        console.print(f"What stays: {stays}", soft_wrap=True)
        result["bucket"] = {"url": place.own_bucket, "objects": len(sizes)}
    if asked is not None:
        result["sink"] = {"name": options.sink, "url": asked[0], "status": by_name(asked[1])}
    return result


def by_name(counts: dict[int, int]) -> dict[str, int]:
    """Counts by HTTP status as JSON has them."""
    return {str(status): count for status, count in sorted(counts.items())}


def parse_arguments(arguments: Sequence[str]) -> Namespace:
    """Parse the command line of ./run. Raises UserError for options that exclude one another."""
    parser = ArgumentParser(
        prog="./run",
        description="An access log through a broker, its bucket and a Spark pipeline.",
    )
    parser.add_argument(
        "logs", nargs="*", type=Path, metavar="LOGFILE", help="combined format, plain or gzip"
    )
    parser.add_argument(
        "--brokers",
        type=int,
        default=1,
        metavar="N",
        help=f"a cluster of N brokers, 3 to {NODES_MAX}, whose leader is killed in the middle",
    )
    parser.add_argument(
        "--secure",
        action="store_true",
        help="mutual TLS between brokers, clients and Spark, with keys made for this run",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    parser.add_argument(
        "--keep", type=Path, metavar="DIR", help="leave bucket, data, tables and page in DIR"
    )
    parser.add_argument(
        "--bucket",
        metavar="URL",
        help="a bucket of yours (s3://bucket/prefix?endpoint=…, keys from the environment); what is written stays",
    )
    parser.add_argument("--sink", choices=sorted(SINKS), help="write the good lines there too")
    parser.add_argument(
        "--sink-url", metavar="URL", help="the sink is there already, empty; what is written stays"
    )
    options = parser.parse_args(arguments)
    if options.sink_url is not None and options.sink is None:
        raise UserError(f"--sink-url {options.sink_url}: of which --sink ({', '.join(SINKS)})?")
    check_count(options.brokers)
    return options


def all_bad(result: dict[str, Any]) -> str:
    """Return the warning for a log without one good line; empty for any other."""
    if not result["records_in"] or result["bad_lines"] < result["records_in"]:
        return ""
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in result["bad_reasons"].items())
    return (
        f"none of {result['records_in']:,} lines is in the combined format ({reasons}): is this "
        "a web server's access log?"
    )


def end(number: int, _frame: object) -> NoReturn:
    """Exit on a signal, so that every started process is stopped."""
    raise SystemExit(128 + number)


def main(arguments: Sequence[str]) -> int:
    """Run the job; returns the exit status."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)
    try:
        options = parse_arguments(arguments)
        paths = options.logs or [SAMPLE]
        for path in paths:
            check_readable(path)
        with a_place(options.keep, options.bucket) as place:
            result = run_job(paths, place, options, Console(stderr=options.json))
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
    if warning := all_bad(result):
        sys.stderr.write(f"./run: {warning}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
