"""`docker compose up` without a container engine: each service a process with a root, mounts and a network of its own.

In: a compose file, read by compose's own loader, and images. Out: services that run the file's commands unchanged, at
addresses that the others know by name, and the ports that the file publishes, in a network that is this machine to
them. It needs root. All of it ends with the `with` block.
"""

import json
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from tests.compat.images import Image, mounted
from tests.compat.tools import go_program

COMPOSE = "github.com/compose-spec/compose-go/v2/cmd@v2.16.2"
READY_TIMEOUT_S = 120
STOP_TIMEOUT_S = 30
NETWORK = "10.77.0"
PUBLISH = """
import asyncio, sys

async def passed(reader, writer):
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()

async def connected(reader, writer):
    try:
        far = await asyncio.open_connection(*sys.argv[3:])
        await asyncio.gather(passed(reader, far[1]), passed(far[0], writer), return_exceptions=True)
    finally:
        writer.close()

async def main():
    server = await asyncio.start_server(connected, *sys.argv[1:3])
    await server.serve_forever()

asyncio.run(main())
"""


def loaded(file: Path) -> dict[str, Any]:
    """The file as compose sees it, in its long form, with all profiles. Raises ValueError with compose's reason."""
    done = subprocess.run(
        [go_program("compose-go", COMPOSE), "-format", "json", file.name],
        cwd=file.parent,  # paths count from here, as for `docker compose`
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if done.returncode:
        raise ValueError(done.stderr or done.stdout)
    return dict(json.loads(done.stdout))


class Composed:
    """The services of a compose file. `host` are the words before a command that runs where the ports are published."""

    def __init__(self, model: Mapping[str, Any], images: Mapping[str, Image], place: Path) -> None:
        self._services, self._configs = model["services"], model.get("configs", {})
        self._volumes = model.get("volumes", {})
        self._images, self._place = images, place
        self._ended = ExitStack()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._links = 0
        self._addresses = {
            name: f"{NETWORK}.{number}" for number, name in enumerate(self._services, 2)
        }
        self._host = self._started(["unshare", "--net", "sleep", "infinity"], "host")
        self.host = self._in_network_of(self._host)
        self._run(
            self.host,
            "ip link set lo up; ip link add wire type bridge; ip link set wire up",
            f"ip addr add {NETWORK}.1/24 dev wire",
        )

    def up(self, *names: str) -> None:
        """Start services, each after those that it depends on have started, or are healthy."""
        for name in names:
            if name in self._processes:
                continue
            needs = self._services[name].get("depends_on", {})
            self.up(*needs)
            for other, how in needs.items():
                if how["condition"] == "service_healthy":
                    self.wait_until_healthy(other)
            self._start(name)
            for port in self._services[name].get("ports", []):
                self._publish(name, port)

    def wait_until_healthy(self, name: str) -> None:
        """Wait for a service's health check, and start it again as the file says where it ends with an error."""
        deadline = time.monotonic() + READY_TIMEOUT_S
        words = self._images[self._services[name]["image"]].health
        assert words, f"{name} has no health check"
        while self.executed(name, *words).returncode:
            assert time.monotonic() < deadline, f"{name} is not healthy: {self.said(name)}"
            if self._processes[name].poll() not in (None, 0):
                assert self._services[name].get("restart") == "on-failure", self.said(name)
                self._start(name)
            time.sleep(0.5)

    def executed(self, name: str, *words: str) -> "subprocess.CompletedProcess[str]":
        """Run a program inside a service's root and network."""
        inside = ["nsenter", f"--target={self._processes[name].pid}", "--net", "--mount"]
        return self._done([*inside, "sh", "-c", self._entry(name, words)])

    def on_host(self, *words: str) -> str:
        """Run a program where the ports are published; return what it said. Raises AssertionError where it fails."""
        done = self._done([*self.host, *words])
        assert done.returncode == 0, f"{words}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
        return done.stdout

    def ended(self, name: str, timeout_s: float) -> int:
        """Wait for a service's end; return its exit code."""
        return self._processes[name].wait(timeout_s)

    def said(self, name: str) -> str:
        return (self._place / f"{name}.log").read_text(errors="replace")[-3000:]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.close()

    def _start(self, name: str) -> None:
        """Start a service's process, which waits for its network."""
        linked = self._place / f"{name}.linked"
        linked.unlink(missing_ok=True)
        waiting = f"until [ -e {linked} ]; do sleep 0.05; done"
        image = self._images[self._services[name]["image"]]
        words = (*image.entrypoint, *(self._services[name].get("command") or image.command))
        lines = [waiting, f"hostname {name}", *self._mounts(name), self._entry(name, words)]
        command = ["unshare", "--net", "--mount", "--uts", "sh", "-ec", "\n".join(lines)]
        self._processes[name] = process = self._started(command, name)
        self._links += 1
        port, inside = f"port{self._links}", self._in_network_of(process)
        self._run(
            self.host,
            f"ip link add {port} type veth peer name eth0 netns {process.pid}",
            f"ip link set {port} master wire up",
        )
        self._run(
            inside,
            f"ip link set lo up; ip addr add {self._addresses[name]}/24 dev eth0",
            "ip link set eth0 up",
        )
        linked.touch()

    def _mounts(self, name: str) -> list[str]:
        """Shell commands that make a service's root at its place."""
        service, root = self._services[name], self._place / f"{name}.root"
        layers = self._images[service["image"]].layers
        lines = mounted(root, layers, self._place / f"{name}.writes")
        if service.get("read_only") and "/tmp" not in service.get("tmpfs", []):
            lines.append(f"mount -o remount,ro {root}/tmp")
        hosts = self._place / "hosts"
        hosts.write_text(
            "127.0.0.1 localhost\n"
            + "".join(f"{address} {one}\n" for one, address in self._addresses.items())
        )
        lines.append(f"mount --bind {hosts} {root}/etc/hosts")
        for one in service.get("volumes", []):
            assert one["source"] in self._volumes, one
            volume, target = self._place / f"volume-{one['source']}", f"{root}{one['target']}"
            lines += [
                f"mkdir -p {target}",
                f"[ -e {volume} ] || cp -a {target} {volume}",
                f"mount --bind {volume} {target}",
            ]
        for one in service.get("configs", []):
            file, target = self._place / f"config-{one['source']}", f"{root}{one['target']}"
            file.write_text(self._configs[one["source"]]["content"])
            lines += [
                f"mkdir -p $(dirname {target})",
                f"touch {target}",
                f"mount --bind -o ro {file} {target}",
            ]
        if service.get("read_only"):
            lines.append(f"mount -o remount,bind,ro {root}")
        return lines

    def _entry(self, name: str, words: Sequence[str]) -> str:
        """A shell command that runs a program in a service's root, as its user and with its rights alone."""
        service, root = self._services[name], self._place / f"{name}.root"
        image = self._images[service["image"]]
        user, _, group = image.user.partition(":")
        rights = ["--reuid", user, "--regid", group or user, "--init-groups"]
        if service.get("cap_drop") == ["ALL"]:
            rights += ["--bounding-set=-all", "--inh-caps=-all"]
        if "no-new-privileges:true" in service.get("security_opt", []):
            rights.append("--no-new-privs")
        home = f"$(chroot {root} getent passwd {user} | cut -d: -f6)"
        environ = {**image.environ, **service.get("environment", {})}
        given = [f"{name}={value}" for name, value in environ.items()]
        before = shlex.join(("chroot", str(root), "setpriv", *rights))
        after = shlex.join((*given, *words))
        return f'exec {before} env -i -C {image.directory} HOME="{home}" {after}'

    def _publish(self, name: str, port: Mapping[str, Any]) -> None:
        """Pass connections on from a port of the host's to a service's."""
        near = [port["host_ip"], port["published"]]
        far = [self._addresses[name], str(port["target"])]
        self._started([*self.host, sys.executable, "-c", PUBLISH, *near, *far], f"{name}.ports")

    def _started(self, words: Sequence[str], name: str) -> "subprocess.Popen[bytes]":
        with (self._place / f"{name}.log").open("ab") as output:
            process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=self._place
            )
        self._ended.callback(process.wait, STOP_TIMEOUT_S)
        self._ended.callback(process.kill)
        return process

    @staticmethod
    def _in_network_of(process: "subprocess.Popen[bytes]") -> list[str]:
        """Words before a command that runs in a process's network, once that has one of its own."""
        theirs, ours = Path(f"/proc/{process.pid}/ns/net"), Path("/proc/self/ns/net").readlink()
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while theirs.readlink() == ours:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return ["nsenter", f"--net={theirs}"]

    def _run(self, before: Sequence[str], *lines: str) -> None:
        done = self._done([*before, "sh", "-ec", "\n".join(lines)])
        assert done.returncode == 0, f"{lines}: {done.stderr}"

    @staticmethod
    def _done(words: Sequence[str]) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=READY_TIMEOUT_S,
            check=False,
        )
