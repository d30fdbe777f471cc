"""A server's start without what it does not need: looking for garbage, and colours for tracebacks.

In: nothing. Out: a process that imports the rest in less time. Only a process that is a server from its beginning to
its end calls it.
"""

import gc
import sys
from importlib import import_module


def start_quickly() -> None:
    """Call before the node is imported. `adapters.memory.collect_seldom` ends the time without a collector.

    Importing makes a hundred thousand objects that stay, and the collector looked at them a hundred times.
    """
    gc.disable()
    _import_without("structlog", "rich")
    _import_without("msgspec", "typing_extensions")


def _import_without(module: str, unneeded: str) -> None:
    """Import `module` as if `unneeded` were not installed.

    structlog imports rich and pygments to frame tracebacks with boxes: 70 modules, a tenth of a start. msgspec imports
    typing_extensions for what Python 3.11's typing has: half a megabyte. None in `sys.modules` is Python's sign for a
    module that cannot be imported.
    """
    if module in sys.modules or unneeded in sys.modules:
        return
    sys.modules[unneeded] = None  # type: ignore[assignment]
    try:
        import_module(module)
    finally:
        del sys.modules[unneeded]
