"""Goal: questions, markers and clients that come late or go early leave each transaction's records in order.

Method: the real node under a virtual clock, with one step of the broker's slowed or held back.
"""

import asyncio
import gc
from typing import Any
from unittest.mock import patch

from tests.sim.machine import Machine
from tests.sim.raw import Raw
from tests.sim.test_transactions import story
from tests.sim.transactional import Producer, committed, eventually

from stratalog.broker.coordination.verification import Verification
from stratalog.broker.partitions.partition import HostedPartition
from stratalog.errors import ErrorCode, Rejected
from stratalog.wire.markers import Ended, Marker


def test_a_batch_waits_behind_the_one_before_whose_question_is_not_answered() -> None:
    """The coordinator has added the partition by then, so that the second batch alone would need no question."""
    real = Verification._codes

    async def late(self: Verification, *words: Any) -> Any:
        codes = await real(self, *words)
        await asyncio.sleep(0.1)
        return codes

    async def play(machine: Machine, raw: Raw) -> None:
        producer = Producer(raw, raises=True)
        await producer.begin()
        second = Producer(await Raw.connect(machine.world.network), raises=True)
        second.id, second.epoch, second.sequences = producer.id, producer.epoch, {0: 1}
        first = asyncio.create_task(producer.write(0, b"first"))
        owner = (producer.id, producer.epoch)
        one = machine.broker.hosting.get("t", 0).name
        while not machine.broker.transactions.has_added(producer.name, owner, one):
            await asyncio.sleep(0.01)
        assert await second.write(0, b"second") is ErrorCode.none
        assert await first is ErrorCode.none
        await producer.end(commit=True)
        await eventually(lambda: committed(raw), [b"first", b"second"])

    with patch.object(Verification, "_codes", late):
        story(play)


def test_a_marker_that_fails_after_its_client_has_gone_is_no_bug() -> None:
    """Two markers are begun together; the client disconnects before the first one's outcome."""
    commits: list[asyncio.Future[None]] = []

    def commit(*_words: Any, **_options: Any) -> asyncio.Future[None]:
        commits.append(asyncio.get_running_loop().create_future())
        return commits[-1]

    async def play(machine: Machine, _raw: Raw) -> None:
        markers, hosting = machine.broker.markers, machine.broker.hosting
        ended = Ended(7, 0, Marker(is_commit=True, coordinator_epoch=0))
        names = [hosting.get("t", index).name for index in (0, 1)]
        with patch.object(HostedPartition, "commit", commit):
            request = machine.process.run(markers.write(ended, names))
            while len(commits) < len(names):
                await asyncio.sleep(0)
        request.cancel()
        await asyncio.wait([request])
        assert commits[0].cancelled()
        commits[1].set_exception(Rejected(ErrorCode.not_leader_or_follower, "it is led elsewhere"))
        commits.clear()
        await asyncio.sleep(0)
        gc.collect()  # now asyncio reports a failure that no code has looked at

    story(play)
