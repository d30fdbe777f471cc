"""Clients without a right take no more than their share, and no honest request fails beside them.

`python -m tests.fuzz.exhaustion --minutes 10` is the long run, which also judges latencies. This one has small limits,
so that each bound is reached.
"""

import time
from pathlib import Path

import pytest
from tests.fuzz.exhausting import ATTACKS, Exhausting, Target
from tests.fuzz.exhaustion import MIB, Honest, ended_of, exceeded, running
from tests.integration.waiting import wait_for

SECONDS = 20
LONG_S = 120
REASONS = {"before_login", "half_request", "displaced"}
"""For which the broker ends connections of others."""
DESCRIPTORS = 400
REQUEST_BYTES = 24 * MIB


@pytest.mark.timeout(300)
def test_clients_without_a_right_take_no_more_than_their_share(tmp_path: Path) -> None:
    with running(tmp_path, descriptors=DESCRIPTORS, request_bytes=REQUEST_BYTES) as target:
        attacks = Exhausting(Target(target.sasl, target.monitor, share=60, pause_s=0.01))
        with Honest(target, 1) as honest, attacks:
            time.sleep(SECONDS)
            wait_for(lambda: set(map(reason, ended_of(honest))) == REASONS, "each bound", LONG_S)
        assert honest.failures == []
        assert exceeded(honest, REQUEST_BYTES, DESCRIPTORS) == []
        assert attacks.steps.keys() == ATTACKS.keys()
        assert target.broker.stop() == 0
        log = target.broker.log_text
        for alarm in ("Traceback", "request failed", "log directory failed", "Too many open files"):
            assert alarm not in log


def reason(metric: str) -> str:
    return metric.partition('"')[2].partition('"')[0]
