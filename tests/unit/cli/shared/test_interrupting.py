"""Ctrl-C ends the input of a command that sends records."""

import asyncio
import io
import os
import signal

from stratalog.cli.shared.interrupting import Interrupt


class InterruptedRead(io.FileIO):
    """A pipe whose reads return just after Ctrl-C, before the event loop has handled the signal."""

    def read1(self, size):
        signal.raise_signal(signal.SIGINT)
        return self.read(size)


def test_bytes_read_after_ctrl_c_are_dropped():
    reads, writes = os.pipe()

    async def read_after_ctrl_c(lines):
        with Interrupt() as interrupt:
            os.write(writes, b"typed after it\n")
            return await interrupt.read(lines), interrupt.cut_input

    with os.fdopen(writes, "wb"), InterruptedRead(reads) as lines:
        assert asyncio.run(read_after_ctrl_c(lines)) == (None, True)
