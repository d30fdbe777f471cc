"""The cluster's controller in this process.

In: requests of handlers. Out: the controller's answers, once the records are committed and this broker acted on them.
It decides nothing, and contacts no other node: while another node is the active controller, it refuses every request.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final
from uuid import UUID

from stratalog.broker.coordination.active_controller import ActiveController
from stratalog.broker.slices import slices
from stratalog.config import ClusterRules
from stratalog.errors import ErrorCode, Rejected
from stratalog.metadata.acls import Acl, AclFilter
from stratalog.metadata.image import Partition
from stratalog.ports import Entropy
from stratalog.quorum.acls import Matched
from stratalog.quorum.brokers import ELECTED_AT_ONCE
from stratalog.quorum.client_quotas import QuotaAlteration
from stratalog.quorum.controller import (
    Alteration,
    Altered,
    BrokerHeartbeat,
    BrokerRegistration,
    Controller,
    Created,
    Deleted,
    Extended,
    FeatureUpdate,
    HeartbeatAnswer,
    MorePartitions,
    NewTopic,
)
from stratalog.quorum.delegation_tokens import NewToken
from stratalog.quorum.isr import IsrAnswer, IsrChange
from stratalog.quorum.leaders import Elected
from stratalog.quorum.reassignment import Reassigned, Reassignment
from stratalog.quorum.scram_credentials import Deletion, Upsertion
from stratalog.quorum.topics import Charge, free
from stratalog.wire.ids import TopicIdPartition, TopicPartition
from stratalog.wire.internal.metadata_records import RegisterControllerRecord
from stratalog.wire.internal.security_records import DelegationTokenRecord

__all__ = ["NO_CONTROLLER", "LocalController"]

NO_CONTROLLER: Final = "no active controller answers; a majority of the voters must run"


class LocalController:
    """The controller as handlers see it. Unless this node is the active controller, each method raises
    Rejected(`absent`).
    """

    def __init__(
        self,
        active: Callable[[], ActiveController | None],
        entropy: Entropy,
        absent: ErrorCode = ErrorCode.not_controller,
    ) -> None:
        self._find = active
        self._entropy = entropy
        self.absent = absent
        """The error of every request while this node is not the active controller."""

    @property
    def is_active(self) -> bool:
        """Whether this node is the active controller."""
        return self._find() is not None

    def refusing(self, code: ErrorCode) -> "LocalController":
        """Return a controller that refuses every request with this code."""
        return LocalController(lambda: None, self._entropy, code)

    def check_active(self) -> None:
        """Raise Rejected where this node is not the active controller, or may not act as it."""
        assert self._active is not None

    @property
    def _active(self) -> ActiveController:
        active = self._find()
        if active is None:
            is_late = self.absent is ErrorCode.request_timed_out
            reason = NO_CONTROLLER if is_late else "this node is not the active controller"
            raise Rejected(self.absent, reason)
        return active

    async def register_broker(self, registration: BrokerRegistration) -> int:
        """Register a broker, fenced; return its epoch. Raises Rejected.

        An earlier incarnation with many partitions leaves them in slices first, so that no decision takes a long turn.
        """
        keys = await self._active.submit(
            lambda one: one.partitions_to_retire(registration, self._active.now_ms())
        )
        for part in slices(keys, ELECTED_AT_ONCE):
            await self._active.submit(
                partial(Controller.retire_broker, registration=registration, keys=part)
            )
        return await self._active.submit(
            lambda one: one.register_broker(registration, self._active.now_ms())
        )

    async def register_controller(self, record: RegisterControllerRecord) -> None:
        """Note where a controller listens. Raises Rejected."""
        await self._active.submit(lambda one: one.register_controller(record))

    async def heartbeat(self, heartbeat: BrokerHeartbeat) -> HeartbeatAnswer:
        """Extend a broker's session, and let it lead once it has caught up. Raises Rejected."""
        answer = await self._active.submit(
            lambda one: one.heartbeat(heartbeat, self._active.now_ms())
        )
        if answer.leaving:
            for part in slices(answer.leaving, ELECTED_AT_ONCE):
                await self._active.submit(
                    lambda one, part=part: one.leave_at_heartbeat(  # type: ignore[misc]
                        heartbeat, part, self._active.now_ms()
                    )
                )
            answer = await self._active.submit(
                lambda one: one.heartbeat(heartbeat, self._active.now_ms(), at_once=True)
            )
        for part in slices(answer.leaderless, ELECTED_AT_ONCE):
            await self._active.submit(
                lambda one, part=part: one.elect_leaderless(  # type: ignore[misc]
                    heartbeat, part, self._active.now_ms()
                )
            )
        return answer

    async def create_topics(
        self, topics: Sequence[NewTopic], charge: Charge = free, *, validate_only: bool
    ) -> list[Created]:
        """Create topics; one result each."""
        return await self._active.submit(
            lambda one: one.create_topics(
                topics, self._entropy, charge, validate_only=validate_only
            )
        )

    async def delete_topics(
        self, topics: Sequence[str | UUID], charge: Charge = free
    ) -> list[Deleted]:
        """Delete topics by name or id; one result each."""
        return await self._active.submit(lambda one: one.delete_topics(topics, charge))

    async def create_partitions(
        self, additions: Sequence[MorePartitions], charge: Charge = free, *, validate_only: bool
    ) -> list[Extended]:
        """Add partitions to topics; one result each."""
        return await self._active.submit(
            lambda one: one.create_partitions(
                additions, self._entropy, charge, validate_only=validate_only
            )
        )

    async def alter_configs(
        self, alterations: Sequence[Alteration], *, validate_only: bool
    ) -> list[Altered]:
        """Change settings of topics and brokers; one result each."""
        return await self._active.submit(
            lambda one: one.alter_configs(
                alterations,
                ClusterRules(self._active.decided_config()),
                validate_only=validate_only,
            )
        )

    async def update_features(
        self, updates: Sequence[FeatureUpdate], *, validate_only: bool
    ) -> None:
        """Set levels of features, all or none. Raises Rejected."""
        await self._active.submit(
            lambda one: one.update_features(updates, validate_only=validate_only)
        )

    async def allocate_producer_ids(self, broker_id: int, broker_epoch: int) -> range:
        """Return a block of producer ids for a broker. Raises Rejected."""
        return await self._active.submit(
            lambda one: one.allocate_producer_ids(broker_id, broker_epoch)
        )

    async def unregister_broker(self, broker_id: int) -> None:
        """Remove a broker from the cluster. Raises Rejected."""
        await self._active.leave(broker_id)
        await self._active.submit(lambda one: one.unregister_broker(broker_id))

    async def alter_isrs(
        self, broker_id: int, broker_epoch: int, changes: Sequence[IsrChange]
    ) -> list[IsrAnswer]:
        """Change ISRs as their leader asks; one answer each. Raises Rejected."""
        return await self._active.submit(
            lambda one: one.alter_isrs(broker_id, broker_epoch, changes)
        )

    async def elect_leaders(
        self, kind: int, partitions: Sequence[TopicPartition] | None
    ) -> list[Elected]:
        """Elect leaders of these partitions or of all; one result each. Raises Rejected."""
        return await self._active.submit(lambda one: one.elect_leaders(kind, partitions))

    async def alter_reassignments(
        self, changes: Sequence[Reassignment], *, may_change_factor: bool
    ) -> list[Reassigned]:
        """Begin, replace or cancel reassignments; one result each. Raises Rejected."""
        return await self._active.submit(
            lambda one: one.alter_reassignments(changes, may_change_factor=may_change_factor)
        )

    async def reassignments(
        self, partitions: Sequence[TopicPartition] | None
    ) -> list[tuple[TopicPartition, Partition]]:
        """Return the partitions that are being reassigned, of these or of all."""
        return await self._active.submit(lambda one: one.reassignments(partitions))

    async def assign_directories(
        self, broker_id: int, broker_epoch: int, assigned: Mapping[TopicIdPartition, UUID]
    ) -> dict[TopicIdPartition, ErrorCode]:
        """Record which directory of a broker holds each partition; one error code each. Raises Rejected."""
        return await self._active.submit(
            lambda one: one.assign_directories(broker_id, broker_epoch, assigned)
        )

    async def alter_scram_credentials(
        self, deletions: Sequence[Deletion], upsertions: Sequence[Upsertion]
    ) -> dict[str, Rejected | None]:
        """Change users' credentials; for each user why it is refused, or None. Raises Rejected."""
        return await self._active.submit(
            lambda one: one.alter_scram_credentials(deletions, upsertions)
        )

    async def alter_client_quotas(
        self, alterations: Sequence[QuotaAlteration], *, validate_only: bool
    ) -> list[Rejected | None]:
        """Set and remove quotas; for each entity why it is refused, or None. Raises Rejected."""
        return await self._active.submit(
            lambda one: one.alter_client_quotas(alterations, validate_only=validate_only)
        )

    async def create_acls(self, wanted: Sequence[Acl]) -> list[Rejected | None]:
        """Create ACLs; for each why it is refused, or None. Raises Rejected."""
        return await self._active.submit(lambda one: one.create_acls(wanted, self._entropy))

    async def delete_acls(self, filters: Sequence[AclFilter]) -> list[Matched]:
        """Delete the ACLs that the filters match; for each filter its ACLs. Raises Rejected."""
        return await self._active.submit(lambda one: one.delete_acls(filters))

    async def create_token(self, wanted: NewToken) -> DelegationTokenRecord:
        """Create a delegation token. Raises Rejected."""
        return await self._active.submit(
            lambda one: one.create_token(wanted, self._entropy, self._active.wall_ms())
        )

    async def renew_token(self, key: bytes, client: str, period_ms: int) -> DelegationTokenRecord:
        """Let the delegation token of this key live longer; return it as it is then. Raises Rejected."""
        return await self._active.submit(
            lambda one: one.renew_token(key, client, period_ms, self._active.wall_ms())
        )

    async def expire_token(self, key: bytes, client: str, period_ms: int) -> DelegationTokenRecord:
        """Let the delegation token of this key end; return it with its end. Raises Rejected."""
        return await self._active.submit(
            lambda one: one.expire_token(key, client, period_ms, self._active.wall_ms())
        )
