"""Open the parts of this node that hold the cluster's metadata, in the order of their dependencies.

In: the metadata log's directory. Out: log, quorum, image, snapshots, controller and registration. It does nothing
itself.
"""

from collections.abc import Callable, Sequence
from functools import partial
from uuid import UUID

from msgspec import Struct
from msgspec.structs import replace

from stratalog.broker.coordination.active_controller import open_controller
from stratalog.broker.coordination.cluster_image import ClusterImage, OnChange
from stratalog.broker.coordination.controller_channel import ControllerChannel
from stratalog.broker.coordination.damaged_answers import DamagedAnswers
from stratalog.broker.coordination.dialing import dialer_to_controllers
from stratalog.broker.coordination.local_controller import LocalController
from stratalog.broker.coordination.metadata_opening import OpenedLog, open_metadata_log
from stratalog.broker.coordination.metadata_quorum import MetadataQuorum
from stratalog.broker.coordination.metadata_snapshots import MetadataSnapshots
from stratalog.broker.coordination.quorum_peers import QuorumPeers
from stratalog.broker.coordination.registration import Registration
from stratalog.broker.network.audit import Audit
from stratalog.broker.network.throttling import Throttling
from stratalog.broker.storage.directory import LogDirectory
from stratalog.config import BrokerConfig
from stratalog.errors import UserError
from stratalog.metadata.image import Endpoint
from stratalog.ports import Outside
from stratalog.quorum.member import Member
from stratalog.quorum.raft import Raft
from stratalog.quorum.saved_state import NO_NODE
from stratalog.quorum.states import Timeouts
from stratalog.quorum.voters import KRAFT_VERSION, ReplicaKey, Voter, VoterHistory, VoterSet

__all__ = ["ClusterMetadata", "open_cluster_metadata"]


class ClusterMetadata(Struct, frozen=True):
    """The cluster's metadata on one node."""

    quorum: MetadataQuorum
    image: ClusterImage
    snapshots: MetadataSnapshots
    local_controller: LocalController
    controller: ControllerChannel
    registration: Registration
    throttling: Throttling
    audit: Audit | None
    answers: DamagedAnswers

    async def close(self) -> None:
        """Leave the quorum, and close the log cleanly. A snapshot that is being written is abandoned."""
        self.controller.close()
        await self.quorum.stop()
        self.snapshots.close()
        await self.quorum.log.close()
        if self.audit is not None:
            self.audit.close()


async def open_cluster_metadata(  # noqa: PLR0913 - the parts below it
    config: BrokerConfig,
    outside: Outside,
    cluster_id: str,
    directory: LogDirectory,
    directory_ids: Sequence[UUID],
    *,
    on_change: OnChange,
    on_failed: Callable[[BaseException], None],
) -> ClusterMetadata:
    """Read the metadata log; the quorum is not started. Raises UserError where a file is damaged.

    `on_failed` receives why this node can follow the quorum no more.
    """
    clock, node_id = outside.clock, config.int("node.id")
    addresses = config.quorum_voters
    opened = await open_metadata_log(directory, clock, node_id, is_alone=config.is_alone)
    log, replay = opened.log, opened.replay
    image = ClusterImage(cluster_id, node_id, replay.image(), replay.removed_topics, on_change)
    timeouts = _timeouts(config)
    dialer, answers = dialer_to_controllers(config, outside.network), DamagedAnswers()
    member = Member(
        ReplicaKey(node_id, directory.id),
        log,
        _voters(opened, config, ReplicaKey(node_id, directory.id)),
        saved=opened.state,
        timeouts=timeouts,
        entropy=outside.entropy,
    )
    quorum = MetadataQuorum(
        Raft(member),
        log,
        image,
        clock,
        QuorumPeers(
            dialer,
            addresses,
            config.quorum_servers,
            cluster_id=cluster_id,
            own_listener=next((one.name for one in config.controller_listeners), ""),
            request_timeout_ms=timeouts.request_ms,
        ),
        answers=answers,
        open_controller=partial(open_controller, config, clock, log, image, opened.first_records),
        on_failed=on_failed,
    )
    snapshots = MetadataSnapshots(config, clock, quorum, image)
    local = LocalController(lambda: quorum.active, outside.entropy)
    controller = ControllerChannel(
        quorum,
        local,
        replace(dialer, damaged=answers.note),
        cluster_id=cluster_id,
        session_timeout_s=config.int("broker.session.timeout.ms") / 1000,
        request_timeout_s=config.int("controller.socket.timeout.ms") / 1000,
    )
    registration = Registration(config, outside.entropy, directory_ids, image, controller)
    throttling = Throttling(config, image, clock)
    audit = _audit(config, outside)
    return ClusterMetadata(
        quorum, image, snapshots, local, controller, registration, throttling, audit, answers
    )


def _audit(config: BrokerConfig, outside: Outside) -> Audit | None:
    """Open the audit's file, where the settings name one. Raises UserError."""
    path = config.str("audit.log.path")
    if not path:
        return None
    log = outside.audit_log(path, config.int("audit.log.max.bytes"), config.int("audit.log.files"))
    return Audit(log, outside.clock, has_data_requests=config.bool("audit.log.data.requests"))


def _voters(opened: OpenedLog, config: BrokerConfig, me: ReplicaKey) -> VoterHistory:
    """Return the voters: those of the log, or of the configuration, or this node alone, which the log names then.

    With `controller.quorum.bootstrap.servers` the log counts; a new node knows no voters, and asks those servers.
    Raises UserError where the log names others than `controller.quorum.voters` alone, or another node led it and this
    one is configured to be alone: it would go on with a log of its own, beside the other voters'.
    """
    addresses = config.quorum_voters
    if config.quorum_servers and (opened.voters or not addresses):
        return VoterHistory(VoterSet(), opened.voters, kraft_version=KRAFT_VERSION)
    alone = VoterSet((Voter(*me, _endpoints(config, me.id)),))
    if config.is_alone:
        _check_led_by(opened, me.id)
        is_logged = bool(opened.voters) and opened.voters[-1][1] == alone
        logged = [(opened.log.end_offset - 1, alone)] if is_logged else []
        return VoterHistory(alone, logged, kraft_version=KRAFT_VERSION)
    configured = VoterSet.of(Voter(one) for one in addresses)
    if opened.voters and opened.voters[-1][1].ids != configured.ids:
        raise UserError(
            f"controller.quorum.voters: {', '.join(map(str, configured.ids))} are not the voters of "
            f"{opened.log.directory.path}, which are {', '.join(map(str, opened.voters[-1][1].ids))}; accepted: those, "
            "or an empty directory"
        )
    return VoterHistory(
        configured,
        opened.voters,
        kraft_version=1 if opened.voters else 0,
        last_opening=opened.last_opening,
    )


def _check_led_by(opened: OpenedLog, node_id: int) -> None:
    if opened.voters:
        voters = set(opened.voters[-1][1].ids)
    elif opened.last_opening is not None:
        voters = set(opened.last_opening.voter_ids)
    else:
        voters = {opened.state.leader_id, opened.state.voted_id}
    others = sorted(voters - {node_id, NO_NODE})
    if others:
        raise UserError(
            f"controller.quorum.voters: node {node_id} is configured to be the only voter, but the metadata log in "
            f"{opened.log.directory.path} is of a quorum with node {', '.join(map(str, others))}; accepted: the voters "
            "of that cluster, controller.quorum.bootstrap.servers, or an empty directory"
        )


def _endpoints(config: BrokerConfig, node_id: int) -> tuple[Endpoint, ...]:
    """Return where a voter that is alone serves brokers of other processes; Kafka's know it from the log only."""
    found = [one for one in config.controller_listeners if one.host and one.port]
    address = config.quorum_voters.get(node_id)
    if found and address is not None:
        return (Endpoint(found[0].name, *address),)
    return tuple(Endpoint(one.name, one.host, one.port) for one in found[:1])


def _timeouts(config: BrokerConfig) -> Timeouts:
    return Timeouts(
        election_ms=config.int("controller.quorum.election.timeout.ms"),
        election_backoff_max_ms=config.int("controller.quorum.election.backoff.max.ms"),
        fetch_ms=config.int("controller.quorum.fetch.timeout.ms"),
        request_ms=config.int("controller.quorum.request.timeout.ms"),
        retry_backoff_ms=config.int("controller.quorum.retry.backoff.ms"),
    )
