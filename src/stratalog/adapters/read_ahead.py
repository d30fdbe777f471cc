"""Work done one step ahead, on a thread.

In: calls that wait (range GETs, fetches). Out: their results, in order, while the next ones already run. It never
holds more than `depth` results that nobody has taken, and it ends its thread when the iteration ends, early or not.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def read_ahead(calls: Iterable[Callable[[], T]], depth: int = 1) -> Iterator[T]:
    """Results of `calls` in order; `depth` of them run or wait while one is being used. Raises what a call raised."""
    assert depth > 0, "one step at least"
    pool = ThreadPoolExecutor(max_workers=depth, thread_name_prefix="read-ahead")
    waiting: deque[Future[T]] = deque()
    try:
        for call in calls:
            waiting.append(pool.submit(call))
            if len(waiting) > depth:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
