"""A broker returns memory to the system after its clients' data is freed."""

import os
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.integration.server_process import Server
from tests.wire_client import Wire

from stratalog.client.apis import JOIN_GROUP
from stratalog.wire.messages.find_coordinator import FindCoordinatorRequest
from stratalog.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from stratalog.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity

MIB = 1 << 20
GROUPS = 200
WAIT_S = 60
LEFT_BEHIND = """
import sys
from stratalog.adapters.memory import FreedMemory, keep_freed_memory

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 >> 20

keep_freed_memory()
freed = FreedMemory()
first = freed.give_back()
before = resident()
pieces = [bytearray(1 << 20) for _ in range(300)]
above = bytearray(900_000)  # lives on at the heap's end: no hole below has room for it
held = freed.give_back()
del pieces
kept = resident()
print(before, kept, first, held, freed.give_back(), freed.give_back() >> 20, resident(), freed.give_back())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's heap")
def test_freed_memory_below_live_objects_is_returned_at_the_second_check() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LEFT_BEHIND], capture_output=True, text=True, timeout=60, check=True
    )
    before, kept, first, held, look, given, after, again = map(int, done.stdout.split())
    assert kept > before + 250, "the process has no freed memory to return"
    assert (first, held, look) == (0, 0, 0)
    assert given > 200
    assert after < before + 50
    assert again == 0


def resident_mib(pid: int) -> int:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.partition("VmRSS:")[2].split()[0]) >> 10


def test_groups_that_were_left_leave_no_memory_behind(tmp_path: Path) -> None:
    protocol = JoinGroupRequestProtocol(name="range", metadata=os.urandom(MIB))
    deadline = time.monotonic() + WAIT_S
    with (
        Server(tmp_path, ["group.initial.rebalance.delay.ms=0"]) as server,
        ExitStack() as connections,
    ):
        wires = [connections.enter_context(Wire(server.address)) for _ in range(GROUPS)]
        find = FindCoordinatorRequest(key="g0", key_type=0)
        while wires[0].ask(3, find).error_code != 0:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        before = resident_mib(server.pid)
        for number, wire in enumerate(wires):
            join = JoinGroupRequest(
                group_id=f"g{number}",
                session_timeout_ms=300_000,
                rebalance_timeout_ms=300_000,
                member_id="",
                protocol_type="consumer",
                protocols=(protocol,),
            )
            wire.send(3, join)
        answers = [wire.receive(JOIN_GROUP, 3) for wire in wires]
        assert resident_mib(server.pid) > before + GROUPS
        for number, (wire, answer) in enumerate(zip(wires, answers, strict=True)):
            member = MemberIdentity(member_id=answer.member_id)
            leave = LeaveGroupRequest(group_id=f"g{number}", members=(member,))
            assert wire.ask(3, leave).error_code == 0
        while (after := resident_mib(server.pid)) > before + 50:
            assert time.monotonic() < deadline, f"{before} MiB before, {after} MiB after"
            time.sleep(0.5)
