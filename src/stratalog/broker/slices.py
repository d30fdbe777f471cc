"""Cut work into slices, each for a separate turn of the event loop.

In: items and how many of them a turn takes. Out: lists of that many. It waits for nothing: the caller ends the turn.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

T = TypeVar("T")


def slices(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield the items in order, `size` of them at a time, the rest last."""
    rest = iter(items)
    while part := list(islice(rest, size)):
        yield part
