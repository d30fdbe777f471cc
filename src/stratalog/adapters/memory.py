"""How freed memory is kept, and how seldom it is looked for.

In: nothing. Out: a C library that keeps freed buffers for the next ones, a garbage collector that does not look at
what stays. It changes nothing of the former where there is no glibc.

Requests and reads come and go as buffers of about 1 MiB. By default glibc gives each back to the system when it is
freed, and the next one is faulted in page by page: reading 1 GB cost 500,000 page faults and four times the CPU.

Requests make no reference cycles, but with a hundred of them waiting Python's collector takes what they hold for a sign
of some, and looks through everything over and over: a quarter of the time, and tens of milliseconds at once.
"""

import ctypes
import gc
from typing import Final

_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
_KEPT_BYTES_MAX: Final = 32 << 20
_COLLECT_AFTER: Final = (10_000, 20, 20)
"""More containers made than freed; collections of the youngest; of the middle. By default (700, 10, 10)."""


def keep_freed_memory() -> None:
    """Have up to 32 MiB of freed memory kept, whatever the size of its pieces."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _KEPT_BYTES_MAX)
        mallopt(_TRIM_THRESHOLD, _KEPT_BYTES_MAX)


def collect_only_what_follows() -> None:
    """Call once things are there that live as long as the process: the collector looks at what comes later alone."""
    gc.freeze()


def collect_seldom() -> None:
    """As `collect_only_what_follows`, and it does so later."""
    collect_only_what_follows()
    gc.enable()  # imports do without: `adapters/quick_start.py`
    gc.set_threshold(*_COLLECT_AFTER)
