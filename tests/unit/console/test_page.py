"""Paths and queries of the console: names of any bytes have a page, and wrong values a line."""

from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.console.page import PageRequest, path_of, refused
from stratalog.console.server import _parts_of
from stratalog.errors import ErrorCode, Rejected, UserError

NAMES = st.text(min_size=1, max_size=40).filter(
    lambda one: one.encode("utf-8", "replace").decode() == one
)


@given(NAMES)
def test_a_name_survives_its_path(name: str) -> None:
    path = path_of("groups", name)
    assert _parts_of(path.encode("ascii")) == (("groups", name), False)
    assert path.count("/") == 2
    assert unquote(path) == f"/groups/{name}"


@given(NAMES)
def test_a_name_survives_the_path_of_its_json(name: str) -> None:
    assert _parts_of(path_of("groups", name).encode() + b".json") == (("groups", name), True)


def test_a_query_leaves_out_what_is_empty() -> None:
    assert path_of("t", query={"a": None, "b": "", "c": 0, "d": "x y&z"}) == "/t?c=0&d=x+y%26z"


@pytest.mark.parametrize("text", ["-1", "501", "x", "1e3", "9" * 30, "9" * 5_000])
def test_a_number_out_of_range_is_refused_with_the_range(text: str) -> None:
    with pytest.raises(UserError, match=r"limit: .* is not accepted; accepted: 1 to 500"):
        PageRequest((), {"limit": text}).number("limit", 50, 1, 500)


@pytest.mark.parametrize(
    ("code", "status", "remedy"),
    [
        (ErrorCode.offset_out_of_range, 503, "ask again"),
        (ErrorCode.corrupt_message, 502, "strata tier verify"),
        (ErrorCode.kafka_storage_error, 503, "its log says why"),
        (ErrorCode.unknown_topic_or_partition, 404, "it may have been deleted"),
        (ErrorCode.topic_authorization_failed, 403, "strata acl add"),
        (ErrorCode.invalid_request, 400, ""),
    ],
)
def test_a_brokers_refusal_has_its_name_and_a_remedy(
    code: ErrorCode, status: int, remedy: str
) -> None:
    name = code.name.upper()
    page = refused(Rejected(code, "fetch of t-0"))
    assert page.status == status
    assert page.data["error"] == f"fetch of t-0 ({name})"
    assert refused(Rejected(code, f"t-0: {code.name}")).data["error"] == f"t-0: {code.name}"
    assert remedy in page.data["remedy"]
    assert bool(remedy) == bool(page.data["remedy"])
