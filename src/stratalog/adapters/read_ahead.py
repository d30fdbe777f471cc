"""Run calls ahead of their consumer, on threads.

In: blocking calls (range GETs), each with the bytes that it returns. Out: their results, in order, while the next calls
already run. It never holds more than `bytes_max` of waiting results (except one larger result), and ends its threads
with the iteration, however that ends.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def read_ahead(
    calls: Iterable[tuple[int, Callable[[], T]]], bytes_max: int, at_once: int = 4
) -> Iterator[T]:
    """Yield the results of `calls` in order; `at_once` of them run at a time. Raises the error of a call.

    A call starts only once its bytes fit; the result in use does not count.
    """
    pool = ThreadPoolExecutor(max_workers=at_once, thread_name_prefix="read-ahead")
    waiting: deque[tuple[int, Future[T]]] = deque()
    held = 0
    try:
        for size, call in calls:
            while waiting and held + size > bytes_max:
                taken, future = waiting.popleft()
                held -= taken
                yield future.result()
            waiting.append((size, pool.submit(call)))
            held += size
        while waiting:
            yield waiting.popleft()[1].result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
