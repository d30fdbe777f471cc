"""The cluster as this node knows it: the image of every committed metadata record.

In: committed changes of the metadata log, in order. Out: the image for every reader, and a call for each change, on
which this broker acts. It never decides a change, and never holds a record that is not committed.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Final
from uuid import UUID

from stratalog.config import DynamicConfigs
from stratalog.metadata.acls import Acls
from stratalog.metadata.client_quotas import ClientQuotas
from stratalog.metadata.delta import Delta
from stratalog.metadata.difference import merged, parts
from stratalog.metadata.image import Image, Topic

__all__ = ["ClusterImage", "OnChange"]

_PARTITIONS_A_TURN: Final = 1000
OnChange = Callable[[Image, Delta], "asyncio.Future[None] | None"]


class ClusterImage:
    """The image of one node."""

    def __init__(
        self,
        cluster_id: str,
        node_id: int,
        image: Image,
        removed_topics: Collection[UUID],
        on_change: OnChange,
    ) -> None:
        """`on_change(image, delta)` acts on a change; the answer to the request behind the change waits for its
        future.
        """
        self.cluster_id = cluster_id
        self.image = image
        """The cluster as of the last committed record."""
        self.removed_topics = set(removed_topics)
        """Topics whose deletion was replayed before `act`: a crash may have come before their directories went."""
        self.on_published: list[Callable[[], None]] = []
        """Functions to call after each change."""
        self.holds: list[Callable[[], bool]] = []
        """Each returns whether a part still needs records that a snapshot lacks: deletions to carry out."""
        self._acls = Acls()
        self._client_quotas = ClientQuotas()
        self._node_id = node_id
        self._on_change = on_change
        self.acts = False
        """Whether this broker acts on each change as it comes."""
        self._held: list[Delta] | None = None

    def topic(self, name: str) -> Topic | None:
        """Return the topic of that name, or None."""
        return self.image.topic(name)

    def topic_configs(self, name: str) -> Mapping[str, str]:
        """Return the settings of a topic itself."""
        return self.image.topic_configs(name)

    @property
    def acls(self) -> Acls:
        """The ACLs of the image."""
        self._acls.follow(self.image)
        return self._acls

    @property
    def client_quotas(self) -> ClientQuotas:
        """The client quotas of the image."""
        self._client_quotas.follow(self.image)
        return self._client_quotas

    @property
    def dynamic_configs(self) -> DynamicConfigs:
        """The dynamic settings of this broker and of all brokers."""
        return DynamicConfigs.of(self.image.configs, self._node_id)

    def hold(self) -> Image:
        """Keep each change for `act` from now on; return the image before the first of them."""
        self._held = []
        return self.image

    async def act(self) -> None:
        """Have this broker act on the changes since `hold` as one, and on each later one as it comes.

        A change that a later one took back is none: a broker must not lead for a moment what it leads no more. A
        start changes every partition of the broker, so the event loop serves others in between.
        """
        while held := self._held:
            image, self._held = self.image, []
            for part in parts(merged(held), _PARTITIONS_A_TURN):
                done = self._on_change(image, part)
                if done is not None:
                    await done
        self._held = None
        self.acts = True

    def rest(self) -> None:
        """Act on no further change, because the broker's parts have closed. The next start acts on all of them."""
        self.acts = False

    def publish(self, image: Image, delta: Delta) -> "asyncio.Future[None] | None":
        """Store the image after a committed change, and let this broker act on the change."""
        self.image = image
        done = None
        if self.acts:
            done = self._on_change(image, delta)
        elif self._held is not None:
            self._held.append(delta)
        else:
            self.removed_topics.update(delta.deleted_topics)
        for react in self.on_published:
            react()
        return done
