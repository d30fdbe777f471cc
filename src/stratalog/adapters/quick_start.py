"""Start a server faster: no garbage collection, no coloured tracebacks, no command-line modules of libraries.

In: nothing. Out: faster imports. Only a process that serves for its whole life calls this.
"""

import gc
import sys
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec


def start_quickly() -> None:
    """Call before the import of the node. `adapters.memory.collect_seldom` turns the garbage collector on again.

    Importing makes a hundred thousand objects that stay, and the collector looked at them a hundred times.
    """
    gc.disable()
    _import_without("structlog", "rich")
    _import_without("msgspec", "typing_extensions")
    _import_extension("crc32c", "_crc32c")


def _import_without(module: str, unneeded: str) -> None:
    """Import `module` as if `unneeded` were not installed.

    structlog imports rich and pygments to frame tracebacks with boxes: 70 modules, a tenth of a start. msgspec imports
    typing_extensions for features that Python 3.11's typing has: half a megabyte. None in `sys.modules` is Python's
    sign for a module that cannot be imported.
    """
    if module in sys.modules or unneeded in sys.modules:
        return
    sys.modules[unneeded] = None  # type: ignore[assignment]
    try:
        import_module(module)
    finally:
        del sys.modules[unneeded]


def _import_extension(package: str, name: str) -> None:
    """Import the extension module `name` of a package instead of the whole package.

    crc32c's `__init__` imports argparse for a command and importlib.metadata for its version, with 30 modules behind
    them: 1.4 MB. A server needs one function, which the extension has. Without that extension, a later import loads the
    whole package.
    """
    found = find_spec(package) if package not in sys.modules else None
    if found is None or found.submodule_search_locations is None:
        return
    spec = PathFinder.find_spec(name, found.submodule_search_locations)
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        sys.modules[package] = module
