"""A failure of a client's command prints one line with the reason, and nothing else."""

import asyncio
import gc
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.broker_process import broker_process
from tests.integration.server_process import STRATA, strata

from stratalog.adapters.network import TcpNetwork
from stratalog.cli.main import explanation
from stratalog.client.aio import Client
from stratalog.client.calls import NewTopic
from stratalog.errors import ErrorCode, Rejected
from stratalog.testing import TemporaryBroker
from stratalog.wire.records import BatchBuilder

BATCHES = 20
FILE_BYTES_MAX = 300_000
LIMITED = (
    "import resource, os, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000));"
    " os.execv(sys.argv[1], sys.argv[1:])"
)


def one_batch() -> bytearray:
    builder = BatchBuilder()
    builder.add(None, b"value", 1_790_000_000_000)
    return builder.build()


async def abandoned(address: str, reports: list[dict[str, Any]]) -> None:
    """Leave a pipeline with an error while all its batches are in flight."""
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, context: reports.append(context))
    client = await Client.connect(TcpNetwork(), address)
    await client.create_topics([NewTopic("t", partitions=1)])
    await client.leader_of("t", 0)
    try:
        async with client.pipeline(window=BATCHES) as pipeline:
            futures = [await pipeline.send("t", 0, one_batch()) for _ in range(BATCHES)]
            assert not any(future.done() for future in futures)
            raise KeyError("as Ctrl-C")
    except KeyError:
        del futures
    await client.close()
    await asyncio.sleep(0)


def test_a_pipeline_that_is_left_prints_no_further_error() -> None:
    reports: list[dict[str, Any]] = []
    with TemporaryBroker() as broker:
        asyncio.run(abandoned(broker.address, reports))
    gc.collect()
    assert reports == []


def test_produce_prints_a_full_disk_as_the_reason(tmp_path: Path) -> None:
    """The test limits the size of files, as `test_faults.py` does: a full disk needs privileges."""
    with broker_process(tmp_path) as broker:
        assert strata("topic", "create", "t", "-b", broker.address).returncode == 0
        assert broker.process is not None
        limit = (FILE_BYTES_MAX, FILE_BYTES_MAX)
        resource.prlimit(broker.process.pid, resource.RLIMIT_FSIZE, limit)
        lines = b"".join(b"%d %s\n" % (number, b"x" * 1000) for number in range(20_000))
        done = strata("produce", "t", "-b", broker.address, stdin=lines)
    assert done.returncode == 2
    note, line = done.stderr.splitlines()
    assert "acknowledged before that" in note
    assert line.startswith("strata: ")
    assert line.endswith("File too large (KAFKA_STORAGE_ERROR)")


def test_the_log_of_a_demo_that_fails_is_kept(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, *STRATA, "demo"],
        env=os.environ | {"TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 2
    kept, line = done.stderr.splitlines()
    assert line.startswith("strata: ")
    assert "File too large" in kept
    (left,) = tmp_path.iterdir()
    assert str(left) in kept
    assert "File too large" in left.read_text()


def test_a_code_without_a_message_is_explained() -> None:
    assert explanation(Rejected(ErrorCode.kafka_storage_error)) == (
        "the broker cannot use the disk of the partition; the broker's log says why (KAFKA_STORAGE_ERROR)",
        2,
    )
    assert explanation(Rejected(ErrorCode.kafka_storage_error, "said")) == (
        "said (KAFKA_STORAGE_ERROR)",
        2,
    )
