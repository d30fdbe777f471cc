"""Sessions and flags of the real log through Spark, compared with a computation in plain Python.

Method: half of the log, then lines that come late (some within the delay, some past it), then the rest, with a new
Spark process from the checkpoints in between. Python computes them from the lines alone, by other means:
sessions by sorting, baselines by weighing every hour instead of hour by hour.
"""

import json
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from math import sqrt
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyarrow.parquet import read_table
from tests.integration.log_topic import append
from tests.integration.server_process import Server
from tests.spark_scratch import scratch

from stratalog.cli.pipeline import PipelineRun, spark_environment, table_files

PIPELINES = Path(__file__).parent.parent.parent / "pipelines"
REAL_LOG = PIPELINES / "access_log" / "apache_access.log"
PROGRAM = Path(__file__).parent / "derived_program.py"
HALF = 6000
LATE = "66.249.73.135"
GAP = timedelta(minutes=30)
DELAY = timedelta(hours=1)
HOUR = timedelta(hours=1)
LINE = re.compile(r'(\S+) \S+ \S+ \[(.*?)\] "(.*?)" (\d+) (\S+) "(.*?)"(?: "(.*)")?.*', re.DOTALL)

pytestmark = [pytest.mark.big, pytest.mark.serial, pytest.mark.timeout(1800)]


class Line(NamedTuple):
    """A line of the log; `number` is its offset."""

    time: datetime
    number: int
    host: str
    agent: str | None
    path: str | None
    status: int
    bytes: int | None


def read(text: str, number: int) -> Line:
    found = LINE.fullmatch(text)
    assert found is not None, text
    host, time, request, status, size, _, agent = found.groups()
    words = request.removesuffix(" HTTP/1.1").removesuffix(" HTTP/1.0").split(" ", 1)
    return Line(
        datetime.strptime(time, "%d/%b/%Y:%H:%M:%S %z"),
        number,
        host,
        None if agent in {"-", ""} else agent,
        words[1].split("?")[0] if len(words) > 1 else None,
        int(status),
        None if size == "-" else int(size),
    )


def sessions(lines: Iterable[Line]) -> list[dict[str, Any]]:
    by_visitor = defaultdict(list)
    for line in lines:
        by_visitor[line.host, line.agent].append(line)
    found = []
    for visits in by_visitor.values():
        visits.sort(key=lambda line: (line.time, line.number))
        ends = [
            at
            for at, (one, next_) in enumerate(pairwise(visits), 1)
            if next_.time - one.time >= GAP
        ]
        found += [visits[a:b] for a, b in pairwise([0, *ends, len(visits)])]
    return [session(visits) for visits in found]


def session(visits: list[Line]) -> dict[str, Any]:
    sizes = [line.bytes for line in visits if line.bytes is not None]
    said = {
        "host": visits[0].host,
        "agent": visits[0].agent,
        "start": stamp(visits[0].time),
        "end": stamp(visits[-1].time),
        "seconds": int((visits[-1].time - visits[0].time).total_seconds()),
        "requests": len(visits),
        "errors": sum(line.status >= 400 for line in visits),
        "bytes": sum(sizes) if sizes else None,
        "entry": visits[0].path,
        "exit": visits[-1].path,
    }
    return {name: value for name, value in said.items() if value is not None}


def stamp(time: datetime) -> str:
    return f"{time.astimezone(UTC):%Y-%m-%dT%H:%M:%S.000Z}"


def flags(lines: Iterable[Line], until: datetime | None = None) -> list[dict[str, Any]]:
    """Return the flags of all hours that end before `until`."""
    counts: dict[tuple[str, str], dict[datetime, list[int]]] = defaultdict(dict)
    for line in lines:
        hour = line.time.replace(minute=0, second=0)
        if until is not None and hour + HOUR > until:
            continue
        for kind, key in (("client", line.host), ("path", line.path)):
            if key is not None:
                count = counts[kind, key].setdefault(hour, [0, 0])
                count[0] += 1
                count[1] += line.status >= 400
    found = []
    for (kind, key), hours in counts.items():
        found += [{"kind": kind, "key": key, **flag} for flag in key_flags(hours)]
    return found


def key_flags(hours: dict[datetime, list[int]]) -> Iterator[dict[str, Any]]:
    first = min(hours)
    for hour, (requests, errors) in hours.items():
        before = [hours.get(first + n * HOUR, [0, 0]) for n in range((hour - first) // HOUR)]
        if len(before) < 6:
            continue
        fade = [0.9 ** (len(before) - 1 - n) for n in range(len(before))]
        weights = [fade[0], *(0.1 * one for one in fade[1:])]
        mean = sum(w * count for w, (count, _) in zip(weights, before, strict=True))
        spread = sum(w * (count - mean) ** 2 for w, (count, _) in zip(weights, before, strict=True))
        past = sum(w * count for w, (count, _) in zip(fade, before, strict=True))
        past_errors = sum(w * count for w, (_, count) in zip(fade, before, strict=True))
        share = (past_errors + 0.5) / (past + 10)
        usual = share * requests
        counted = {"hour": stamp(hour), "requests": requests, "errors": errors}
        rate = (requests - mean) / sqrt(max(spread, mean, 1))
        excess = (errors - usual) / sqrt(max(usual * (1 - share), 1))
        if requests >= 10 and rate > 4:
            yield {**counted, "what": "rate", "expected": mean, "score": rate}
        if errors >= 5 and excess > 4:
            yield {**counted, "what": "errors", "expected": usual, "score": excess}


def ordered(found: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    rounded = (
        {
            name: round(value, 6) if isinstance(value, float) else value
            for name, value in one.items()
        }
        for one in found
    )
    return sorted(rounded, key=lambda one: sorted(map(str, one.items())))


def made_line(host: str, time: datetime, status: int = 200) -> str:
    return f'{host} - - [{time:%d/%b/%Y:%H:%M:%S +0000}] "GET /late HTTP/1.1" {status} 1 "-" "late"'


def derived(server: Server, place: Path) -> dict[str, list[dict[str, Any]]]:
    modules = [PIPELINES / name for name in ("access_log", "sessions", "anomalies")]
    environment = spark_environment(place / "spark", master="local[2]", modules=modules)
    del environment["SPARK_REMOTE"]
    done = subprocess.run(
        [sys.executable, PROGRAM, server.address, (place / "bucket").as_uri(), place / "state"],
        capture_output=True,
        text=True,
        timeout=800,
        env={**environment, **scratch(place)},
        cwd=place,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    said: dict[str, list[dict[str, Any]]] = json.loads(done.stdout.splitlines()[-1])
    return said


def closed(in_time: list[Line]) -> list[dict[str, Any]]:
    """Return the sessions that a stream has ended, of lines that arrived in time."""
    watermark = max(line.time for line in in_time) - DELAY
    return [
        one for one in sessions(in_time) if datetime.fromisoformat(one["end"]) + GAP <= watermark
    ]


def check(
    said: dict[str, list[dict[str, Any]]], all_lines: list[Line], in_time: list[Line]
) -> None:
    """The results of both pipelines, each over all of history and as a stream: closed, and without late records."""
    watermark = max(line.time for line in in_time) - DELAY
    assert ordered(said["sessions_in_history"]) == ordered(sessions(all_lines))
    assert ordered(said["sessions"]) == ordered(closed(in_time))
    assert ordered(said["flags_in_history"]) == ordered(flags(all_lines))
    assert ordered(said["flags"]) == ordered(flags(in_time, watermark))


class Story:
    """Half of the log; then lines late by minutes, lines too late, and the rest."""

    def __init__(self) -> None:
        texts = REAL_LOG.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
        self.first, rest = texts[:HALF], texts[HALF:]
        now = max(read(text, 0).time for text in self.first)
        late = [made_line("192.0.2.1", now - timedelta(minutes=20 + n)) for n in range(3)]
        # Only errors, of a client with a day of history: the batch alone flags them.
        too_late = [made_line(LATE, now - timedelta(hours=3, seconds=n), 404) for n in range(40)]
        self.then = [*late, *too_late, *rest]
        self.lines = [read(text, at) for at, text in enumerate([*self.first, *self.then])]
        self.in_time = [*self.lines[: HALF + 3], *self.lines[HALF + 43 :]]


@pytest.fixture(scope="module")
def story() -> Story:
    return Story()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path, [f"tier.url={(tmp_path / 'bucket').as_uri()}"]) as running:
        yield running


def test_streams_restarted_from_checkpoints_agree_with_history(tmp_path, server, story):
    """Goal: an interrupted stream gives the same result as a batch over all lines, except for late lines."""
    append(server, tmp_path / "first.log", story.first, create=True)
    said = derived(server, tmp_path)
    check(said, story.lines[:HALF], story.lines[:HALF])
    before = len(said["sessions"])
    append(server, tmp_path / "rest.log", story.then, create=False)
    said = derived(server, tmp_path)
    check(said, story.lines, story.in_time)
    assert len(said["sessions"]) > before > 0
    in_stream = {(one["key"], one["what"]) for one in said["flags"]}
    in_history = {(one["key"], one["what"]) for one in said["flags_in_history"]}
    assert (LATE, "errors") in in_history - in_stream


@pytest.mark.big
def test_the_declarative_pipeline_gives_these_sessions_and_names_the_revised(
    tmp_path, server, story
):
    """Goal: two updates of `strata pipeline run pipelines/sessions`; late lines are reported, not lost."""
    run = PipelineRun(
        PIPELINES / "sessions",
        tmp_path / "state",
        conf={
            "stratalog.kafka.bootstrap.servers": server.address,
            "stratalog.tier.url": (tmp_path / "bucket").as_uri(),
        },
        master="local[2]",
        memory="768m",
    )
    for lines, create in ((story.first, True), (story.then, False)):
        append(server, tmp_path / "some.log", lines, create=create)
        run.update(lambda *_: None)
    assert table(run.state, "sessions") == ordered(closed(story.in_time))
    assert table(run.state, "sessions_in_history") == ordered(sessions(story.lines))
    watermark = max(line.time for line in story.lines) - DELAY
    known = ordered(closed(story.in_time))
    revised = [
        one
        for one in ordered(sessions(story.lines))
        if datetime.fromisoformat(one["end"]) + GAP <= watermark and one not in known
    ]
    assert table(run.state, "revised") == revised
    assert revised


def table(state: Path, name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for path in table_files(state / "warehouse" / name):
        rows += read_table(path).to_pylist()
    return ordered(
        {
            name: stamp(value.replace(tzinfo=UTC)) if isinstance(value, datetime) else value
            for name, value in row.items()
            if value is not None
        }
        for row in rows
    )
