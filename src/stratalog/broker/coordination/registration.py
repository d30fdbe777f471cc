"""Register this broker with the controller, keep its session, and ask before it stops.

In: where the broker can be reached, what happens to its directories. Out: its broker epoch, and heartbeats. It never
hosts a partition.

A broker registers once its partitions are loaded, and acts on the image once that has its registration. Then its first
heartbeats ask to be unfenced (`want_fence` is false). A broker that was fenced while it ran is unfenced by its next
heartbeat. The heartbeats of one that was unregistered are refused for ever, as in Kafka.

Kafka: BrokerLifecycleManager.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final
from uuid import UUID

import structlog

from stratalog.broker.coordination.cluster_image import ClusterImage
from stratalog.broker.coordination.controller_channel import ControllerChannel
from stratalog.config import BrokerConfig
from stratalog.errors import ErrorCode, Rejected, UserError
from stratalog.metadata.image import Endpoint
from stratalog.ports import Entropy
from stratalog.quorum.controller import BrokerHeartbeat, BrokerRegistration, HeartbeatAnswer
from stratalog.quorum.features import unserved
from stratalog.wire.ids import TopicIdPartition

__all__ = ["Registration"]

_NO_EPOCH: Final = -1
_FINAL: Final = (
    ErrorCode.cluster_authorization_failed,
    ErrorCode.inconsistent_cluster_id,
    ErrorCode.invalid_registration,
    ErrorCode.unsupported_version,
)
"""Refusals of a registration that time does not mend."""
_CATCH_UP_S: Final = 0.01
_BACKOFF_S: Final = 0.1
"""Kafka: the first step of `resendExponentialBackoff`."""
_SHUTDOWN_STEP_S: Final = 0.05
_SHUTDOWN_S: Final = 30.0
"""Kafka waits five minutes."""
_SHUTDOWN_CONTROLLER_S: Final = 5.0
"""Time for an election. The last node of a cluster that stops finds no controller."""


class Registration:
    """The registration of one life of the broker."""

    def __init__(
        self,
        config: BrokerConfig,
        entropy: Entropy,
        directory_ids: Sequence[UUID],
        image: ClusterImage,
        controller: ControllerChannel,
    ) -> None:
        self.node_id = config.int("node.id")
        self.broker_epoch = _NO_EPOCH
        self.is_complete = False
        """Whether the image has this incarnation's endpoints, and not those from before a restart."""
        self.on_unreported_failure: Callable[[], None] = lambda: None
        """Called where the controller does not know of a failed directory after `log.dir.failure.timeout.ms`."""
        self._config = config
        self._entropy = entropy
        self._directory_ids = tuple(directory_ids)
        self._image = image
        self._controller = controller
        self._interval_s = config.int("broker.heartbeat.interval.ms") / 1000
        self._session_s = config.int("broker.session.timeout.ms") / 1000
        self._cordoned: tuple[UUID, ...] | None = None
        """Directories that take no new replicas; None while none was named, as the registration says."""
        self._failed: dict[UUID, float | None] = {}
        """Failed directories, with the loop's time of each failure that the controller does not know of."""
        self._wake = asyncio.Event()
        self._is_stopping = False
        self._log = structlog.get_logger()

    async def register(self, endpoints: Sequence[Endpoint], previous_epoch: int) -> None:
        """Register this broker in a new incarnation, and wait until its image has the registration.

        Until then the image may name an earlier incarnation as a leader. The logs of this one may be shorter: it must
        not act on such an image. `previous_epoch` is the broker epoch that the last clean shutdown left, -1 for none.
        Raises UserError where the controller refuses for good, and where no registration succeeds within
        `initial.broker.registration.timeout.ms`.
        """
        registration = BrokerRegistration(
            id=self.node_id,
            incarnation_id=self._entropy.uuid(),
            endpoints=tuple(endpoints),
            rack=self._config.str("broker.rack") or None,
            directories=self._directory_ids,
            previous_epoch=previous_epoch,
        )
        while True:
            await self._registered(registration)
            if await self._is_in_image(registration):
                break
            self._log.info("registration not in the metadata yet", node=self.node_id)

    async def _is_in_image(self, registration: BrokerRegistration) -> bool:
        """Wait until the image has this incarnation, and take its epoch from there: an answer may be damaged.

        Return False after a session's time: the same registration sent again changes nothing.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._session_s
        while loop.time() < deadline:
            own = self._image.image.brokers.get(self.node_id)
            if own is not None and own.incarnation_id == registration.incarnation_id:
                self.broker_epoch = own.epoch
                return True
            await asyncio.sleep(_CATCH_UP_S)
        return False

    async def unfence(self) -> None:
        """Wait until this broker is unfenced, also in its image. It leads in new leader epochs what it led before."""
        delay_s = _CATCH_UP_S
        while not await self._is_unfenced():
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, self._interval_s)
        self.is_complete = True

    async def _registered(self, registration: BrokerRegistration) -> int:
        loop = asyncio.get_running_loop()
        setting = "initial.broker.registration.timeout.ms"
        deadline = loop.time() + self._config.int(setting) / 1000
        delay_s = _BACKOFF_S
        while True:
            try:
                return await self._controller.register_broker(registration)
            except Rejected as error:
                if error.code in _FINAL or loop.time() + delay_s > deadline:
                    raise UserError(
                        f"node.id: {self.node_id} is not registered as a broker: "
                        f"{self._reason(registration, error)}"
                    ) from error
                self._log.info("not registered yet", node=self.node_id, reason=error.message)
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, self._session_s)

    def _reason(self, registration: BrokerRegistration, error: Rejected) -> str:
        if error.code is ErrorCode.duplicate_broker_registration:
            return "another broker has this id and is alive; stop it, or give this node an id of its own"
        return unserved(self._image.image.features, registration.features) or error.message

    async def _is_unfenced(self) -> bool:
        try:
            if (await self.heartbeat()).is_fenced:
                return False
        except Rejected as error:
            self._log.warning("no heartbeat", reason=error.message)
            return False
        own = self._image.image.brokers.get(self.node_id)
        return own is not None and own.is_active

    async def heartbeat(self, *, want_fence: bool = False) -> HeartbeatAnswer:
        """Send a heartbeat with the metadata offset that this broker has applied. Raises Rejected."""
        failed = tuple(self._failed)
        answer = await self._controller.heartbeat(
            BrokerHeartbeat(
                self.node_id,
                self.broker_epoch,
                self._image.image.offset,
                want_fence=want_fence,
                want_shutdown=self._is_stopping,
                offline_directories=failed,
                cordoned=self._cordoned,
            )
        )
        self._failed.update(dict.fromkeys(failed))
        return answer

    async def keep_session(self) -> None:
        """Send heartbeats until the broker stops. A refused one is sent again, sooner and then less often."""
        delay_s = self._interval_s
        refused = 0
        while not self._is_stopping:
            await self._pause(delay_s)
            try:
                await self.heartbeat()
            except Rejected as error:
                delay_s = min(_BACKOFF_S * 2**refused, self._session_s)
                refused += 1
                self._log.warning("no heartbeat", reason=error.message)
                self._check_failures()
            else:
                delay_s, refused = self._interval_s, 0

    async def _pause(self, delay_s: float) -> None:
        try:
            async with asyncio.timeout(delay_s):
                await self._wake.wait()
        except TimeoutError:
            return
        self._wake.clear()

    def directory_failed(self, directory_id: UUID) -> None:
        """Tell the controller at once that this broker lost a directory (KIP-858)."""
        if directory_id in self._directory_ids:
            self._failed.setdefault(directory_id, asyncio.get_running_loop().time())
            self._wake.set()

    def cordon(self, directory_ids: Sequence[UUID]) -> None:
        """Tell the controller at once which directories take no new replicas (KIP-1066)."""
        if tuple(directory_ids) != (self._cordoned or ()):
            self._cordoned = tuple(directory_ids)
            self._wake.set()

    def _check_failures(self) -> None:
        limit_s = self._config.int("log.dir.failure.timeout.ms") / 1000
        now = asyncio.get_running_loop().time()
        since = min((one for one in self._failed.values() if one is not None), default=now)
        if since + limit_s <= now:
            self.on_unreported_failure()

    async def shut_down(self) -> None:
        """Have the controller give this broker's leaderships away, and wait until it permits the stop. Bounded.

        A broker that is the only active one has no heir: it does not ask, and `leave` fences it in the end.
        """
        brokers = self._image.image.brokers.values()
        others = any(one.is_active and one.id != self.node_id for one in brokers)
        if not (self.is_complete and others and self._config.bool("controlled.shutdown.enable")):
            return
        self._is_stopping = True
        delay_s = _SHUTDOWN_STEP_S
        try:
            async with asyncio.timeout(_SHUTDOWN_S):
                while not await self._may_stop():
                    await asyncio.sleep(delay_s)
                    delay_s = min(2 * delay_s, self._interval_s)
        except TimeoutError:
            self._log.warning("stopping without the controller", reason=f"{_SHUTDOWN_S:g} s passed")
        except Rejected as error:
            self._log.warning("stopping without the controller", reason=error.message)

    async def _may_stop(self, *, want_fence: bool = False) -> bool:
        try:
            async with asyncio.timeout(_SHUTDOWN_CONTROLLER_S):
                return (await self.heartbeat(want_fence=want_fence)).should_shut_down
        except TimeoutError:
            raise Rejected(ErrorCode.request_timed_out, "no active controller") from None

    async def leave(self) -> None:
        """Have the controller fence this broker, which has closed its logs, if that is not done yet. Bounded.

        Apache Kafka's controller lets no next incarnation register before the session of an unfenced broker ends.
        The only active broker does this late: clients that still ask must not find a cluster without brokers. The last
        of several voters does not: without the others the quorum decides nothing.
        """
        own = self._image.image.brokers.get(self.node_id)
        if not self.is_complete or own is None or own.fenced:
            return
        if self._controller.needs_other_voters(self.node_id):
            return
        self._image.rest()
        self._is_stopping = True
        try:
            await self._may_stop(want_fence=True)
        except Rejected as error:
            self._log.warning("stopping unfenced", reason=error.message)

    async def assign_directories(
        self, assigned: Mapping[TopicIdPartition, UUID]
    ) -> set[TopicIdPartition]:
        """Record the directories of partitions; return those partitions that this broker still hosts."""
        codes = await self._controller.assign_directories(self.node_id, self.broker_epoch, assigned)
        return {key for key, code in codes.items() if code is ErrorCode.none}
