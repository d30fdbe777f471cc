"""The places of a run: it adds to a user's bucket, and only below a prefix without objects."""

import json

import pytest
from deltalake import DeltaTable, write_deltalake
from job import parse_arguments
from lake import State
from place import a_place, below_prefix
from pyarrow import table
from sinks import SINKS
from sinks.delta import status_counts
from sinks.sink import SinkPlace

from stratalog.errors import UserError


@pytest.mark.parametrize(
    ("url", "wanted"),
    [
        ("s3://mine", "s3://mine/stratalog-run"),
        ("s3://mine/a/b/?endpoint=http://h:1", "s3://mine/a/b/stratalog-run?endpoint=http://h:1"),
        ("file:///a%20b", "file:///a%20b/stratalog-run"),
    ],
)
def test_the_prefix_is_appended_to_the_path_of_the_url(url, wanted):
    assert below_prefix(url) == wanted


def test_a_bucket_with_an_earlier_run_in_it_is_refused(tmp_path):
    (tmp_path / "theirs").write_text("not ours")
    with a_place(None, tmp_path.as_uri()) as place:
        assert place.tier_url == f"{tmp_path.as_uri()}/stratalog-run"
        assert place.bucket_sizes() == []
    (tmp_path / "stratalog-run").mkdir()
    (tmp_path / "stratalog-run" / "object").write_text("a run's")
    with pytest.raises(UserError, match="earlier run's objects"), a_place(None, tmp_path.as_uri()):
        pass
    assert (tmp_path / "theirs").read_text() == "not ours"


def test_a_memory_bucket_is_refused_because_two_processes_cannot_share_it():
    with pytest.raises(UserError, match="memory"):
        below_prefix("memory://x")


def test_a_sink_url_needs_the_sink():
    with pytest.raises(UserError, match="of which --sink"):
        parse_arguments(["--sink-url", "/x"])


@pytest.mark.parametrize("name", sorted(SINKS))
def test_a_sink_is_an_option(name):
    assert parse_arguments(["--sink", name]).sink == name


def test_the_users_directory_for_a_delta_table_must_be_empty(tmp_path):
    (tmp_path / "something").touch()
    for url, reason in ((str(tmp_path), "something already"), ("s3://x/y", "takes a directory")):
        place = SinkPlace(tmp_path / "sink", url)
        with pytest.raises(UserError, match=reason), SINKS["delta"](place):
            pass


def test_the_rows_of_a_delta_table_are_counted(tmp_path):
    assert status_counts(tmp_path / "none") == {}
    for statuses in ([200, 200, 404], [200]):
        write_deltalake(tmp_path / "table", table({"status": statuses}), mode="append")
    assert DeltaTable(str(tmp_path / "table")).version() == 1
    assert status_counts(tmp_path / "table") == {200: 3, 404: 1}


def test_a_stream_s_state_is_kept_and_foreign_tables_are_refused(tmp_path):
    State(tmp_path).say(switch={"t": {"0": 7}}, backfilled=False)
    State(tmp_path).say(backfilled=True)
    assert State(tmp_path).said == {"switch": {"t": {"0": 7}}, "backfilled": True}
    assert json.loads((tmp_path / "_state" / "state.json").read_text()) == State(tmp_path).said
    (tmp_path / "other" / "lines").mkdir(parents=True)
    with pytest.raises(UserError, match="no _state"):
        State(tmp_path / "other")
