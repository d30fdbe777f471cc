"""A server's start without what it does not need: garbage collection, colours for tracebacks, others' command lines.

In: nothing. Out: a process that imports the rest in less time. Only a process that is a server from its beginning to
its end calls it.
"""

import gc
import sys
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec


def start_quickly() -> None:
    """Call before the node is imported. `adapters.memory.collect_seldom` ends the time without a collector.

    Importing makes a hundred thousand objects that stay, and the collector looked at them a hundred times.
    """
    gc.disable()
    _import_without("structlog", "rich")
    _import_without("msgspec", "typing_extensions")
    _import_extension("crc32c", "_crc32c")


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


def _import_extension(package: str, name: str) -> None:
    """Import the extension module `name` of a package in the place of the package.

    crc32c's `__init__` imports argparse for a command and importlib.metadata for its version, with 30 modules behind
    them: 1.4 MB. A server takes one function, which the extension has. A release without it is imported whole, later.
    """
    found = find_spec(package) if package not in sys.modules else None
    if found is None or found.submodule_search_locations is None:
        return
    spec = PathFinder.find_spec(name, found.submodule_search_locations)
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        sys.modules[package] = module
