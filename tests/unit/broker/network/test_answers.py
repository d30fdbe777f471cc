"""Work for a client that is gone ends, whether it has begun or not."""

import asyncio

from stratalog.broker.network.answers import Awaited, Later


def test_dropped_work_ends_unless_others_share_it() -> None:
    async def work() -> None:
        raise AssertionError("begun")

    async def story() -> None:
        loop = asyncio.get_running_loop()
        waits, shared = Awaited(loop=loop), loop.create_future()
        for one in (waits, shared, work()):
            Later(
                one, lambda _: None
            ).drop()  # a coroutine that is not closed warns, which fails a test
        assert waits.cancelled()
        assert not shared.done()

    asyncio.run(story())
