"""Bulk requests and their answers: each document is exactly one of taken, sent again or refused."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.errors import UserError
from stratalog.sinks.bulk import (
    BULK_BYTES_MAX,
    answered,
    batched,
    bulk_body,
    error_text,
    retry_delay_s,
)
from stratalog.sinks.documents import Document


def some(count: int) -> list[Document]:
    return [Document(f"t-0-{offset}", b'{"offset":%d}' % offset) for offset in range(count)]


def answer(*statuses: int, kind: str = "some_exception") -> bytes:
    items: list[Any] = [
        {"index": {"status": status}}
        if status < 300
        else {"index": {"status": status, "error": {"type": kind, "reason": f"was {status}"}}}
        for status in statuses
    ]
    failed = any(status >= 300 for status in statuses)
    return json.dumps({"errors": failed, "items": items}).encode()


def test_a_request_names_each_document_and_overwrites() -> None:
    lines = bulk_body([Document('t"-0-1', b'{"a":1}'), Document("t-0-2", b'{"a":2}')]).split(b"\n")
    assert [json.loads(line) for line in lines[:-1]] == [
        {"index": {"_id": 't"-0-1'}},
        {"a": 1},
        {"index": {"_id": "t-0-2"}},
        {"a": 2},
    ]
    assert lines[-1] == b"", "OpenSearch needs a newline after the last line"


def test_requests_are_bounded_by_count_and_by_bytes() -> None:
    assert [len(batch) for batch in batched(iter(some(10)), 4)] == [4, 4, 2]
    large = [Document(f"t-0-{n}", b"x" * (BULK_BYTES_MAX // 3)) for n in range(8)]
    found = list(batched(large, 1000))
    assert [len(batch) for batch in found] == [4, 4]
    assert [one for batch in found for one in batch] == large
    assert not list(batched([], 5))


@given(st.lists(st.sampled_from([200, 201, 400, 429, 500, 503]), max_size=20))
def test_each_document_is_accepted_retried_or_refused(statuses: list[int]) -> None:
    documents = some(len(statuses))
    result = answered("i", documents, 200, answer(*statuses))
    at = {document.id: status for document, status in zip(documents, statuses, strict=True)}
    assert [one.id for one in result.again] == [
        i for i, status in at.items() if status in {429, 500, 503}
    ]
    assert [one.document.id for one in result.refused] == [
        i for i, status in at.items() if status == 400
    ]
    assert bool(result.why) == bool(result.again)
    assert all(one.reason == "was 400" for one in result.refused)


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_a_rejected_request_is_sent_again_completely(status: int) -> None:
    documents = some(3)
    body = json.dumps({"error": {"type": "x", "reason": "too much"}, "status": status}).encode()
    result = answered("i", documents, status, body)
    assert (result.again, result.refused) == (documents, ())
    assert result.why == f"{status} too much"


def test_an_answer_of_a_proxy_accepts_no_document() -> None:
    documents = some(2)
    for body in (b"", b"<html>log in</html>", b'{"errors":', b"{}"):
        result = answered("i", documents, 200, body)
        assert (result.again, result.refused) == (documents, ())
        assert result.why.startswith("200")


@pytest.mark.parametrize("status", [401, 403, 404])
def test_an_error_of_the_whole_request_fails(status: int) -> None:
    with pytest.raises(UserError, match=f"index i: {status} no"):
        answered("i", some(2), status, b'{"error":"no"}')
    with pytest.raises(UserError, match=f"topic t, partition 0, offset 1: {status} was {status}"):
        answered("i", some(2), 200, answer(200, status))


def test_an_answer_of_any_shape_gives_an_error_of_one_line() -> None:
    nested = {"type": "a", "reason": "b", "caused_by": {"type": "c", "reason": "d"}, "x": 1}
    assert error_text(json.dumps({"error": nested, "status": 400}).encode()) == "b (d)"
    assert error_text(b'{"error":"plain"}') == "plain"
    assert error_text(b"<html>\n a proxy's\xff") == "<html> a proxy's\ufffd"
    assert error_text(b"") == ""
    assert error_text(b'{"error":{"type":"only"}}') == "only"


def test_the_backoff_doubles_up_to_its_bound_with_jitter() -> None:
    assert [retry_delay_s(n, 1, 60, 1.0) for n in (0, 1, 2, 5, 6, 1000)] == [1, 2, 4, 32, 60, 60]
    assert retry_delay_s(3, 1, 60, 0.5) == 4
