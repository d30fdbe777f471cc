"""A server's start without what it does not need: looking for garbage, and colours for tracebacks.

In: nothing. Out: a process that imports the rest in less time. Only a process that is a server from its beginning to
its end calls it.
"""

import gc
import sys


def start_quickly() -> None:
    """Call before the node is imported. `adapters.memory.collect_seldom` ends the time without a collector.

    Importing makes a hundred thousand objects that stay, and the collector looked at them a hundred times.
    """
    gc.disable()
    _import_structlog()


def _import_structlog() -> None:
    """Import structlog as if rich was not there.

    Where it is, structlog imports it and pygments to frame tracebacks with boxes: 70 modules, a tenth of a start, and
    boxes have no place in a server's log. None makes an import of the module fail.
    """
    if "structlog" in sys.modules or "rich" in sys.modules:
        return
    sys.modules["rich"] = None  # type: ignore[assignment]
    try:
        import structlog  # noqa: F401, PLC0415
    finally:
        del sys.modules["rich"]
