"""Say whether this installation checks produced records by interpreted code.

In: the module `walk`, compiled or not. Out: the reason and the remedy. It imports nothing else: `strata --version`
stays quick.
"""

from types import FunctionType
from typing import Final

from stratalog.wire.walk import walk

__all__ = ["INTERPRETED"]

INTERPRETED: Final = (
    "produced records are checked by interpreted code, at half the speed or less; "
    "install a C compiler, then stratalog again"
    if isinstance(walk, FunctionType)
    else ""
)
"""The reason why this installation is slow, and the remedy; empty where `wire/walk.py` is compiled
(`hatch_build.py`).
"""
