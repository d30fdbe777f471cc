"""Machines of one cluster whose controller lives on the first of them.

In: a world, settings. Out: machines whose nodes act on the first one's metadata, and registered with its controller.
The relay stands in for the quorum: what the first one publishes, the others publish a moment later, also a whole image
at their start. It never decides anything.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from tests.sim.machine import Machine
from tests.sim.world import World

from stratalog import node as composition
from stratalog.broker.coordination import cluster_metadata
from stratalog.broker.coordination.cluster_image import ClusterImage
from stratalog.broker.coordination.cluster_metadata import ClusterMetadata
from stratalog.broker.coordination.registration import Registration
from stratalog.client.aio import Client
from stratalog.errors import ErrorCode, Rejected
from stratalog.metadata.delta import Delta
from stratalog.metadata.image import Image, Partition

HOSTS = ("10.0.0.1", "10.0.0.2", "10.0.0.3")
_ANSWER_S = 2.0
_RELAY_S = 0.002


class Cluster:
    """`start` it; `machines[0]` has the controller, and is never killed."""

    def __init__(self, world: World, count: int, settings: dict[str, str] | None = None) -> None:
        self.world = world
        self.images: dict[int, ClusterImage] = {}
        self._arriving: list[asyncio.Task[None]] = []
        self.machines = [
            Machine(
                world,
                {
                    "node.id": str(number),
                    "listeners": f"PLAINTEXT://{HOSTS[number - 1]}:9092",
                    "offsets.topic.num.partitions": "1",
                    "replica.lag.time.max.ms": "3000",
                    **(settings or {}),
                },
            )
            for number in range(1, count + 1)
        ]
        self.cut: set[int] = set()
        """Nodes that metadata does not reach, and that do not reach the controller."""

    async def start(self) -> list[Client]:
        return [await machine.restart() for machine in self.machines]

    async def stop(self) -> None:
        for machine in reversed(self.machines):
            await machine.stop()

    @property
    def image(self) -> Image:
        return self.machines[0].broker.metadata.image

    def partition(self, topic: str = "t") -> Partition:
        """Return a topic's only partition, as the controller has it."""
        found = self.image.topic(topic)
        assert found is not None
        return found.partitions[0]

    @contextmanager
    def relayed(self) -> Iterator[None]:
        """Open the nodes that start meanwhile with the first one's metadata."""
        opened = cluster_metadata.open_cluster_metadata

        async def open_one(config: Any, outside: Any, *args: Any, **kwargs: Any) -> ClusterMetadata:
            cluster = await opened(config, outside, *args, **kwargs)
            number = config.int("node.id")
            return self._lead(cluster) if number == 1 else self._follow(cluster, config, outside)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(composition, "open_cluster_metadata", open_one)
            yield

    def _lead(self, cluster: ClusterMetadata) -> ClusterMetadata:
        image, publish = cluster.image, cluster.image.publish

        def and_relay(now: Image, delta: Delta) -> Any:
            done = publish(now, delta)
            for number in self.images:
                self._relay(number, now, delta)
            return done

        setattr(image, "publish", and_relay)  # noqa: B010 - mypy refuses to replace a method
        return cluster

    def _relay(self, number: int, now: Image, delta: Delta) -> None:
        machine = self.machines[number - 1]
        image = self.images[number]

        async def arrive() -> None:
            await asyncio.sleep(_RELAY_S)
            while number in self.cut:
                await asyncio.sleep(_RELAY_S)
            if image is self.images.get(number):
                image.image = now
                image._on_change(now, delta)
                for react in image.on_published:
                    react()

        if machine._process is not None:
            self._arriving.append(machine.process.run(arrive()))

    def _follow(self, cluster: ClusterMetadata, config: Any, outside: Any) -> ClusterMetadata:
        number = config.int("node.id")
        image = cluster.image
        image.image = self.image
        setattr(image, "publish", lambda _image, _delta: None)  # noqa: B010
        self.images[number] = image
        controller: Any = _Controller(self, number)
        registered = cluster.registration
        registration = Registration(
            config, outside.entropy, registered._directory_ids, image, controller
        )
        return replace(cluster, controller=controller, registration=registration)


class _Controller:
    """The first machine's controller, as another one reaches it."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        self._cluster = cluster
        self._number = number

    def close(self) -> None:
        pass

    def __getattr__(self, name: str) -> Callable[..., Any]:
        async def ask(*args: Any, **kwargs: Any) -> Any:
            await asyncio.sleep(_RELAY_S)
            if self._number in self._cluster.cut:
                await asyncio.sleep(_ANSWER_S)
                raise Rejected(ErrorCode.request_timed_out, "the controller is away")
            first = self._cluster.machines[0]
            call = getattr(first.broker.controller, name)
            answer = await first.process.run(call(*args, **kwargs))
            await asyncio.sleep(_RELAY_S)
            return answer

        return ask
