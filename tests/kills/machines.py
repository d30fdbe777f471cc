"""Nodes on machines of their own: each in a network namespace, with its data on a file system of its own.

In: a directory, a number of nodes, settings; the rights of root. Out: a cluster whose links are cut one by one and one
way, and whose disks are filled. Each namespace, bridge and mount that it made is gone after `close`, as its processes.

A cut drops packets without an answer: the sender's table of neighbours names a hardware address that no machine has.
"""

import errno
import os
import random
import subprocess
from collections.abc import Iterable, Mapping
from itertools import permutations
from pathlib import Path
from typing import Final
from unittest import SkipTest

from tests.cluster_processes import ClusterProcesses

from stratalog.config.local_cluster import NodePorts

PORTS: Final = NodePorts(9092, 9093)
NETWORKS: Final = [f"198.18.{number}" for number in range(1, 255)]
"""Addresses for tests of networks (RFC 2544): no host of the internet has one."""
NOWHERE: Final = "02:00:00:00:00:00"
BALLAST: Final = "ballast"
BLOCK: Final = 4096
CLIENTS: Final = 0
"""The side of a link on which the tests' own clients are."""


def run(*words: str) -> None:
    """Run a command of the system. Raises SkipTest where this user may not, or the command is not there."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    except FileNotFoundError as error:
        raise SkipTest(f"not available: {words[0]}") from error
    if done.returncode != 0:
        raise SkipTest(f"not available: {' '.join(words)}: {done.stderr.strip()[-200:]}")


class Machines(ClusterProcesses):
    """`with Machines(place) as nodes: … nodes.cut([(1, 2)]) … nodes.heal() … nodes.fill(1) … nodes.empty(1)`."""

    def __init__(
        self,
        place: Path,
        count: int = 3,
        settings: Mapping[str, str] | None = None,
        *,
        disk_bytes: int = 4 << 30,
    ) -> None:
        self._disk_bytes = disk_bytes
        self._name = f"k{os.getpid()}"
        self._undo: list[tuple[str, ...]] = []
        self._cuts: set[tuple[int, int]] = set()
        self._network = ""
        try:
            self._build(place, range(1, count + 1))
            super().__init__(place, count, settings)
        except BaseException:  # an interrupt and a skip too
            self._remove()
            raise

    def choose_ports(self) -> dict[int, NodePorts]:
        return dict.fromkeys(self.ids, PORTS)

    def addresses(self, node: int) -> dict[str, str]:
        voters = (f"{other}@{self.host(other)}:{PORTS.controllers}" for other in self.ids)
        own = self.host(node)
        return {
            **super().addresses(node),
            "controller.quorum.voters": ",".join(voters),
            "listeners": f"PLAINTEXT://{own}:{PORTS.clients},CONTROLLER://{own}:{PORTS.controllers}",
        }

    def words(self, node: int) -> tuple[str, ...]:
        return ("nsenter", f"--net=/run/netns/{self._space(node)}", *super().words(node))

    @property
    def address(self) -> str:
        return ",".join(f"{self.host(node)}:{PORTS.clients}" for node in self.ids)

    def host(self, node: int) -> str:
        return f"{self._network}.{node + 1}"

    def cut(self, links: Iterable[tuple[int, int]]) -> None:
        """Drop what the first machine of each pair sends to the second one."""
        for sender, receiver in links:
            self._cuts.add((sender, receiver))
            words = ("neigh", "replace", self.host(receiver), "lladdr", NOWHERE, "nud", "permanent")
            run(*self._ip(sender), *words, "dev", self._device(sender))

    def heal(self) -> None:
        """Restore every link."""
        for sender, receiver in sorted(self._cuts):
            device = self._device(sender)
            run(*self._ip(sender), "neigh", "del", self.host(receiver), "dev", device)
        self._cuts.clear()

    def between(self, ones: Iterable[int], others: Iterable[int]) -> list[tuple[int, int]]:
        """Return the links between two groups of machines, both ways."""
        here, there = set(ones), set(others)
        both = permutations(sorted(here | there), 2)
        return [link for link in both if len(here & set(link)) == len(there & set(link)) == 1]

    def fill(self, node: int) -> None:
        """Fill a node's disk to the last block."""
        with (self.data(node).parent / BALLAST).open("wb", buffering=0) as ballast:
            size = 1 << 30
            end = 0
            while size >= BLOCK:
                try:
                    os.posix_fallocate(ballast.fileno(), end, size)
                    end += size
                except OSError as error:
                    assert error.errno == errno.ENOSPC, error
                    end = max(end, os.fstat(ballast.fileno()).st_size)
                    size //= 2

    def empty(self, node: int) -> None:
        """Give a node's disk its room back."""
        (self.data(node).parent / BALLAST).unlink()

    def data(self, node: int) -> Path:
        return self.place / f"disk-{node}" / "data"

    def close(self) -> None:
        super().close()
        self._remove()

    def _build(self, place: Path, nodes: range) -> None:
        """Make the bridge, and each machine's namespace and disk."""
        self._bridge()
        for node in nodes:
            space, cable = self._space(node), f"{self._name}v{node}"
            self._make(("ip", "netns", "add", space), ("ip", "netns", "del", space))
            run(*f"ip link add {cable} type veth peer name eth0 netns {space}".split())
            run(*f"ip link set {cable} master {self._name} up".split())
            run(*f"ip -n {space} addr add {self.host(node)}/24 dev eth0".split())
            for device in ("lo", "eth0"):
                run(*f"ip -n {space} link set {device} up".split())
            image, disk = place / f"disk-{node}.image", place / f"disk-{node}"
            disk.mkdir(parents=True)
            with image.open("wb") as sparse:
                sparse.truncate(self._disk_bytes)
            run("mkfs.ext4", "-q", "-F", "-m", "0", str(image))
            self._make(("mount", "-o", "loop", str(image), str(disk)), ("umount", str(disk)))

    def _bridge(self) -> None:
        """Make a bridge in a network that this machine does not use."""
        used = subprocess.run(["ip", "-o", "addr"], capture_output=True, text=True, check=False)
        free = [one for one in NETWORKS if f" {one}." not in used.stdout]
        self._network = random.choice(free)
        self._make(
            ("ip", "link", "add", self._name, "type", "bridge"), ("ip", "link", "del", self._name)
        )
        run("ip", "addr", "add", f"{self._network}.1/24", "dev", self._name)
        run("ip", "link", "set", self._name, "up")

    def _make(self, words: tuple[str, ...], undo: tuple[str, ...]) -> None:
        run(*words)
        self._undo.append(undo)

    def _remove(self) -> None:
        """Undo in reverse what was made. What cannot be undone is reported once all was tried."""
        failed = []
        while self._undo:
            words = self._undo.pop()
            done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
            if done.returncode != 0:
                failed.append(f"{' '.join(words)}: {done.stderr.strip()}")
        assert not failed, failed

    def _space(self, node: int) -> str:
        return f"{self._name}n{node}"

    def _device(self, node: int) -> str:
        return self._name if node == CLIENTS else "eth0"

    def _ip(self, node: int) -> tuple[str, ...]:
        return ("ip",) if node == CLIENTS else ("ip", "-n", self._space(node))
