"""The programs that follow a topic report each mistake in one line, before the start of Spark and after."""

import lake
import pytest
import search_stream
import stream
from confluent_kafka.admin import AdminClient, NewTopic
from where import log_ends, source, spark_failure

from stratalog.errors import UserError
from stratalog.testing import TemporaryBroker

STREAM_FAILED = """\
[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: [PYTHON_DATA_SOURCE_ERROR] Failed to plan:
Traceback (most recent call last):
  File "source.py", line 10, in reader
    raise ValueError(name)
ValueError: topic visits does not exist at 127.0.0.1:9092

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "worker.py", line 20, in main
pyspark.errors.PySparkRuntimeError: topic visits is another topic now
SQLSTATE: 38000 SQLSTATE: XXKST
=== Streaming Query ===
Identifier: [id = 1, runId = 2]
Current Committed Offsets: {Stratalog: {"version":1}}
Current State: ACTIVE
"""


OURS_FAILED = """\
[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: [PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] \
Failed when Python streaming data source perform initialOffset: stratalog.errors.BadOption: topic visits does not exist
 SQLSTATE: 38000 SQLSTATE: XXKST
=== Streaming Query ===
"""


@pytest.fixture(scope="module")
def address():
    with TemporaryBroker() as broker:
        admin = AdminClient({"bootstrap.servers": broker.address})
        admin.create_topics([NewTopic("visits", 2, 1)])["visits"].result(30)
        yield broker.address


def test_the_logs_end_is_an_offset_for_each_partition(address):
    assert log_ends(source(address, None, "visits")) == {"visits": {"0": 0, "1": 0}}
    with pytest.raises(UserError, match="'nowhere' is not host:port"):
        log_ends(source("nowhere", None, "visits"))


def test_mistakes_found_before_spark_starts_are_one_line(address, tmp_path, capsys):
    at = ["--bootstrap-server", address]
    other = ["--bootstrap", address, "--checkpoint", str(tmp_path / "ck"), "--hosts"]
    unreachable = "http://127.0.0.1:1"
    for main, arguments, says in (
        (lake.main, [tmp_path / "new", *at, "--topic", "no"], "lake.py: topic no does not exist"),
        (stream.main, [*at, "--topic", "no"], "anomalies.py: topic no does not exist"),
        (
            search_stream.main,
            [*other, unreachable, "--topic", "no"],
            "search_stream.py: topic no does",
        ),
        (
            search_stream.main,
            [*other, unreachable, "--topic", "visits"],
            f"search_stream.py: {unreachable}",
        ),
        (
            search_stream.main,
            [*other, unreachable, "--topic", "visits", "--option", "workers=2"],
            "did you mean 'worker'?",
        ),
    ):
        assert main([*map(str, arguments)]) == 2
        said = capsys.readouterr().err
        assert says in said
        assert said.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("main", "arguments", "says"),
    [
        (lake.main, ["s3://b/lake", "--tier-url", "file:///b"], "a directory of this machine"),
        (lake.main, ["lake"], "--bootstrap-server and --tier-url"),
        (
            search_stream.main,
            "--bootstrap h:1 --hosts http://h:1 --checkpoint c --option worker".split(),
            "NAME=VALUE is expected",
        ),
    ],
)
def test_a_wrong_command_line_is_explained(main, arguments, says, capsys):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert says in capsys.readouterr().err


def test_the_last_cause_of_sparks_error_is_shown():
    assert spark_failure(RuntimeError(STREAM_FAILED)) == "topic visits is another topic now"
    assert spark_failure(RuntimeError(OURS_FAILED)) == "topic visits does not exist"
    assert spark_failure(RuntimeError("one line: of it")) == "one line: of it"
    assert spark_failure(RuntimeError()) == "RuntimeError"
