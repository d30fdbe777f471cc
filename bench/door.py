"""Measure the check of every produced record, which a broker makes before it stores a batch (docs/decisions/0009).

In: nothing. Out: one line for each size and codec, in CPU seconds for each GB of records before compression. The
columns are the check as it is imported (compiled or not), the same text interpreted, and the CRC alone.

    python -m bench.door
"""

import importlib.util
import time
from argparse import ArgumentParser
from collections.abc import Callable
from random import Random

from crc32c import crc32c

from stratalog.wire import validation, walk
from stratalog.wire.batch import parse_header
from stratalog.wire.compression import CODEC_NAMES
from stratalog.wire.records import BatchBuilder
from stratalog.wire.validation import NO_DEMANDS, check_batch

BATCH_BYTES = 1_000_000
TIMESTAMP_MS = 1_700_000_000_000
SIZES = (1024, 100)


def made(size: int, codec: str) -> tuple[bytes, int]:
    """Return a batch of records of `size` bytes, half of them random, and its bytes before compression."""
    chance = Random(size)
    builder = BatchBuilder(codec)
    while builder.size + size < BATCH_BYTES:
        value = chance.randbytes(size // 2) + b"x" * (size - size // 2)
        builder.add(None, value, TIMESTAMP_MS + builder.count)
    return bytes(builder.build()), builder.size


def cpu_s(work: Callable[[], object], seconds: float) -> float:
    """Return the CPU seconds of one call: the least of five tries of `seconds` seconds each."""
    tries = []
    for _ in range(5):
        calls, began = 0, time.process_time()
        while time.process_time() - began < seconds:
            work()
            calls += 1
        tries.append((time.process_time() - began) / calls)
    return min(tries)


def main() -> None:
    parser = ArgumentParser(prog="python -m bench.door")
    parser.add_argument("--seconds", type=float, default=0.3, help="seconds of CPU for each try")
    seconds = parser.parse_args().seconds
    spec = importlib.util.spec_from_file_location("text", walk.__file__.partition(".")[0] + ".py")
    assert spec is not None
    assert spec.loader is not None
    text = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(text)
    imported = walk.walk
    print(
        f"{walk.__file__.rpartition('/')[2]}\nrecord  codec   check  interpreted  crc   (CPU s/GB)"
    )
    for size in SIZES:
        for codec in CODEC_NAMES:
            batch, restored = made(size, codec)
            view, header = memoryview(batch), parse_header(batch)
            columns = []
            for function in (imported, text.walk):
                validation.walk = function  # type: ignore[attr-defined]
                columns.append(
                    cpu_s(lambda v=view, h=header: check_batch(v, h, NO_DEMANDS), seconds)  # type: ignore[misc]
                )
            validation.walk = imported  # type: ignore[attr-defined]
            columns.append(cpu_s(lambda v=view: crc32c(v), seconds))  # type: ignore[misc]
            per_gb = [f"{column / restored * 1e9:9.3f}" for column in columns]
            print(f"{size:6}  {codec:6}{''.join(per_gb)}")


if __name__ == "__main__":
    main()
