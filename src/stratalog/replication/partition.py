"""One broker's view of a partition's replication: its leader, its in-sync replicas, its high watermark.

In: the metadata log's decisions (leader, epoch, ISR); log end offsets, its own and those that followers' fetches
reveal. Out: the high watermark, checks of clients' epochs, and replicas to add to or remove from the ISR. It never
reads a log, and never changes the ISR: the controller does.

Invariants:

- the high watermark is the least log end offset of the ISR. It never falls within one leader epoch, and stays as it
  was while a new leader knows nothing of its followers;
- epochs only grow.

Kafka: `Partition`, `Replica`.
"""

from dataclasses import dataclass

from stratalog.errors import ErrorCode, Rejected

UNKNOWN_OFFSET = -1
NO_EPOCH = -1


@dataclass(slots=True)
class FollowerState:
    """A leader's view of one follower. Times in ms."""

    log_end_offset: int = UNKNOWN_OFFSET
    caught_up_ms: int = 0
    """When it last had all that the leader had."""
    fetched_at_end: int = UNKNOWN_OFFSET
    """The leader's log end offset at its previous fetch: reaching that means it was caught up then."""
    fetched_ms: int = 0


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
    ) -> None:
        """`high_watermark` is the one last written down; `leader_epoch` the last one known, led by any broker."""
        self.node_id = node_id
        self.leader_epoch = leader_epoch
        self.replicas = replicas
        self.isr = isr
        self.high_watermark = high_watermark
        self.leads = False
        self.log_end_offset = UNKNOWN_OFFSET
        self.epoch_start_offset = UNKNOWN_OFFSET
        self.followers: dict[int, FollowerState] = {}

    def become_leader(
        self,
        leader_epoch: int,
        log_end_offset: int,
        *,
        isr: tuple[int, ...] | None = None,
        replicas: tuple[int, ...] | None = None,
        now_ms: int = 0,
    ) -> None:
        """Lead from `leader_epoch`, whose first record will be at `log_end_offset`.

        Followers of the ISR get the time of a lag before they count as behind. May be called again in one epoch, when
        only the ISR or the replicas have changed.
        """
        same_epoch = self.leads and leader_epoch == self.leader_epoch
        assert same_epoch or leader_epoch > self.leader_epoch, (leader_epoch, self.leader_epoch)
        self.replicas = replicas or self.replicas
        self.isr = isr or self.isr
        assert self.node_id in self.isr, f"{self.node_id} leads outside of {self.isr}"
        others = [node_id for node_id in self.replicas if node_id != self.node_id]
        if same_epoch:
            previous = self.followers
            self.followers = {one: previous.get(one, FollowerState()) for one in others}
        else:
            self.leader_epoch = leader_epoch
            self.leads = True
            self.epoch_start_offset = log_end_offset
            # A crash may have taken the end of a log whose high watermark was written down.
            self.high_watermark = min(self.high_watermark, log_end_offset)
            self.followers = {one: FollowerState(caught_up_ms=now_ms) for one in others}
        self.on_append(log_end_offset)

    def become_follower(self, leader_epoch: int) -> None:
        """Follow from `leader_epoch`: the high watermark is what the leader says from here on."""
        assert leader_epoch >= self.leader_epoch, (leader_epoch, self.leader_epoch)
        self.leader_epoch = leader_epoch
        self.leads = False
        self.followers = {}

    def on_append(self, log_end_offset: int) -> bool:
        """Note that the log has grown to `log_end_offset`; return whether the high watermark moved."""
        assert self.leads, "only a leader's own log moves its high watermark"
        self.log_end_offset = log_end_offset
        return self._advance()

    def on_follower_fetch(self, node_id: int, offset: int, now_ms: int) -> bool:
        """Note that follower `node_id` has everything below `offset`; return whether the high watermark moved.

        Raises `Rejected(UNKNOWN_TOPIC_OR_PARTITION)` where it is no replica of ours, as Kafka answers it.
        """
        assert self.leads, "followers fetch from leaders"
        follower = self.followers.get(node_id)
        if follower is None:
            message = f"{node_id} is not one of {self.replicas}"
            raise Rejected(ErrorCode.unknown_topic_or_partition, message)
        if offset >= self.log_end_offset:
            follower.caught_up_ms = max(follower.caught_up_ms, now_ms)
        elif follower.fetched_at_end != UNKNOWN_OFFSET and offset >= follower.fetched_at_end:
            follower.caught_up_ms = max(follower.caught_up_ms, follower.fetched_ms)
        follower.fetched_at_end = self.log_end_offset
        follower.fetched_ms = now_ms
        follower.log_end_offset = offset
        return self._advance()

    def on_leader_high_watermark(self, high_watermark: int, log_end_offset: int) -> bool:
        """Take the leader's high watermark from its answer, as far as this log reaches; return whether it moved."""
        assert not self.leads, "a leader knows better"
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
        """Offset below which every transaction is decided; `first_unstable` starts the oldest that is not, if any."""
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

    def fallen_behind(self, now_ms: int, lag_ms_max: int) -> tuple[int, ...]:
        """Return members of the ISR that lag for more than `replica.lag.time.max.ms`: propose their removal."""
        return tuple(
            node_id
            for node_id in self.isr
            if node_id in self.followers
            and self.followers[node_id].log_end_offset != self.log_end_offset
            and now_ms - self.followers[node_id].caught_up_ms > lag_ms_max
        )

    def may_join_isr(self, node_id: int) -> bool:
        """Whether a replica outside the ISR has all that is committed and something of this epoch (KIP-966 aside)."""
        follower = self.followers.get(node_id)
        return (
            follower is not None
            and node_id not in self.isr
            and follower.log_end_offset >= max(self.high_watermark, self.epoch_start_offset)
        )

    def _advance(self) -> bool:
        least = self.log_end_offset
        for node_id in self.isr:
            if node_id != self.node_id:
                follower = self.followers.get(node_id)
                least = min(least, UNKNOWN_OFFSET if follower is None else follower.log_end_offset)
        if least <= self.high_watermark:
            return False
        self.high_watermark = least
        return True
