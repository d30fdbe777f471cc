"""Create topics with this broker's defaults.

In: topics that a client creates, or missing topics that a client names. Out: the topics that the controller created, or
its errors. This module decides only the defaults that a broker adds.

Kafka: `AutoTopicCreationManager`.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from stratalog.broker.coordination.controller_channel import ControllerChannel
from stratalog.broker.network.turns import Pace
from stratalog.config import BrokerConfig
from stratalog.errors import ErrorCode, Rejected
from stratalog.quorum.controller import Created, NewTopic, check_topic_name
from stratalog.quorum.metadata_batches import METADATA_TOPIC
from stratalog.quorum.topics import PARTITIONS_PER_REQUEST_MAX

_REMOTE: Final = "remote.storage.enable"


class Topics:
    """Topic creation on one broker. `internal` maps each internal topic's name to the function that creates it."""

    def __init__(
        self,
        config: BrokerConfig,
        controller: ControllerChannel,
        internal: Mapping[str, Callable[[], Awaitable[None]]],
    ) -> None:
        self._internal = internal
        self._config = config
        self._controller = controller

    def may_create(self, *, allowed: bool) -> bool:
        """Return whether a request for a missing topic creates it."""
        return allowed and self._config.bool("auto.create.topics.enable")

    async def create_automatically(self, names: Sequence[str], pace: Pace) -> dict[str, ErrorCode]:
        """Create topics with the broker's defaults; return the errors by name."""
        errors: dict[str, ErrorCode] = {}
        if len(names) * self._config.int("num.partitions") > PARTITIONS_PER_REQUEST_MAX:
            return dict.fromkeys(names, ErrorCode.policy_violation)
        async for part in pace.parts(names):
            errors |= await self._create_some(part)
        return errors

    async def _create_some(self, names: Sequence[str]) -> dict[str, ErrorCode]:
        try:
            new_topics = []
            for name in names:
                if name in self._internal:
                    await self._internal[name]()
                elif name != METADATA_TOPIC:  # else unknown to clients, as in Kafka
                    new_topics.append(NewTopic(name, -1, -1, {}, {}))
            created = await self.create(new_topics)
        except Rejected as error:
            return dict.fromkeys(names, error.code)
        fine = (ErrorCode.none, ErrorCode.topic_already_exists)
        return {topic.name: topic.error for topic in created if topic.error not in fine}

    async def create(self, topics: Sequence[NewTopic]) -> list[Created]:
        """Create topics as this broker wants them; one result each."""
        return await self._controller.create_topics([self.tiered(topic) for topic in topics])

    def tiered(self, topic: NewTopic) -> NewTopic:
        """Return a new topic with the tier on if `tier.enable` is, unless it is compacted or says otherwise.

        The setting is stored with the topic: a later change of `tier.enable` does not reach it.
        """
        if not self._config.bool("tier.enable"):
            return topic
        policies = topic.configs.get(
            "cleanup.policy", ",".join(self._config.list("log.cleanup.policy"))
        )
        if "compact" in policies or _REMOTE in topic.configs:
            return topic
        return replace(topic, configs={**topic.configs, _REMOTE: "true"})


def name_error(name: str) -> ErrorCode | None:
    """Return INVALID_TOPIC_EXCEPTION for a name that no topic can have, else None."""
    try:
        check_topic_name(name)
    except Rejected as error:
        return error.code
    return None
