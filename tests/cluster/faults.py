"""The faults of a run, carried out on the nodes of a simulated cluster.

In: the faults of `schedule.py`. Out: nodes that die, sleep, lose their power or their disk, and run again at the end;
counts. It skips a fault that no cluster of three must survive.

Kafka promises what `min.insync.replicas` replicas hold (KIP-966). So once a machine has lost power or a disk, the
others die only after every partition is in sync again. A machine loses power only while the others have kept their
memory.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from errno import EIO, ENOSPC

from tests.cluster.checks import newest, partitions_of, quorums
from tests.cluster.late_archiver import LateArchiver
from tests.cluster.lies import Liars
from tests.cluster.schedule import LATE_ARCHIVER, LIE, Fault
from tests.cluster.voters import Voters
from tests.sim.cluster import Cluster, host_of
from tests.sim.machine import Machine
from tests.sim.network import STORY

from stratalog.errors import UserError
from stratalog.metadata.image import Partition

FIRST, SECOND = "/data", "/more"
NETWORK = ("cut", "cut in one direction", "bad network", "late proposal")
BESIDE = ("slow disk", "stalled disk", "slow bucket", "clock step", LIE)
"""Faults that change no process: another fault may strike the same node meanwhile."""
OF_ALL = ("lost election", "last replica", LATE_ARCHIVER)
"""Stories in which every node has a part."""
ELECTED_WITHIN_S = 6.0
LEFT_WITHIN_S = 10.0
QUIET_WITHIN_S = 60.0
STEP_MS = 20 * 60_000


class Faults:
    """Carries out one fault after another, some of them at the same time."""

    def __init__(
        self,
        cluster: Cluster,
        counts: Counter[str],
        note: Callable[[str], None],
        *,
        voters_change: bool,
        late_archiver: LateArchiver | None,
    ) -> None:
        """`late_archiver`: in a run with a bucket."""
        self._archiver = late_archiver
        self.liars: Liars | None = None
        """In a run in which nodes lie."""
        self._cluster = cluster
        self._counts = counts
        self._note = note
        self._voters_change = voters_change
        self.voters = Voters(cluster, counts, note)
        self._busy: set[int] = set()
        self._forgot: set[int] = set()
        """Nodes whose process died since every partition was in sync."""
        self._lost: set[int] = set()
        """Those of them that lost written bytes too."""
        self._is_voting = False
        """Whether the voters change: a lost voter beside a smaller set could end the quorum for ever."""

    async def carry_out(self, faults: list[Fault]) -> None:
        """Carry out all; return once the last has ended."""
        loop = asyncio.get_running_loop()
        begin = loop.time()
        striking = []
        for fault in faults:
            await asyncio.sleep(max(0.0, begin + fault.at_s - loop.time()))
            striking.append(asyncio.create_task(self._one(fault)))
        await asyncio.gather(*striking)

    async def _one(self, fault: Fault) -> None:
        machine = self._cluster.machines[fault.node]
        if fault.kind in NETWORK + BESIDE:
            await {
                "cut": self._cut,
                "cut in one direction": self._cut,
                "bad network": self._disturb,
                "late proposal": self._late_proposal,
                "slow disk": self._slow,
                "stalled disk": self._stall,
                "slow bucket": self._slow_bucket,
                "clock step": self._step,
                LIE: self._lie,
            }[fault.kind](machine, fault)
            return
        if fault.kind == LATE_ARCHIVER:
            await self._holds(lambda: not self._busy and self._is_in_sync(), QUIET_WITHIN_S)
        busy = set(self._cluster.machines) if fault.kind in OF_ALL else {fault.node}
        if busy & self._busy or not self._is_bearable(fault):
            self._counts["skipped"] += 1
            return
        carry_out = {
            "kill": self._kill,
            "loss of power": self._lose_power,
            "pause": self._pause,
            "full disk": self._fill,
            "failed directory": self._fail,
            "stop": self._stop,
            "lost election": self._lost_election,
            "voter leaves": self._voter_leaves,
            "lost disk": self._lose_disk,
            "last replica": self._last_replica,
            LATE_ARCHIVER: self._late_archiver,
        }[fault.kind]
        votes = carry_out in (self._voter_leaves, self._lose_disk)
        self._busy |= busy
        self._is_voting |= votes
        await carry_out(machine, fault)
        self._busy -= busy
        self._is_voting &= not votes

    def _begin(self, fault: Fault, what: str = "") -> None:
        self._counts[fault.kind] += 1
        self._note(f"{fault.kind} of node {fault.node}, {fault.lasts_s:.2f} s {what}")

    # The bearable

    def _is_bearable(self, fault: Fault) -> bool:
        if not self._busy and self._is_in_sync():
            self._forgot.clear()
            self._lost.clear()
        if fault.kind == "last replica":
            return not self._forgot and self._is_in_sync()
        dies = fault.kind not in ("pause", "stop", "voter leaves", LATE_ARCHIVER)
        loses = fault.kind in ("loss of power", "lost disk")
        votes = fault.kind in ("lost disk", "voter leaves")
        votes &= self._cluster.machines[fault.node].is_controller
        if votes and (self._is_voting or not self._voters_change):
            return False
        if fault.kind in ("lost disk", "voter leaves") and not self._is_in_sync():
            return False
        if fault.kind == "voter leaves" and not votes:
            return False
        others = {fault.node} if fault.kind != "lost election" else set()
        if dies and self._lost - others:
            return False
        if loses and self._forgot - {fault.node}:
            return False
        if dies:
            self._forgot.add(fault.node)
        if loses:
            self._lost.add(fault.node)
        return True

    def _is_in_sync(self) -> bool:
        image = newest(self._cluster)
        return all(one.is_up for one in self._cluster.machines.values()) and all(
            len(one.isr) == len(one.replicas)
            for topic in (() if image is None else image.topics_by_id.values())
            for one in partitions_of(image, topic.name).values()
        )

    # Processes and machines

    async def _kill(self, machine: Machine, fault: Fault) -> None:
        self._begin(fault)
        await machine.kill()
        await self._restart(machine, fault.lasts_s)

    async def _lose_power(self, machine: Machine, fault: Fault) -> None:
        self._begin(fault)
        await machine.lose_power(silent=fault.choice < 0.5)
        await self._restart(machine, fault.lasts_s)

    async def _stop(self, machine: Machine, fault: Fault) -> None:
        self._begin(fault)
        await machine.stop()
        await self._restart(machine, fault.lasts_s)

    async def _restart(self, machine: Machine, after_s: float) -> None:
        await asyncio.sleep(after_s)
        self._note(f"start of {machine.host.name}")
        while True:
            try:
                await machine.start()
                break
            except UserError as error:
                if "tier.url" not in str(error) and self.liars is None:
                    raise
                # The bucket, or a lying node, answered with damaged bytes: a supervisor starts the node again.
                self._counts["starts refused"] += 1
                machine.is_up = False
                await asyncio.sleep(0.5)
        self._counts["restarts"] += 1
        self._note(f"{machine.host.name} serves")

    async def _pause(self, machine: Machine, fault: Fault) -> None:
        self._begin(fault)
        machine.pause()
        await asyncio.sleep(fault.lasts_s)
        machine.resume()

    # Disks and clocks

    async def _fill(self, machine: Machine, fault: Fault) -> None:
        await self._refuse_writes(machine, fault, FIRST, ENOSPC)

    async def _fail(self, machine: Machine, fault: Fault) -> None:
        await self._refuse_writes(machine, fault, SECOND, EIO)

    async def _refuse_writes(
        self, machine: Machine, fault: Fault, directory: str, code: int
    ) -> None:
        """Refuse what changes a directory. A node that stops for this, or serves on without it, runs again after."""
        self._begin(fault)
        end = self._begin_to_refuse(machine, directory, code)
        await asyncio.sleep(fault.lasts_s)
        end()
        await machine.kill()
        await self._restart(machine, fault.choice)

    def _begin_to_refuse(self, machine: Machine, directory: str, code: int) -> Callable[[], None]:
        """Refuse what changes a directory; return what ends this."""
        disk = machine.host.disk(directory)
        before = disk.before

        def refuse(operation: str, path: str) -> None:
            if operation not in ("unlink", "remove_tree"):
                raise OSError(code, "refused by the fault")
            before(operation, path)

        def end() -> None:
            disk.before = before
            machine.reasons_to_stop.clear()

        disk.before = refuse
        return end

    async def _slow(self, machine: Machine, fault: Fault) -> None:
        if machine.is_up:
            self._begin(fault)
            machine.take_ms(10 ** (1 + 2 * fault.choice))
            await asyncio.sleep(fault.lasts_s)
            machine.take_ms(0.5)

    async def _stall(self, machine: Machine, fault: Fault) -> None:
        """The drives answer nothing for a while; what was asked of them is done at the end."""
        if machine.is_up:
            self._begin(fault)
            machine.stall(fault.lasts_s)
            await asyncio.sleep(fault.lasts_s)

    async def _slow_bucket(self, machine: Machine, fault: Fault) -> None:
        if machine.is_up and self._archiver is not None:
            self._begin(fault)
            machine.slow_bucket(fault.choice)
            await asyncio.sleep(fault.lasts_s)
            machine.slow_bucket(0.0)

    async def _late_archiver(self, _machine: Machine, fault: Fault) -> None:
        """See module late_archiver."""
        index = fault.node - 1
        leader = -1 if self._archiver is None else self._archiver.leader_of(index)
        if self._archiver is None or leader < 0 or not self._is_in_sync():
            return
        pauses = fault.choice < 0.5
        self._begin(fault, f"of partition {index}: {leader} {'pauses' if pauses else 'is cut off'}")
        self._note(await self._archiver.carry_out(leader, index, pauses=pauses))

    async def _lie(self, machine: Machine, fault: Fault) -> None:
        """A node damages its answers to other nodes: few of them, some, or all."""
        assert self.liars is not None, "of a run in which nodes lie"
        rates = self.liars.rates
        self._begin(fault)
        rates[machine.host.name] = (0.02, 0.2, 1.0)[int(3 * fault.choice)]
        await asyncio.sleep(fault.lasts_s)
        rates.pop(machine.host.name, None)

    async def _step(self, machine: Machine, fault: Fault) -> None:
        self._begin(fault)
        machine.host.clock.step_ms = round((2 * fault.choice - 1) * STEP_MS)

    async def _lose_disk(self, machine: Machine, fault: Fault) -> None:
        """A voter's machine gets empty disks: the old directory leaves the voters, and the new one joins them."""
        self._begin(fault)
        directory = quorums(self._cluster)[fault.node].log.directory.id
        await machine.kill()
        self._cluster.format_anew(fault.node)
        await self._restart(machine, fault.lasts_s)
        if not machine.is_controller:
            return
        await self.voters.remove(fault.node, directory)
        await self.voters.add(fault.node)

    # The network

    async def _cut(self, machine: Machine, fault: Fault) -> None:
        """Cut a machine off from the others, in one direction or in both, sometimes from the clients too."""
        here = machine.host.name
        others = [one.host.name for one in self._cluster.machines.values() if one is not machine]
        with_clients = fault.choice * 10 % 1 < 0.3
        pairs = [(here, other) for other in [*others, *([STORY] if with_clients else [])]]
        back = [(there, near) for near, there in pairs]
        both = fault.kind == "cut"
        inward = fault.choice < 0.5
        self._begin(fault, "" if both else "inward" if inward else "outward")
        await self._without(pairs + back if both else back if inward else pairs, fault.lasts_s)

    async def _without(self, pairs: list[tuple[str, str]], lasts_s: float) -> None:
        network = self._cluster.world.network
        for pair in pairs:
            network.cut(*pair)
        await asyncio.sleep(lasts_s)
        for pair in pairs:
            network.heal(*pair)

    async def _disturb(self, machine: Machine, fault: Fault) -> None:
        """Bytes from and to a machine are late, or lost and sent again; connections break."""
        network = self._cluster.world.network
        here = machine.host.name
        others = [one.host.name for one in self._cluster.machines.values() if one is not machine]
        others += [STORY]
        self._begin(fault)
        for there in others:
            for pair in (here, there), (there, here):
                network.delay(*pair, 0.0, 0.3 * fault.choice)
                network.lose(*pair, 0.3 * fault.choice)
        for there in others:
            await asyncio.sleep(fault.lasts_s / len(others))
            network.reset(here, there)
        for there in others:
            for pair in (here, there), (there, here):
                network.mend(*pair)

    async def _lost_election(self, machine: Machine, fault: Fault) -> None:
        """The quorum's leader is cut off. The next leader is cut off at its election, and a voter for it restarts.

        The voter and the first leader form a majority that does not know of that election.
        """
        del machine
        leader = self._cluster.active()
        if leader is None:
            return
        self._begin(fault)
        network = self._cluster.world.network
        pairs = self._pairs(leader)
        for pair in pairs:
            network.cut(*pair)
        winner = await self._elected_beside(leader)
        if winner is not None:
            for pair in self._pairs(winner):
                network.cut(*pair)
            (voter,) = self._voters() - {leader, winner}
            self._note(f"node {winner} is elected and cut off; its voter {voter} restarts")
            self._forgot.add(voter)
            await self._cluster.machines[voter].kill()
            restart = asyncio.create_task(self._restart(self._cluster.machines[voter], 0.0))
            for pair in set(pairs) - set(self._pairs(winner)):
                network.heal(*pair)
            await asyncio.sleep(2 + fault.lasts_s)
            pairs = self._pairs(winner)
        for pair in pairs:
            network.heal(*pair)
        if winner is not None:
            await restart

    def _pairs(self, node_id: int) -> list[tuple[str, str]]:
        here = host_of(node_id)
        others = [host_of(one) for one in self._cluster.machines if one != node_id]
        return [pair for other in others for pair in ((here, other), (other, here))]

    async def _elected_beside(self, leader: int) -> int | None:
        for _ in range(round(ELECTED_WITHIN_S / 0.0005)):
            for node_id, quorum in quorums(self._cluster).items():
                if node_id != leader and quorum.is_leader:
                    return node_id
            await asyncio.sleep(0.0005)
        return None

    async def _last_replica(self, machine: Machine, fault: Fault) -> None:
        """A directory fails, a second node loses power, and the third, alone in sync, dies when the second starts.

        The second was eligible before it lost its last records: only the third may lead. Two of three die, so Kafka
        promises only that the last known leader leads again. Each dies once the controller knows of the death before.
        """
        self._begin(fault)
        end = self._begin_to_refuse(machine, SECOND, EIO)
        if await self._holds(lambda: self._second_and_last(fault.node) is not None):
            found = self._second_and_last(fault.node)
            assert found is not None, "it holds"
            second, last = found
            self._forgot |= {fault.node, last, second}
            self._lost.add(second)
            self._note(f"node {second} loses power, {last} is the last")
            await self._cluster.machines[second].lose_power(silent=fault.choice < 0.5)
            if await self._holds(lambda: self._is_fenced(second) and self._is_led()):
                await asyncio.sleep(fault.choice)
                restart = asyncio.create_task(self._restart(self._cluster.machines[second], 0.0))
                await self._cluster.machines[last].kill()
                self._note(f"node {last} is killed")
                await self._restart(self._cluster.machines[last], 2 + fault.lasts_s)
                await restart
            else:
                await self._restart(self._cluster.machines[second], 0.0)
            await self._holds(
                lambda: self._is_led() and self._is_member(second) and self._is_member(last),
                QUIET_WITHIN_S,
            )
        end()
        await machine.kill()
        await self._restart(machine, fault.choice)

    async def _late_proposal(self, machine: Machine, fault: Fault) -> None:
        """A leader without its followers proposes to be alone; the controller receives that after the next election."""
        del machine
        active = self._cluster.active()
        led = [
            one
            for one in self._partitions()
            if one.leader not in (-1, active) and active in one.replicas and len(one.replicas) == 3
        ]
        if active is None or not led:
            return
        self._begin(fault)
        leader = led[0].leader
        (other,) = set(led[0].replicas) - {leader, active}
        network = self._cluster.world.network
        network.cut(host_of(other), host_of(leader))
        # With this first proposal the leader has a connection to the controller.
        await self._holds(lambda: leader in self._led_without(other))
        pairs = self._pairs(leader)
        for pair in pairs:
            network.cut(*pair)
        await self._holds(lambda: not any(one.leader == leader for one in self._partitions()))
        await asyncio.sleep(fault.lasts_s)
        for pair in pairs:
            network.heal(*pair)

    async def _holds(self, condition: Callable[[], bool], within_s: float = LEFT_WITHIN_S) -> bool:
        for _ in range(round(within_s / 0.02)):
            if condition():
                return True
            await asyncio.sleep(0.02)
        return False

    def _partitions(self) -> list[Partition]:
        image = newest(self._cluster)
        topics = () if image is None else image.topics_by_id.values()
        return [one for topic in topics for one in topic.partitions.values()]

    def _voters(self) -> set[int]:
        return {one for one, machine in self._cluster.machines.items() if machine.is_controller}

    def _second_and_last(self, node_id: int) -> tuple[int, int] | None:
        """Return the two nodes that hold a partition since a directory of `node_id` failed, its leader last.

        None while the controller knows of no failure, or where any partition would lose its last member in sync.
        """
        image = newest(self._cluster)
        if image is None or len(image.brokers[node_id].directories) > 1:
            return None
        for one in self._partitions():
            others = set(one.replicas) - {node_id, one.leader}
            if set(one.replicas) - set(one.isr) == {node_id} and len(others) == 1:
                (second,) = others
                if all(set(other.isr) - {second} for other in self._partitions()):
                    return second, one.leader
        return None

    def _led_without(self, node_id: int) -> list[int]:
        """Return the leaders of the partitions whose ISR lacks just this node."""
        return [
            one.leader
            for one in self._partitions()
            if one.leader >= 0 and set(one.replicas) - set(one.isr) == {node_id}
        ]

    def _is_fenced(self, node_id: int) -> bool:
        image = newest(self._cluster)
        return image is not None and image.brokers[node_id].fenced

    def _is_led(self) -> bool:
        """Return whether each partition has a leader."""
        return all(one.leader >= 0 for one in self._partitions())

    def _is_member(self, node_id: int) -> bool:
        """Return whether any ISR has the node."""
        return any(node_id in one.isr for one in self._partitions())

    # Voters

    async def _voter_leaves(self, machine: Machine, fault: Fault) -> None:
        """A voter leaves the quorum, and joins again."""
        del machine
        self._begin(fault)
        directory = quorums(self._cluster)[fault.node].log.directory.id
        await self.voters.remove(fault.node, directory)
        await asyncio.sleep(fault.lasts_s)
        await self.voters.add(fault.node)
