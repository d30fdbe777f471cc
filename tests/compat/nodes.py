"""One broker or three nodes for tests of foreign clients: `@EACH_NUMBER`, then `with serving(place, nodes) as broker`.

In: a directory, a number of nodes, settings. Out: brokers that serve at `address`. On three nodes a topic has three
replicas and `min.insync.replicas=2`; three are left to `./test --all`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.broker_process import BrokerProcess, broker_process
from tests.cluster_processes import ClusterProcesses
from tests.compat.suites import CALM, NODES

DEFAULT_FACTOR = -1
"""One replica on one broker, three on three nodes."""
NUMBERS = [nodes if nodes == 1 else pytest.param(nodes, marks=pytest.mark.big) for nodes in NODES]
EACH_NUMBER = pytest.mark.parametrize("nodes", NUMBERS)

Serving = BrokerProcess | ClusterProcesses


@contextmanager
def serving(place: Path, nodes: int, **settings: str) -> Iterator[Serving]:
    """Yield started brokers and end them with the block. Double underscores stand for dots of settings."""
    if nodes == 1:
        with broker_process(place, None, **settings) as broker:
            yield broker
        return
    named = {name.replace("__", "."): value for name, value in settings.items()}
    with ClusterProcesses(place, nodes, CALM | named) as cluster:
        yield cluster


def kill_and_start(serving: Serving) -> None:
    """End the broker, or the first of three nodes, as `kill -9` does; return once it serves again."""
    if isinstance(serving, BrokerProcess):
        serving.kill()
        serving.start()
    else:
        serving.kill(serving.ids[0])
        serving.start([serving.ids[0]])
