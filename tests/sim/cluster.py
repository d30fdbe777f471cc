"""Several machines of one world that form one cluster: a quorum, whose members have both roles by default.

In: a world, the number of nodes. Out: formatted machines, and methods that wait until the machines agree. It repairs
nothing.
"""

import asyncio
from collections.abc import Callable, Mapping

from tests.sim.machine import Machine
from tests.sim.world import World

from stratalog.broker.coordination.metadata_quorum import MetadataQuorum
from stratalog.broker.storage.claim import format_directory
from stratalog.broker.storage.first_voters import Begin, first_voters, write_first_voters
from stratalog.config import BrokerConfig

CLUSTER_ID = "simulated-cluster-0000"
CONTROLLER_PORT = 9093


def host_of(node_id: int) -> str:
    return f"10.0.0.{node_id}"


class Cluster:
    """Machines by node id."""

    def __init__(
        self,
        world: World,
        nodes: int = 3,
        settings: Mapping[str, str] | None = None,
        roles: Mapping[int, str] | None = None,
        begins: Mapping[int, Begin] | None = None,
    ) -> None:
        """`begins`: the log names the voters, and those nodes were formatted so; the others join."""
        self.world = world
        self.machines: dict[int, Machine] = {}
        roles = roles or {}
        every = "broker,controller"
        voters = [one for one in range(1, nodes + 1) if "controller" in roles.get(one, every)]
        self.begins = begins
        named = [f"{host_of(one)}:{CONTROLLER_PORT}" for one in voters]
        if begins is None:
            named = [f"{one}@{at}" for one, at in zip(voters, named, strict=True)]
        self.voters = ",".join(named)
        for node_id in range(1, nodes + 1):
            self.machines[node_id] = self._machine(node_id, roles.get(node_id, every), settings)

    def _machine(self, node_id: int, role: str, settings: Mapping[str, str] | None) -> Machine:
        host = host_of(node_id)
        listeners = {
            "broker": f"PLAINTEXT://{host}:9092",
            "controller": f"CONTROLLER://{host}:{CONTROLLER_PORT}",
        }
        machine = Machine(
            self.world,
            {
                "node.id": str(node_id),
                "process.roles": role,
                "listeners": ",".join(listeners[one] for one in role.split(",")),
                "controller.listener.names": "CONTROLLER",
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
                f"controller.quorum.{'voters' if self.begins is None else 'bootstrap.servers'}": self.voters,
                **(settings or {}),
            },
        )
        self._format(machine, node_id)
        return machine

    def _format(self, machine: Machine, node_id: int) -> None:
        """Do as `strata storage format`."""
        entropy = machine.host.outside.entropy
        begin = (self.begins or {}).get(node_id, Begin(no_controllers=self.begins is not None))
        voters = first_voters(BrokerConfig.load(machine.settings)[0], begin, entropy)
        mine = voters.voter(node_id) if voters is not None else None
        directory_id = mine.directory_id if mine is not None else None
        first, *others = machine.log_dirs
        format_directory(
            first, machine.host.disk(first), node_id, CLUSTER_ID, entropy, directory_id
        )
        for path in others:
            format_directory(path, machine.host.disk(path), node_id, CLUSTER_ID, entropy)
        if voters is not None:
            now_ms = machine.host.outside.clock.now_ms()
            write_first_voters(machine.host.disk(first), voters, now_ms)

    def format_anew(self, node_id: int) -> None:
        """Give a node that does not run empty disks, formatted to join."""
        machine = self.machines[node_id]
        machine.host.disks.clear()
        if self.begins is not None:
            self.begins = {}
        self._format(machine, node_id)

    async def start(self) -> None:
        """Start all machines at once: none is ready before a quorum has a leader."""
        async with asyncio.TaskGroup() as group:
            for machine in self.machines.values():
                group.create_task(machine.start())

    async def stop(self) -> None:
        """Stop the machines that run, one after another."""
        for machine in self.machines.values():
            if machine.is_up:
                await machine.stop()

    def quorum(self, node_id: int) -> MetadataQuorum:
        quorum = self.machines[node_id].node._quorum
        assert quorum is not None, "the cluster is not started"
        return quorum

    def quorums(self) -> dict[int, MetadataQuorum]:
        """Return the quorum as each running node sees it. A node that reads its disks still has none."""
        return {
            one: quorum
            for one, machine in self.machines.items()
            if machine.is_up and (quorum := machine.node._quorum) is not None
        }

    def active(self) -> int | None:
        """Return the node with the active controller of the latest epoch."""
        epochs = {q.leader_epoch: one for one, q in self.quorums().items() if q.active is not None}
        return epochs[max(epochs)] if epochs else None

    async def until(self, holds: Callable[[], bool], what: str, within_s: float = 30) -> None:
        """Wait until `holds`, in virtual time."""
        for _ in range(round(within_s / 0.01)):
            if holds():
                return
            await asyncio.sleep(0.01)
        raise AssertionError(f"not within {within_s} s: {what}")

    async def until_active(self, but: int | None = None) -> int:
        """Wait for an active controller, on another node than `but`; return its node."""
        await self.until(lambda: self.active() not in (None, but), "an active controller")
        found = self.active()
        assert found is not None
        return found

    async def until_equal(self) -> None:
        """Wait until every running node has the same image."""

        def equal() -> bool:
            images = [one.image.image for one in self.quorums().values()]
            return all(one == images[0] for one in images)

        await self.until(equal, "the same image everywhere")
