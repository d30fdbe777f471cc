"""Answers from files keep their order behind bytes that the transport still holds."""

import asyncio
import socket
from pathlib import Path

from tests.kernel import needs_cachestat

from stratalog.adapters.local_disk import LocalDisk
from stratalog.broker.network.sending import send

EARLIER = b"x" * 4_000_000
HEAD = b"head" * 25
RECORDS = bytes(range(256)) * 1000
TAIL = b"tail"

pytestmark = needs_cachestat


def test_bytes_of_a_file_do_not_pass_bytes_that_wait(tmp_path: Path) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        transport, _protocol = await loop.create_connection(asyncio.Protocol, sock=ours)
        transport.write(EARLIER)
        assert transport.get_write_buffer_size(), "the socket took everything"
        theirs.setblocking(False)
        arrived = bytearray(
            theirs.recv(100_000)
        )  # now the socket has room, and the transport bytes
        pieces = [HEAD, stored, TAIL]
        send(transport, pieces, sum(map(len, pieces)), "client", is_encrypted=False)
        transport.close()
        while data := await loop.sock_recv(theirs, 1 << 20):
            arrived += data
        theirs.close()
        assert arrived == EARLIER + HEAD + RECORDS + TAIL

    disk = LocalDisk(str(tmp_path))
    disk.append("log", 0, [RECORDS])
    stored = disk.cached("log", 0, len(RECORDS))
    assert stored is not None
    asyncio.run(asyncio.wait_for(main(), 30))
    disk.close()
