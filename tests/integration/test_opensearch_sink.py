"""The sink's side of bulk requests, over real connections to a server with injected failures.

Method: the test writes rows with their own id. Afterwards the server has each document once, or the write's error
names the record that failed. The real OpenSearch is in `tests/compat/test_opensearch.py`.
"""

import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from tests.compat.object_servers import write_certificates
from tests.integration.bulk_server import BulkServer, bulk_server, each, hang_up, whole

from stratalog.errors import Unavailable, UserError
from stratalog.sinks.bulk import bulk_body
from stratalog.sinks.documents import Document
from stratalog.sinks.opensearch import Counts, connect, prepare, refresh, write_documents
from stratalog.sinks.opensearch_options import OpenSearchOptions, parse_opensearch_options

INDEX, LETTERS = "access", "letters"


@pytest.fixture
def server() -> Iterator[BulkServer]:
    with bulk_server() as made:
        yield made


def rows(count: int, first: int = 0) -> pa.RecordBatch:
    offsets = range(first, first + count)
    return pa.record_batch(
        {
            "topic": pa.array(["t"] * count, pa.string()),
            "partition": pa.array([0] * count, pa.int32()),
            "offset": pa.array(offsets, pa.int64()),
            "path": pa.array([f"/{offset}" for offset in offsets], pa.string()),
        }
    )


def options(server: BulkServer, **given: str) -> OpenSearchOptions:
    quick = {"backoff.init": "1ms", "backoff.max": "4ms"}
    return parse_opensearch_options({"hosts": server.url, "index": INDEX, **quick, **given})


def has(server: BulkServer, count: int, index: str = INDEX) -> None:
    wanted = {f"t-0-{offset}": f"/{offset}" for offset in range(count)}
    found = {name: one["path"] for name, one in server.documents[index].items()}
    assert found == wanted


def test_rows_become_documents_in_bounded_requests(server: BulkServer) -> None:
    batches = [rows(5), rows(5, 5), rows(2, 10)]
    assert write_documents(batches, options(server, bulk_max_size="4")) == Counts(12, 0)
    assert [len(ids) for ids in server.requests] == [4, 4, 4]
    has(server, 12)


def test_only_documents_that_were_not_accepted_are_sent_again(server: BulkServer) -> None:
    server.rules = [each(_1=429, _3=503), each(_3=429)]
    assert write_documents([rows(5)], options(server)) == Counts(5, 0)
    assert server.requests == [
        ["t-0-0", "t-0-1", "t-0-2", "t-0-3", "t-0-4"],
        ["t-0-1", "t-0-3"],
        ["t-0-3"],
    ]
    has(server, 5)


def test_a_request_that_failed_completely_is_sent_again_completely(server: BulkServer) -> None:
    server.rules = [whole(429), whole(503), hang_up, whole(502)]
    assert write_documents([rows(5)], options(server)) == Counts(5, 0)
    assert len(server.requests) == 5
    assert len({tuple(ids) for ids in server.requests}) == 1
    has(server, 5)


def test_an_answer_cut_off_within_its_headers_is_retried(server: BulkServer) -> None:
    server.rules = [hang_up]
    body = bulk_body([Document("t-0-0", b"{}")])
    with closing(connect([server.url], 30)) as client:
        with pytest.raises(Unavailable, match="how long"):
            client.request("POST", f"/{INDEX}/_bulk", body)
        assert client.request("POST", f"/{INDEX}/_bulk", body).status == 200


def test_retries_end_only_when_no_document_is_accepted(server: BulkServer) -> None:
    few = options(server, max_retries="2")
    server.rules = [whole(429), whole(429), whole(429)]
    with pytest.raises(
        Unavailable, match="5 documents were not taken after 2 retries: 429 not now"
    ):
        write_documents([rows(5)], few)
    one_by_one = [each(**{f"_{n}": 429 for n in range(done, 5)}) for done in range(5)]
    server.rules = [rule for rule in one_by_one for _ in range(2)]
    assert write_documents([rows(5)], few) == Counts(5, 0)
    has(server, 5)


def test_a_refused_document_is_named_or_goes_to_the_dead_letter_index(server: BulkServer) -> None:
    server.rules = [each(_3=400, _4=400)]
    with pytest.raises(UserError) as error:
        write_documents([rows(5)], options(server))
    said = str(error.value)
    assert "access refuses topic t, partition 0, offset 3 (and 1 more): refused: by a rule" in said
    assert "dead_letter_index" in said
    server.rules = [each(_3=400, _4=429), each(_4=400)]
    lettered = options(server, dead_letter_index=LETTERS)
    assert write_documents([rows(6)], lettered) == Counts(4, 2)
    letters = server.documents[LETTERS]
    assert letters.keys() == {"t-0-3", "t-0-4"}
    assert letters["t-0-3"]["error"] == {"type": "refused", "reason": "by a rule"}
    server.rules = [each(_3=400), each(_3=400)]
    with pytest.raises(UserError, match="index letters refuses topic t, partition 0, offset 3"):
        write_documents([rows(6)], lettered)


def test_a_request_that_is_too_large_is_sent_in_pieces(server: BulkServer) -> None:
    server.refuse_more_than = 400
    assert write_documents([rows(16)], options(server)) == Counts(16, 0)
    has(server, 16)
    server.refuse_more_than = 50
    with pytest.raises(UserError, match=r"offset 0 \(and 1 more\): too_large: too large"):
        write_documents([rows(2)], options(server))


def test_at_most_one_request_per_worker_is_in_flight(server: BulkServer) -> None:
    several = options(server, worker="3", bulk_max_size="5")
    server.rules = [whole(429) for _ in range(9)]
    assert write_documents([rows(100)], several) == Counts(100, 0)
    assert 1 <= server.most_at_once <= 3
    has(server, 100)


def test_another_host_is_used_if_one_does_not_answer(server: BulkServer) -> None:
    with socket.socket() as held:  # without a listener, and no other test gets the port
        held.bind(("127.0.0.1", 0))
        unreachable = f"http://127.0.0.1:{held.getsockname()[1]}"
        both = options(server, hosts=f"{unreachable},{server.url}")
        assert write_documents([rows(5)], both) == Counts(5, 0)
        with pytest.raises(Unavailable, match=r"after 1 retries: http://127.0.0.1"):
            write_documents([rows(5)], options(server, hosts=unreachable, max_retries="1"))


def test_an_index_is_created_once_with_the_given_settings(server: BulkServer) -> None:
    asked = {"index.number_of_shards": "3", "index.refresh_interval": "30s"}
    given = options(server, dead_letter_index=LETTERS, **asked)
    prepare(given, rows(0).schema)
    assert server.shards == {INDEX: "3", LETTERS: "1"}
    server.seen.clear()
    prepare(given, rows(0).schema)
    assert f"PUT /{INDEX}/_settings" in server.seen, "the sink must update dynamic settings"
    assert f"PUT /{INDEX}" not in server.seen
    refresh(given)
    assert server.seen[-2:] == [f"POST /{INDEX}/_refresh", f"POST /{LETTERS}/_refresh"]
    with pytest.raises(ValueError, match=r"'index.number_of_shards' is 4, but index access has 3"):
        prepare(options(server, **{"index.number_of_shards": "4"}), rows(0).schema)


def test_user_password_and_authority_come_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ca_file = write_certificates(tmp_path)
    with bulk_server(tmp_path / "certs") as server:
        server.authorization = "Basic ZWxsYTpww6Rzcw=="
        given = options(server, max_retries="0")
        with pytest.raises(UserError, match="certificate"):
            prepare(given, rows(0).schema)
        monkeypatch.setenv("OPENSEARCH_CA_FILE", str(ca_file))
        with pytest.raises(UserError, match="401 Unauthorized"):
            prepare(given, rows(0).schema)
        monkeypatch.setenv("OPENSEARCH_USERNAME", "ella")
        with pytest.raises(UserError, match="OPENSEARCH_PASSWORD is not"):
            prepare(given, rows(0).schema)
        monkeypatch.setenv("OPENSEARCH_PASSWORD", "päss")
        prepare(given, rows(0).schema)
        assert write_documents([rows(3)], given) == Counts(3, 0)
        has(server, 3)
        monkeypatch.setenv("OPENSEARCH_CA_FILE", str(tmp_path / "none.pem"))
        with pytest.raises(UserError, match=r"none.pem cannot be read"):
            write_documents([rows(3)], given)
