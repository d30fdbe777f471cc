"""Generate records at a given rate: `strata produce --generate`.

In: a topic, how many and how fast. Out: records at the broker, keyed by visitor. It holds only the batches in flight in
memory.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from stratalog.cli.records.order import Order

PAST_PER_SECOND = 100
"""Distance between events that are sent all at once; the last event is now."""
WINDOW = 5
FEWEST_AHEAD_MS = 20
"""Events this near in the future are sent at once, because a shorter sleep costs more than its length."""


@dataclass(frozen=True, slots=True)
class Generated:
    """`count` None: until interrupted. `per_second` None: as fast as the broker takes them."""

    count: int | None
    per_second: float | None
    seed: int


def plan_of(
    made: str | None, file: "Path | None", count: int | None, rate: float | None, seed: int
) -> Generated:
    """Return the options, checked together. Raises UserError."""
    from stratalog.errors import UserError

    if made is None:
        raise UserError("--count and --rate are for --generate access-log")
    if made != "access-log":
        raise UserError(f"--generate: {made!r} is not accepted; accepted: access-log")
    if file is not None:
        raise UserError(f"--generate makes the lines: {file} is one source too many")
    if count is None and rate is None:
        raise UserError(
            "--generate needs --count, --rate or both: how many lines, how many a second"
        )
    return Generated(count, rate, seed)


async def generate(bootstrap: str, order: "Order", plan: Generated) -> int:
    """Send an access log; return the number of acknowledged lines. Raises UserError, Rejected, Unavailable.

    Ctrl-C ends the log early, as a smaller `count` would.
    """
    from itertools import islice
    from random import Random  # noqa: TID251 - one seed is one log

    from stratalog.adapters.system import SystemClock
    from stratalog.cli.records.order import BATCH_BYTES
    from stratalog.cli.shared.interrupting import Interrupt
    from stratalog.cli.shared.reading import chosen_partitions
    from stratalog.cli.shared.terminal import connected
    from stratalog.client.batching import Batches
    from stratalog.ops.access_log import access_log
    from stratalog.wire.ids import TopicPartition

    clock = SystemClock()
    per_second = plan.per_second or PAST_PER_SECOND
    begin_ms = clock.now_ms()
    if plan.per_second is None:
        begin_ms -= round((plan.count or 0) / per_second * 1000)
    chosen = None if order.partition is None else [order.partition]
    async with connected(bootstrap) as client:
        partitions = [
            TopicPartition(order.topic, index)
            for index in await chosen_partitions(client, order.topic, chosen)
        ]
        pipeline = client.pipeline(acks=order.acks, window=WINDOW)
        batches = Batches(pipeline.send_built, order.compression, BATCH_BYTES)
        lines = access_log(Random(plan.seed), begin_ms, per_second)  # noqa: S311 - no secret
        with Interrupt() as interrupt:
            async with pipeline:
                for timestamp, visitor, line in islice(lines, plan.count):
                    ahead_ms = timestamp - clock.now_ms() if plan.per_second else 0
                    if ahead_ms > FEWEST_AHEAD_MS:
                        await batches.flush()
                        await interrupt.sleep(ahead_ms / 1000)
                    if interrupt.happened:
                        break
                    key = visitor.encode()
                    partition = batches.choose(key, partitions)
                    await batches.add(partition, key, line.encode(), timestamp, order.headers)
                await batches.flush()
    return batches.count
