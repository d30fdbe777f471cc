"""How freed memory is kept.

In: nothing. Out: a C library that keeps freed buffers for the next ones. It changes nothing where there is no glibc.

Requests and reads come and go as buffers of about 1 MiB. By default glibc gives each back to the system when it is
freed, and the next one is faulted in page by page: reading 1 GB cost 500,000 page faults and four times the CPU.
"""

import ctypes
from typing import Final

_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
_KEPT_BYTES_MAX: Final = 32 << 20


def keep_freed_memory() -> None:
    """Have up to 32 MiB of freed memory kept, whatever the size of its pieces."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _KEPT_BYTES_MAX)
        mallopt(_TRIM_THRESHOLD, _KEPT_BYTES_MAX)
