"""The metadata quorum as this node sees it: its leader, this node's image, and the controller while this node leads.

In: requests of other nodes, the metadata log, the image. Out: where the leader is; `active`, the controller, on the
leader only; the image, which follows what is committed. It decides no change of the cluster.

Committed records reach the image by one of two ways. The controller that decided them has applied them already, and
publishes each change. All others are read from the log: on every node that does not lead, and on a new leader until
the record that opens its epoch is committed. Only then is its controller opened, so the controller begins with all
that the log has.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final, TypeVar

import structlog

from stratalog.broker.coordination.active_controller import ActiveController
from stratalog.broker.coordination.cluster_image import ClusterImage
from stratalog.broker.coordination.damaged_answers import DamagedAnswers
from stratalog.broker.coordination.metadata_log import MetadataLog
from stratalog.broker.coordination.quorum_driver import QuorumDriver
from stratalog.broker.coordination.quorum_peers import QuorumPeers
from stratalog.broker.coordination.runtime import load
from stratalog.config.quorum_settings import Address
from stratalog.errors import Corrupt, Rejected, Unavailable, UserError
from stratalog.metadata.delta import Delta
from stratalog.metadata.difference import difference
from stratalog.metadata.image import METADATA_VERSION
from stratalog.metadata.levels import unreadable
from stratalog.metadata.snapshot import SnapshotId
from stratalog.ports import Clock
from stratalog.quorum.messages import (
    Output,
    Request,
    Response,
    Send,
    VoterChangeRequest,
    VoterChangeResponse,
)
from stratalog.quorum.metadata_batches import decode_record
from stratalog.quorum.progress import Follower
from stratalog.quorum.raft import Raft
from stratalog.quorum.voters import ReplicaKey, VoterSet, voter_set, voters_record
from stratalog.wire.batch import BatchHeader
from stratalog.wire.internal.control_records import VotersRecord
from stratalog.wire.messages import Request as RpcRequest
from stratalog.wire.records import Record

__all__ = ["MetadataQuorum"]

R = TypeVar("R")
_RESIGNATION_S: Final = 1.0
"""How long a leader that stops waits for the others to learn of it."""
_log = structlog.get_logger()


class MetadataQuorum:
    """One node's part in the quorum. `start` it, then wait for `caught_up`; `resign`, then `stop`."""

    def __init__(  # noqa: PLR0913 - the parts of a node's quorum
        self,
        raft: Raft,
        log: MetadataLog,
        image: ClusterImage,
        clock: Clock,
        peers: QuorumPeers,
        *,
        answers: DamagedAnswers,
        open_controller: Callable[[Mapping[int, int]], Awaitable[ActiveController]],
        on_failed: Callable[[BaseException], None],
    ) -> None:
        """`open_controller` makes the controller on the image, given the nodes that fell silent and the steady times;
        `on_failed` receives why this node must stop.
        """
        self.image = image
        """The cluster as of the last committed record that this node has."""
        self.active: ActiveController | None = None
        """The controller; None while another node leads, or none does."""
        self.on_leader_change: list[Callable[[], None]] = []
        """Called after `leader_id`, `leader_epoch` or `active` changed."""
        self.on_damaged_log: Callable[[], None] = lambda: None
        """Called where bytes of the log or its snapshot on this node's disk are damaged."""
        self.log = log
        self.caught_up: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done once this node has all that was committed when it first knew of a leader."""
        self._raft = raft
        self._clock = clock
        self._silent_since: dict[int, int] = {}
        """The leader whose connection broke, and when; empty once it answers again, or another leader does."""
        self._peers = peers
        peers.on_elsewhere = self._belongs_elsewhere
        self._open_controller = open_controller
        self._on_failed = on_failed
        self._seen = (self.leader_id, self.leader_epoch)
        self._voters = VoterSet()
        """The voters whose addresses the peers know."""
        self._opened: ActiveController | None = None
        """The controller, also before it serves: from its opening on it publishes what it decides."""
        self._led_epoch = -1
        self._work: asyncio.Task[None] | None = None
        self._image_turn = asyncio.Lock()
        self._is_closed = False
        self._resigned: asyncio.Future[None] | None = None
        self._driver = QuorumDriver(
            raft,
            log,
            clock,
            send=self._send,
            load=self._load_snapshot,
            on_step=self._on_step,
            on_idle=self._on_idle,
            on_damaged=self._log_is_damaged,
            on_failed=self._failed,
            answers=answers,
        )

    def start(self) -> None:
        """Take part in the quorum."""
        self._driver.start()

    async def resign(self) -> None:
        """Take part in no more elections; where this node leads others, wait until they know it, or a second."""
        if len(self._raft.voters.voters) > 1 and not self._is_closed:
            self._resigned = asyncio.get_running_loop().create_future()
            self._driver.take(self._raft.stop)
            await asyncio.wait((self._resigned,), timeout=_RESIGNATION_S)

    async def stop(self) -> None:
        """Take part no more."""
        self._is_closed = True
        self._driver.close()
        self._peers.close()
        if self._work is not None:
            self._work.cancel()
            await asyncio.wait((self._work,))
        if not self.caught_up.done():
            self.caught_up.cancel()

    # The quorum

    @property
    def leader_id(self) -> int:
        """The leader as far as this node knows, else -1."""
        return self._raft.leader_id

    @property
    def leader_epoch(self) -> int:
        """The latest epoch that this node knows."""
        return self._raft.epoch

    @property
    def is_leader(self) -> bool:
        """Whether this node leads the metadata log, with or without an active controller."""
        return self._raft.is_leader

    @property
    def role(self) -> str:
        """This node's state in the quorum, one of `ROLES`."""
        return self._raft.role

    @property
    def voters(self) -> VoterSet:
        """The voters that count."""
        return self._raft.voters

    @property
    def kraft_version(self) -> int:
        """The level of kraft.version: 1 where the log names the voters, else 0."""
        return int(self._raft.has_logged_voters)

    def voters_until(self, offset: int) -> VotersRecord | None:
        """Return the record of the voters up to `offset`; None where the configuration names them, and not the log."""
        raft = self._raft
        return voters_record(raft.voters_at(offset)) if raft.has_logged_voters else None

    @property
    def high_watermark(self) -> int:
        """All below is committed."""
        return self._raft.high_watermark

    def replicas(self) -> Mapping[ReplicaKey, Follower]:
        """Return how far each replica is, as the leader sees it; empty on other nodes."""
        return self._raft.replicas()

    def leader_address(self) -> Address | None:
        """Return the leader's controller listener; None while the leader or its address is unknown."""
        return self._peers.address_of(self.leader_id)

    def address_of(self, node_id: int) -> Address | None:
        """Return a node's controller listener; None while that is unknown."""
        return self._peers.address_of(node_id)

    async def ask(self, address: Address, request: RpcRequest[R]) -> R:
        """Send an RPC to a controller on a connection of its own. Raises Unavailable, Rejected."""
        return await self._peers.ask(address, request)

    def learn(self, node_id: int, host: str, port: int) -> None:
        """Note where a node's controller listens, as a leader says of itself."""
        self._peers.learn(node_id, host, port)

    def request(self, request: Request) -> "asyncio.Future[Response]":
        """Pass a request of another node; the future has the answer."""
        return self._driver.request(request)

    async def kraft_versions(self, host: str, port: int) -> tuple[int, int]:
        """Ask a controller for its range of kraft.version. Raises Unavailable, Rejected."""
        return await self._peers.kraft_versions(host, port)

    async def ask_leader(self, request: RpcRequest[R]) -> R:
        """Send an RPC to the leader of another node. Raises Unavailable, Rejected."""
        address = self.leader_address()
        if address is None:
            raise Unavailable("no leader is known")
        return await self.ask(address, request)

    async def change(self, request: VoterChangeRequest) -> VoterChangeResponse:
        """Change the voters, where this node leads; wait as `quorum.voter_changes.change_voters` says."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def step(now_ms: int) -> list[Output]:
            if self._opened is not None:
                self._opened.append_open()  # what is decided has its offsets already
            return self._raft.on_change(answer, request, now_ms)

        self._driver.take(step)
        changed: VoterChangeResponse = await answer
        return changed

    def _send(self, sent: Send) -> None:
        """Send a request, and pass on what comes back."""

        def answered(response: Response | Corrupt | None) -> None:
            is_known = sent.to in self._silent_since
            if response is not None and (is_known or sent.to == self.leader_id):
                self._silent_since = {}
            elif response is None and not is_known and sent.to == self.leader_id:
                self._silent_since = {sent.to: self._clock.steady_ms()}
            raft, number = self._raft, sent.correlation_id
            if response is None:
                self._driver.take(partial(raft.on_broken_connection, sent.to))
            elif isinstance(response, Corrupt):
                self._driver.take(partial(raft.on_damaged_response, number, str(response)))
            else:
                self._driver.take(partial(raft.on_response, number, response))

        self._peers.send(sent, answered)

    def _on_step(self) -> None:
        """Close the controller of an epoch that this node leads no more, before anything else is done."""
        raft = self._raft
        if raft.voters is not self._voters:
            self._voters = raft.voters
            for voter in raft.voters.voters:
                for endpoint in voter.endpoints[:1]:
                    self._peers.learn_voter(voter.id, endpoint.host, endpoint.port)
        if self._led_epoch >= 0 and not (raft.is_leader and raft.epoch == self._led_epoch):
            self._led_epoch = -1
            opened, self._opened = self._opened, None
            was_active, self.active = self.active is not None, None
            self.log.resign()
            if opened is not None:
                opened.resign()
            if was_active:
                _log.info("controller resigned", epoch=raft.epoch)
            self._leader_changed()
        elif self._seen != (raft.leader_id, raft.epoch):
            self._leader_changed()
        if raft.is_leader:
            self._led_epoch = raft.epoch

    def _leader_changed(self) -> None:
        self._seen = (self.leader_id, self.leader_epoch)
        for react in self.on_leader_change:
            react()

    def _log_is_damaged(self) -> None:
        self.on_damaged_log()

    def _failed(self, error: BaseException) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._driver.close()
            if self.caught_up.done():
                self._on_failed(error)
            else:
                self.caught_up.set_exception(error)

    def _belongs_elsewhere(self, error: UserError) -> None:
        if not self.caught_up.done():
            self._failed(error)

    # The image

    def _on_idle(self) -> None:
        """Go on with the image where something is committed, or open the controller where all is applied."""
        if self._resigned is not None and self._raft.may_stop and not self._resigned.done():
            self._resigned.set_result(None)
        if self._is_closed or (self._work is not None and not self._work.done()):
            return
        if self._opened is None:
            work: Any = None
            if self.image.image.offset + 1 < self._readable():
                work = self._replay()
            elif self._raft.is_leader and self._raft.is_caught_up:
                work = self._activate(self._raft.epoch)
            if work is not None:
                self._work = asyncio.get_running_loop().create_task(work)
                self._work.add_done_callback(self._worked)
                return
        if not self.caught_up.done() and self._raft.is_caught_up:
            self.caught_up.set_result(None)

    def _worked(self, work: "asyncio.Task[None]") -> None:
        if work.cancelled():
            return
        error = work.exception()
        if error is not None:
            self._failed(error)
        else:
            self._on_idle()

    def _readable(self) -> int:
        """Return where the records end that are committed and on this node's disk."""
        return min(self._raft.high_watermark, self.log.log.log_end_offset)

    async def _replay(self) -> None:
        """Apply what is committed and not applied."""
        async with self._image_turn:
            start, end = self.image.image.offset + 1, self._readable()
            if self._opened is None and start < end:
                delta = Delta(self.image.image)
                try:
                    await load(self.log, partial(_apply, delta), start=start, end=end)
                except Corrupt as error:
                    await self.resign()  # the others go on, at once
                    level = delta.image().features.get(METADATA_VERSION)
                    path = f"{self.log.directory.path}/{self.log.log.directory}"
                    raise UserError(f"{path}: {unreadable(error, level)}") from error
                if delta.offset + 1 < end:
                    await self.resign()
                    raise Corrupt(
                        f"{self.log.path_of(start)}: offsets {start} to {end} are missing"
                    )
                self.image.publish(delta.image(), delta)

    async def _load_snapshot(self, snapshot: SnapshotId) -> VoterSet | None:
        """Put a fetched snapshot in the place of log and image."""
        async with self._image_turn:
            replay = await self.log.begin_with(snapshot)
            after = replay.image()
            self.image.publish(after, difference(self.image.image, after))
            _log.info("metadata snapshot loaded", offset=snapshot.end_offset, epoch=snapshot.epoch)
            return None if replay.voters is None else voter_set(replay.voters)

    async def _activate(self, epoch: int) -> None:
        """Open the controller. It holds what it decides until that is committed."""
        silent_since, self._silent_since = self._silent_since, {}
        opened = await self._open_controller(silent_since)
        if self._led_epoch != epoch:
            return
        self._opened = opened
        try:
            await opened.bootstrap()
        except Rejected:
            return  # it leads no more
        if self._opened is opened:
            self.active = opened
            _log.info("controller active", epoch=epoch)
            self._leader_changed()


def _apply(delta: Delta, header: BatchHeader, record: Record) -> None:
    """Apply a record of the log, unless it stands in a batch before the first that is wanted."""
    if record.offset > delta.offset:
        delta.epoch = max(delta.epoch, header.leader_epoch)
        delta.replay(record.offset, decode_record(record, is_control=header.is_control))
