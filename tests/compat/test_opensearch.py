"""The sink into a real OpenSearch that is full, is killed, loses its connections, or refuses a document.

Method: the real access log goes in; afterwards OpenSearch counts each line once, by status as the log's known answers.
The tests also check that the fault happened (rejections, a kill, lost answers), so that no test passes without its
fault.
"""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pyarrow as pa
import pytest
from sinks.opensearch_server import RunningOpenSearch, ask, counts_by
from tests.compat.real_opensearch import bytes_of, log_rows, opensearch
from tests.compat.toxiproxy import toxiproxy
from tests.integration.test_spark_broker import Driver
from tests.integration.waiting import wait_for
from tests.known_log import STATUS, log_lines

from stratalog.errors import Unavailable, UserError
from stratalog.sinks.opensearch import Counts, prepare, refresh, write_documents
from stratalog.sinks.opensearch_options import OpenSearchOptions, parse_opensearch_options

pytestmark = [pytest.mark.big, pytest.mark.timeout(600), pytest.mark.xdist_group("opensearch")]

TIGHT = {"indexing_pressure.memory.limit": "256kb", "thread_pool.write.size": "1"}
FULL = {"thread_pool.write.size": "1", "thread_pool.write.queue_size": "1"}
ROWS_PER_BATCH = 500
PATIENCE_S = 120


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningOpenSearch]:
    with opensearch(tmp_path_factory.mktemp("opensearch"), TIGHT) as made:
        yield made


@pytest.fixture(scope="module")
def lines() -> list[str]:
    return log_lines()


def options(url: str, index: str, **given: str) -> OpenSearchOptions:
    patient = {"backoff.init": "50ms", "backoff.max": "1s", "max_retries": "300"}
    none = {"index.number_of_replicas": "0"}
    return parse_opensearch_options({"hosts": url, "index": index, **none, **patient, **given})


def written(rows: Iterator[pa.RecordBatch], given: OpenSearchOptions) -> Counts:
    batches = list(rows)
    prepare(given, batches[0].schema)
    counts = write_documents(batches, given)
    refresh(given)
    return counts


def rejected(url: str, *path: str) -> int:
    (stats,) = ask(url, "GET", "/_nodes/stats/thread_pool,indexing_pressure")["nodes"].values()
    for name in path:
        stats = stats[name]
    return int(stats)


def test_a_full_queue_delays_documents_and_loses_none(tmp_path: Path, lines: list[str]) -> None:
    """Four shards, one thread, a queue of one: OpenSearch first refuses two shards' documents of every request."""
    with opensearch(tmp_path / "server", FULL) as server:
        given = options(server.url, "full", **{"index.number_of_shards": "4"})
        for _ in range(2):  # the second run overwrites every document with itself
            assert written(log_rows(lines, ROWS_PER_BATCH), given) == Counts(len(lines), 0)
            assert counts_by(server.url, "full", "status") == STATUS
        assert rejected(server.url, "thread_pool", "write", "rejected") > 0
        shards = ask(server.url, "GET", "/full/_settings?flat_settings=true")["full"]["settings"]
        assert shards["index.number_of_shards"] == "4"


def test_the_sink_waits_for_a_server_without_free_memory(
    server: RunningOpenSearch, lines: list[str]
) -> None:
    """OpenSearch refuses whole requests: together they exceed the server's memory for requests."""
    given = options(server.url, "pressed", worker="8", bulk_max_size="400")
    assert written(log_rows(lines, ROWS_PER_BATCH), given) == Counts(len(lines), 0)
    assert counts_by(server.url, "pressed", "status") == STATUS
    turned_away = ("indexing_pressure", "memory", "total", "coordinating_rejections")
    assert rejected(server.url, *turned_away) > 0
    # A request that never fits fails with OpenSearch's reason.
    large = options(server.url, "pressed", max_retries="2")
    with pytest.raises(Unavailable, match=r"1600 documents were not taken after 2 retries: 429"):
        write_documents(log_rows(lines, 1600), large)


def test_documents_of_another_mapping_become_dead_letters_or_one_clear_error(
    server: RunningOpenSearch, lines: list[str]
) -> None:
    mapping = {"mappings": {"properties": {"bytes": {"type": "short"}}}}
    ask(server.url, "PUT", "/strict", mapping)
    too_long = [at for at, line in enumerate(lines) if (bytes_of(line) or 0) > 32767]
    small = {"bulk_max_size": "400"}
    with pytest.raises(UserError) as error:
        written(log_rows(lines, ROWS_PER_BATCH), options(server.url, "strict", **small))
    said = str(error.value)
    assert f"strict refuses topic access_log, partition 0, offset {too_long[0]} " in said
    assert "out of range" in said
    lettered = options(server.url, "strict", dead_letter_index="letters", **small)
    counts = written(log_rows(lines, ROWS_PER_BATCH), lettered)
    assert counts == Counts(len(lines) - len(too_long), len(too_long))
    assert ask(server.url, "GET", "/strict/_count")["count"] == counts.documents
    query = {"size": 10_000, "_source": ["offset", "error.type"], "query": {"match_all": {}}}
    letters = ask(server.url, "POST", "/letters/_search", query)["hits"]["hits"]
    assert sorted(one["_source"]["offset"] for one in letters) == too_long
    assert {one["_source"]["error"]["type"] for one in letters} == {"mapper_parsing_exception"}


def test_a_server_killed_in_the_middle_has_all_documents_after_its_restart(
    tmp_path: Path, lines: list[str]
) -> None:
    half, killed = Event(), Event()

    def rows() -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(log_rows(lines, ROWS_PER_BATCH)):
            if number == 5:
                half.set()
            if number == 15:
                assert killed.wait(PATIENCE_S), "the server was not killed"
            yield batch

    with opensearch(tmp_path / "server") as first, ThreadPoolExecutor(1) as thread:
        given = options(first.url, "killed", worker="2", bulk_max_size="100")
        prepare(given, next(rows()).schema)
        writing = thread.submit(write_documents, rows(), given)
        assert half.wait(PATIENCE_S), "no document was written"
        first.kill()
        killed.set()
        assert not writing.done(), "the kill must come while requests are open and others follow"
        with opensearch(tmp_path / "server", port=first.port) as second:
            assert second.url == first.url
            assert writing.result(PATIENCE_S) == Counts(len(lines), 0)
            assert counts_by(second.url, "killed", "status") == STATUS


def test_lost_answers_cause_no_repeated_document(
    server: RunningOpenSearch, lines: list[str], tmp_path: Path
) -> None:
    """The proxy cuts every answer after its first bytes: OpenSearch has the documents, the sink no answer."""
    some = lines[:300]
    with toxiproxy(server.port, tmp_path) as proxy, ThreadPoolExecutor(1) as thread:
        given = options(f"http://127.0.0.1:{proxy.port}", "cut")
        prepare(given, next(log_rows(some, 300)).schema)
        with proxy.toxic("limit_data", bytes=20):
            writing: Future[Any] = thread.submit(write_documents, log_rows(some, 300), given)
            wait_for(lambda: version(server, "cut") > 1, "a document that was sent again")
            assert not writing.done(), "the sink must report the missing answer"
        assert writing.result(PATIENCE_S) == Counts(300, 0)
    assert sum(counts_by(server.url, "cut", "status").values()) == 300


def test_searches_find_all_documents_of_a_spark_job(
    server: RunningOpenSearch, tmp_path: Path
) -> None:
    sink = {"hosts": server.url, "index": "job", "bulk_max_size": "400"}
    driver = Driver(tmp_path)
    try:
        for _ in range(2):
            driver.ask("index", sink=sink, rows=3000)
            found = ask(server.url, "GET", "/job/_count")["count"]
            assert found == 3000, "each document must be visible once, without a wait"
        assert counts_by(server.url, "job", "status") == {200: 2700, 404: 300}
        one = ask(server.url, "GET", "/job/_doc/t-1-61")["_source"]
        assert (one["time"], one["agent"]) == ("1970-01-01T00:01:01Z", {"name": "agent-61"})
        mapping = ask(server.url, "GET", "/job/_mapping")["job"]["mappings"]["properties"]
        assert (mapping["time"]["type"], mapping["status"]["type"]) == ("date", "integer")
        for wrong, says in (
            ({"workers": "2"}, "did you mean 'worker'?"),
            ({"index.number_of_shards": "2"}, "but index job has 1"),
            ({"password": "hunter2"}, "OPENSEARCH_PASSWORD"),
            ({"hosts": "http://127.0.0.1:1"}, "http://127.0.0.1:1: "),
        ):
            error = driver.asked("index", sink={**sink, **wrong}, rows=10)["error"]
            assert says in error.replace("\\'", "'"), error
            assert "hunter2" not in error
        error = driver.asked("index", sink=sink, rows=10, mode="overwrite")["error"]
        assert "write with mode" in error
    finally:
        driver.kill()


def version(server: RunningOpenSearch, index: str) -> int:
    """Return the number of writes of the first record's document."""
    try:
        return int(ask(server.url, "GET", f"/{index}/_doc/access_log-0-0")["_version"])
    except UserError:  # 404: the document does not exist yet
        return 0
