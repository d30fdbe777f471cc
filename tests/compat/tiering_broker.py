"""A broker over a bucket of any kind of store, checked with our commands.

In: a bucket's URL. Out: the written lines, after they were tiered, verified and read. The broker ends with the call.
"""

import json
import time
from pathlib import Path

import pytest
from tests.integration.server_process import Server, strata

FINDINGS = {
    "put-if-absent",
    "read-after-write",
    "list-after-write",
    "ranges",
    "delete",
    "throughput",
}
"""What `strata tier check` looks at."""
WAIT_S = 60


def tiers_what_it_is_given(url: str, tmp_path: Path) -> str:
    """Write 5 MB through a broker, see it in the bucket, verify it, read it; kill the broker. The lines written."""
    settings = [
        f"tier.url={url}",
        "remote.log.manager.task.interval.ms=100",
        "log.segment.bytes=1048576",
        "log.retention.check.interval.ms=100",
    ]
    with Server(tmp_path, settings) as broker:
        at = ("-b", broker.address)
        made = strata("topic", "create", "t", "-c", "remote.storage.enable=true", *at)
        assert made.returncode == 0, made.stderr
        lines = "".join(f"{number:06d} {'x' * 1000}\n" for number in range(5000))
        sent = strata("produce", "t", *at, stdin=lines)
        assert sent.returncode == 0, sent.stderr
        deadline = time.monotonic() + WAIT_S
        while True:
            listed = strata("tier", "list", url, "--json")
            rows = json.loads(listed.stdout) if listed.returncode == 0 else []
            if rows and rows[0]["segments"] >= 4:
                break
            if time.monotonic() > deadline:
                pytest.fail(f"not tiered: {listed.stdout} {listed.stderr} {broker.said()}")
            time.sleep(0.1)
        assert rows[0]["topic"] == "t"
        verified = strata("tier", "verify", url)
        assert verified.returncode == 0, verified.stdout + verified.stderr
        read = strata("consume", "t", "--from", "beginning", "--until-end", *at)
        assert read.stdout == lines
        broker.kill()
    return lines
