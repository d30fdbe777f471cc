"""A real OpenSearch for a test, and an access log as rows for it.

In: a directory, settings; lines. Out: a running server, as `./run --sink opensearch` starts it; record batches.
Skips if Java or the jars are not available.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
from fetched import jars
from sinks.opensearch_server import ARTIFACT, VERSION, RunningOpenSearch, running_opensearch
from tests.compat.tools import cannot_be_had, java

from stratalog.errors import UserError

_PARTS = re.compile(r'"(?:[^"\\]|\\.)*" (\d{3}) (\d+|-)')


def status_of(line: str) -> int:
    found = _PARTS.search(line)
    assert found is not None, line
    return int(found[1])


def bytes_of(line: str) -> int | None:
    found = _PARTS.search(line)
    assert found is not None, line
    return None if found[2] == "-" else int(found[2])


def log_rows(lines: list[str], size: int) -> Iterator[pa.RecordBatch]:
    """The lines as rows of topic `access_log`, in batches of `size`."""
    for base in range(0, len(lines), size):
        part = lines[base : base + size]
        yield pa.record_batch(
            {
                "topic": pa.array(["access_log"] * len(part)),
                "partition": pa.array([0] * len(part), pa.int32()),
                "offset": pa.array(range(base, base + len(part)), pa.int64()),
                "status": pa.array(map(status_of, part), pa.int32()),
                "bytes": pa.array(map(bytes_of, part), pa.int64()),
                "message": pa.array(part),
            }
        )


@contextmanager
def opensearch(
    root: Path, settings: Mapping[str, str] | None = None, port: int | None = None
) -> Iterator[RunningOpenSearch]:
    """Run an OpenSearch on the data under `root`."""
    java()
    try:
        jars(f"opensearch-{VERSION}", (ARTIFACT,))
    except UserError as error:
        cannot_be_had("OpenSearch", str(error))
    with running_opensearch(root, settings, port=port) as server:
        yield server
