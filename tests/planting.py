"""Plant bugs in the product, each as patches of it, to see that a test or a checker finds them.

In: the functions of a table of bugs. Out: a context in which the product has one of them. It runs nothing.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

Patch = tuple[Any, str, Any]
"""An owner, the name of its attribute, and the value that the bug has in its place."""
Bug = Callable[[], Iterator[Patch]]


def named(bugs: Iterable[Bug]) -> dict[str, Bug]:
    """Return bugs by the names of their functions, with spaces."""
    return {bug.__name__.replace("_", " "): bug for bug in bugs}


@contextmanager
def planting(bug: Bug) -> Iterator[None]:
    """Give the product a bug during the block."""
    with ExitStack() as stack:
        for owner, attribute, value in bug():
            stack.enter_context(patch.object(owner, attribute, value))
        yield
