"""One broker's view of a partition's replication: its leader, its in-sync replicas, its high watermark.

In: the controller's decisions (leader, epoch, ISR); log end offsets, its own and those that followers' fetches
reveal. Out: the high watermark, checks of clients' epochs, and an ISR to propose to the controller. It never reads a
log, and never changes the ISR: the controller does.

Invariants:

- the high watermark is at most the least log end offset of the ISR, and of the replicas that a proposal would add: the
  controller may have added them already. It never falls within one leader epoch, and does not move while a new leader
  has no news of its followers;
- the high watermark stands still while the ISR is smaller than `min.insync.replicas` (KIP-966);
- epochs only grow.

Kafka: `Partition`, `Replica`.
"""

from msgspec import Struct

from stratalog.errors import ErrorCode, Rejected

UNKNOWN_OFFSET = -1
NO_EPOCH = -1
_NEVER = -(1 << 62)


class FollowerState(Struct):
    """A leader's view of one follower. Times in ms."""

    log_start_offset: int = UNKNOWN_OFFSET
    log_end_offset: int = UNKNOWN_OFFSET
    caught_up_ms: int = _NEVER
    """When the follower last had every record of the leader."""
    fetched_at_end: int = UNKNOWN_OFFSET
    """The leader's log end offset at the follower's previous fetch: a follower that reaches it was caught up then."""
    fetched_ms: int = 0
    broker_epoch: int = NO_EPOCH
    """The broker incarnation that fetched last: a proposal names it, and the controller refuses any other (KIP-903)."""
    may_join: bool = False
    """Whether the follower was registered and not fenced at its last fetch, so that the controller would accept it."""
    is_near: bool = False
    """Whether the follower may join and lags only briefly. The high watermark waits for it, so that it can catch up.

    Kafka waits up to `replica.lag.time.max.ms`. Here it is half of that: with a drive that takes longer for an append
    the follower would join and leave all the time.
    """


class PartitionReplica:
    """This broker's replica of one partition, leading or not."""

    def __init__(
        self,
        *,
        node_id: int,
        replicas: tuple[int, ...],
        isr: tuple[int, ...],
        leader_epoch: int = NO_EPOCH,
        high_watermark: int = 0,
        min_isr: int = 1,
    ) -> None:
        """`high_watermark` comes from the checkpoint; `leader_epoch` is the newest known one of any leader.

        `min_isr` is the topic's `min.insync.replicas`.
        """
        self.node_id = node_id
        self.leader_epoch = leader_epoch
        self.partition_epoch = NO_EPOCH
        self.replicas = replicas
        self.isr = isr
        self.proposed: tuple[int, ...] | None = None
        """The proposed ISR, until the controller's decision is known."""
        self.min_isr = min_isr
        self.high_watermark = high_watermark
        self.leads = False
        self.log_end_offset = UNKNOWN_OFFSET
        self.epoch_start_offset = UNKNOWN_OFFSET
        self.led_since_ms = _NEVER
        self.followers: dict[int, FollowerState] = {}

    def become_leader(
        self,
        leader_epoch: int,
        log_end_offset: int,
        *,
        isr: tuple[int, ...] | None = None,
        replicas: tuple[int, ...] | None = None,
        partition_epoch: int = NO_EPOCH,
        now_ms: int = 0,
    ) -> None:
        """Lead from `leader_epoch`, whose first record will be at `log_end_offset`.

        Followers of the ISR get the time of a lag before they count as behind. May be called again in one epoch, when
        only the ISR or the replicas have changed; that takes a newer partition epoch. An answer of the controller may
        have come before its record: a proposal that was made since must not be forgotten.
        """
        same_epoch = self.leads and leader_epoch == self.leader_epoch
        assert same_epoch or leader_epoch > self.leader_epoch, (leader_epoch, self.leader_epoch)
        if same_epoch and partition_epoch <= self.partition_epoch:
            return
        self.partition_epoch = partition_epoch
        self.proposed = None
        self.replicas = replicas or self.replicas
        self._take_isr(isr or self.isr)
        assert self.node_id in self.isr, f"{self.node_id} leads outside of {self.isr}"
        others = sorted({*self.replicas, *self.isr} - {self.node_id})
        if same_epoch:
            previous = self.followers
            self.followers = {one: previous.get(one, FollowerState()) for one in others}
        else:
            self.leader_epoch = leader_epoch
            self.leads = True
            self.epoch_start_offset = log_end_offset
            self.led_since_ms = now_ms
            # A crash may have lost the end of the log after its high watermark was checkpointed.
            self.high_watermark = min(self.high_watermark, log_end_offset)
            self.followers = {
                one: FollowerState(caught_up_ms=now_ms if one in self.isr else _NEVER)
                for one in others
            }
        self.on_append(log_end_offset)

    def become_follower(self, leader_epoch: int) -> None:
        """Follow from `leader_epoch`: from here on the leader reports the high watermark."""
        assert leader_epoch >= self.leader_epoch, (leader_epoch, self.leader_epoch)
        self.leader_epoch = leader_epoch
        self.leads = False
        self.followers = {}
        self.proposed = None

    def follow(self, replicas: tuple[int, ...], isr: tuple[int, ...]) -> None:
        """Note the replicas and the ISR of the metadata, while another broker leads."""
        assert not self.leads, "a leader takes them with its partition epoch"
        self.replicas, self.isr = replicas, isr

    def on_append(self, log_end_offset: int) -> bool:
        """Note that the log has grown to `log_end_offset`; return whether the high watermark moved."""
        assert self.leads, "only a leader's own log moves its high watermark"
        self.log_end_offset = log_end_offset
        return self._advance()

    def on_follower_fetch(  # noqa: PLR0913 - what a fetch says of the follower
        self,
        node_id: int,
        offset: int,
        now_ms: int,
        *,
        log_start_offset: int,
        lag_ms_max: int,
        broker_epoch: int,
        may_join: bool,
    ) -> bool:
        """Note that follower `node_id` has everything below `offset`; return whether the high watermark moved.

        Its log begins at `log_start_offset`.
        `may_join`: the broker is registered with this `broker_epoch` and not fenced. `lag_ms_max` is
        `replica.lag.time.max.ms`. Raises `Rejected(UNKNOWN_LEADER_EPOCH)` where it is no replica of ours, or not yet:
        metadata may come later here (Kafka: `Partition.followerReplicaOrThrow`).
        """
        assert self.leads, "followers fetch from leaders"
        follower = self.followers.get(node_id)
        if follower is None:
            message = f"{node_id} is not one of {self.replicas}"
            raise Rejected(ErrorCode.unknown_leader_epoch, message)
        if offset >= self.log_end_offset:
            follower.caught_up_ms = max(follower.caught_up_ms, now_ms)
        elif follower.fetched_at_end != UNKNOWN_OFFSET and offset >= follower.fetched_at_end:
            follower.caught_up_ms = max(follower.caught_up_ms, follower.fetched_ms)
        follower.fetched_at_end = self.log_end_offset
        follower.fetched_ms = now_ms
        follower.log_start_offset = log_start_offset
        follower.log_end_offset = offset
        follower.broker_epoch = broker_epoch
        follower.may_join = may_join
        # Half of the lag: a follower that takes longer from one fetch to the next would soon leave the ISR again.
        follower.is_near = may_join and now_ms - follower.caught_up_ms <= lag_ms_max // 2
        return self._advance()

    def on_quiet_fetches(self, node_id: int, fetched_ms: int) -> None:
        """Note that follower `node_id` fetched up to `fetched_ms`, with the same offset. Call before an append.

        The fetches of a session pass over partitions that do not change, so `on_follower_fetch` does not count them.
        """
        follower = self.followers.get(node_id)
        if follower is not None and follower.log_end_offset == self.log_end_offset:
            follower.caught_up_ms = max(follower.caught_up_ms, fetched_ms)

    def on_inactive(self, node_ids: frozenset[int]) -> bool:
        """Wait no more for followers that are about to join: their brokers are fenced; return as `on_append`."""
        assert self.leads, "a follower waits for none"
        for node_id in node_ids & self.followers.keys():
            follower = self.followers[node_id]
            follower.is_near = follower.may_join = False
        return self._advance()

    def on_leader_high_watermark(self, high_watermark: int, log_end_offset: int) -> bool:
        """Take the leader's high watermark from its answer, as far as this log reaches; return whether it moved."""
        assert not self.leads, "a leader computes its own"
        self.log_end_offset = log_end_offset
        moved_to = min(high_watermark, log_end_offset)
        moved = moved_to > self.high_watermark
        self.high_watermark = max(self.high_watermark, moved_to)
        return moved

    def on_truncated(self, log_end_offset: int) -> None:
        """Note that this follower truncated its log; the high watermark never lies beyond its end."""
        assert not self.leads, "a leader never truncates"
        self.log_end_offset = log_end_offset
        self.high_watermark = min(self.high_watermark, log_end_offset)

    def last_stable_offset(self, first_unstable: int | None) -> int:
        """Return offset below which every transaction is decided; `first_unstable` starts the oldest that is not, if
        any.
        """
        if first_unstable is None:
            return self.high_watermark
        return min(self.high_watermark, first_unstable)

    def check_epoch(self, current_leader_epoch: int) -> None:
        """Refuse a request from another leadership (KIP-320); -1 asks for no check.

        Raises `Rejected`: FENCED_LEADER_EPOCH for an older one, UNKNOWN_LEADER_EPOCH for a newer one.
        """
        if current_leader_epoch < 0 or current_leader_epoch == self.leader_epoch:
            return
        mine = f"the leader epoch is {self.leader_epoch}, not {current_leader_epoch}"
        if current_leader_epoch < self.leader_epoch:
            raise Rejected(ErrorCode.fenced_leader_epoch, mine)
        raise Rejected(ErrorCode.unknown_leader_epoch, mine)

    def check_leader(self, current_leader_epoch: int = NO_EPOCH) -> None:
        """As `check_epoch`, and raises `Rejected(NOT_LEADER_OR_FOLLOWER)` where another broker leads."""
        self.check_epoch(current_leader_epoch)
        if not self.leads:
            raise Rejected(ErrorCode.not_leader_or_follower, f"{self.node_id} does not lead")

    @property
    def is_below_min_isr(self) -> bool:
        """Return whether the ISR is smaller than `min.insync.replicas`, or than all replicas where those are fewer."""
        return len(self.isr) < min(self.min_isr, len(self.replicas))

    def check_min_isr(self) -> None:
        """Refuse acks=all before the append where the ISR is too small: raises `Rejected(NOT_ENOUGH_REPLICAS)`.

        A follower's ISR is as old as its last look, so it says first that another broker leads, as in Kafka. Else a
        client of a former leader would repeat its request there, and never ask for the new leader.
        """
        if self.is_below_min_isr:
            self.check_leader()
            raise self._too_few(ErrorCode.not_enough_replicas)

    def too_few_in_sync(self) -> Rejected | None:
        """Return NOT_ENOUGH_REPLICAS_AFTER_APPEND where the ISR has become too small since; None where it has not."""
        if not self.is_below_min_isr:
            return None
        return self._too_few(ErrorCode.not_enough_replicas_after_append)

    def _too_few(self, code: ErrorCode) -> Rejected:
        needed = min(self.min_isr, len(self.replicas))
        return Rejected(
            code,
            f"{len(self.isr)} replicas are in sync; {needed} are needed "
            f"(min.insync.replicas is {self.min_isr})",
        )

    # The ISR: this leader proposes, the controller decides (KIP-497)

    def propose_isr(self, now_ms: int, lag_ms_max: int) -> tuple[int, ...] | None:
        """Return the ISR to propose to the controller; None where it needs no change, or a proposal is pending.

        A follower leaves after `lag_ms_max` (`replica.lag.time.max.ms`) without catching up. A follower joins once it
        has every committed record, and every record below the start of this leader epoch.
        """
        assert self.leads, "only a leader proposes"
        for follower in self.followers.values():
            if now_ms - follower.caught_up_ms > lag_ms_max:
                follower.is_near = False
        self._advance()
        if self.proposed is not None:
            return None
        wanted = [
            one
            for one in self.isr
            if one == self.node_id or not self._lags(one, now_ms, lag_ms_max)
        ]
        wanted += [one for one in self.followers if self._joins(one)]
        if tuple(wanted) == self.isr:
            return None
        self.proposed = tuple(wanted)
        return self.proposed

    def _lags(self, node_id: int, now_ms: int, lag_ms_max: int) -> bool:
        follower = self.followers.get(node_id)
        return follower is None or (
            follower.log_end_offset != self.log_end_offset
            and now_ms - follower.caught_up_ms > lag_ms_max
        )

    def _joins(self, node_id: int) -> bool:
        follower = self.followers[node_id]
        return (
            follower.may_join
            and node_id not in self.isr
            and follower.log_end_offset >= max(self.high_watermark, self.epoch_start_offset)
        )

    def on_isr_decided(self, isr: tuple[int, ...], partition_epoch: int) -> bool:
        """Take the ISR that the controller decided in this leader epoch; return whether the high watermark moved.

        An older partition epoch changes nothing: the metadata log may be ahead of an answer, or behind it.
        """
        assert self.leads, "a follower takes the ISR from metadata alone"
        if partition_epoch <= self.partition_epoch:
            return False
        self._take_isr(isr)
        self.partition_epoch = partition_epoch
        self.proposed = None
        return self._advance()

    def _take_isr(self, isr: tuple[int, ...]) -> None:
        """Take an ISR. A follower that has left it holds up nothing before its next fetch: its broker may be dead."""
        for node_id in set(self.isr).difference(isr):
            follower = self.followers.get(node_id)
            if follower is not None:
                follower.is_near = follower.may_join = False
        self.isr = isr

    def on_isr_refused(self) -> bool:
        """Give up the proposal, which the controller certainly did not accept; return as `on_isr_decided`.

        Where the controller may have accepted it, the proposal stays until metadata shows the decision.
        """
        self.proposed = None
        return self._advance()

    def _advance(self) -> bool:
        least = self.log_end_offset
        if self.followers:
            if self.is_below_min_isr:
                return False
            for node_id, follower in self.followers.items():
                if (
                    node_id in self.isr
                    or follower.is_near
                    or (self.proposed is not None and node_id in self.proposed)
                ):
                    least = min(least, follower.log_end_offset)
        if least <= self.high_watermark:
            return False
        self.high_watermark = least
        return True
