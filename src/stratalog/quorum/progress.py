"""A leader's view of its followers: the ends of their logs, the high watermark, and check-quorum.

In: the leader's durable end, offsets that followers fetch from, the time. Out: the high watermark, and when the leader
must resign. It never reads a log, and never changes the voters.

The high watermark is an offset that a majority of the voters has reached durably. It counts only once it is past the
record that opens the leader's epoch: a majority may hold an older epoch's record and a later leader still lack it.
Kafka: LeaderState.
"""

from msgspec import Struct

from stratalog.quorum.voters import ReplicaKey, VoterSet

UNKNOWN_OFFSET = -1
OBSERVER_SESSION_MS = 300_000
"""Kafka: LeaderState.OBSERVER_SESSION_TIMEOUT_MS."""


class Follower(Struct):
    """A replica as its leader sees it; times in ms, -1 for never."""

    end_offset: int = UNKNOWN_OFFSET
    fetched_ms: int = -1
    caught_up_ms: int = -1
    """When the follower last had every record of the leader."""
    leader_end: int = UNKNOWN_OFFSET
    """The leader's end at the previous fetch: reaching that means the follower was caught up then."""


class Progress:
    """One leader's epoch. `epoch_start` is the offset of the record that opens it."""

    def __init__(
        self, me: ReplicaKey, epoch_start: int, *, check_quorum_ms: int, now_ms: int
    ) -> None:
        self.epoch_start = epoch_start
        self.high_watermark = UNKNOWN_OFFSET
        self.followers: dict[ReplicaKey, Follower] = {}
        self._me = me
        self._local_end = UNKNOWN_OFFSET
        self._check_quorum_ms = check_quorum_ms
        self._fetched: set[int] = set()
        self._check_deadline_ms = now_ms + check_quorum_ms

    def on_durable(self, end_offset: int, voters: VoterSet) -> bool:
        """Note that the leader's own log is durable below `end_offset`; return whether the high watermark moved."""
        self._local_end = end_offset
        return self.advance(voters)

    def on_fetch(
        self, replica: ReplicaKey, offset: int, leader_end: int, voters: VoterSet, now_ms: int
    ) -> bool:
        """Note that `replica` has everything below `offset` durably; return whether the high watermark moved."""
        follower = self.followers.setdefault(replica, Follower())
        if offset >= leader_end:
            follower.caught_up_ms = max(follower.caught_up_ms, now_ms)
        elif UNKNOWN_OFFSET < follower.leader_end <= offset:
            follower.caught_up_ms = max(follower.caught_up_ms, follower.fetched_ms)
        follower.leader_end = leader_end
        follower.end_offset = offset
        self.on_contact(replica, voters, now_ms)
        return voters.has(replica) and self.advance(voters)

    def on_contact(self, replica: ReplicaKey, voters: VoterSet, now_ms: int) -> None:
        """Note a Fetch or FetchSnapshot of `replica`: check-quorum begins anew once a majority has sent one."""
        self.followers.setdefault(replica, Follower()).fetched_ms = now_ms
        if voters.has(replica):
            self._fetched.add(replica.id)
        needed = voters.majority - voters.has(self._me)
        if len(self._fetched.intersection(voters.ids)) >= needed:
            self._fetched.clear()
            self._check_deadline_ms = now_ms + self._check_quorum_ms

    def advance(self, voters: VoterSet) -> bool:
        """Move the high watermark to the offset that a majority has; return whether it moved. It never falls."""
        ends = sorted((self._end_of(one.key) for one in voters.voters), reverse=True)
        reached = ends[voters.majority - 1] if ends else UNKNOWN_OFFSET
        if reached <= self.epoch_start or reached <= self.high_watermark:
            return False
        self.high_watermark = reached
        return True

    def check_deadline_ms(self, voters: VoterSet) -> int | None:
        """Return when the leader must resign unless a majority fetches; None for a sole voter."""
        alone = voters.has(self._me) and len(voters.voters) == 1
        return None if alone else self._check_deadline_ms

    def fetched_ms(self, key: ReplicaKey) -> int:
        """Return when that voter last fetched, -1 for never."""
        follower = self._follower(key)
        return -1 if follower is None else follower.fetched_ms

    def successors(self, voters: VoterSet) -> tuple[ReplicaKey, ...]:
        """Return the other voters, those with the most of the log first."""
        others = [one.key for one in voters.voters if one.id != self._me.id]
        return tuple(sorted(others, key=lambda key: (-self._end_of(key), key)))

    def forget_observers(self, voters: VoterSet, now_ms: int) -> None:
        """Forget replicas that are no voters and have not fetched for five minutes."""
        self.followers = {
            key: follower
            for key, follower in self.followers.items()
            if voters.has(key) or now_ms - follower.fetched_ms < OBSERVER_SESSION_MS
        }

    def _end_of(self, key: ReplicaKey) -> int:
        if key.id == self._me.id:
            return self._local_end
        follower = self._follower(key)
        return UNKNOWN_OFFSET if follower is None else follower.end_offset

    def _follower(self, key: ReplicaKey) -> Follower | None:
        """Return the replica of a voter; a voter without a directory id is any replica of its id, the latest first."""
        found = self.followers.get(key)
        if found is not None or key.directory_id.int:
            return found
        same = [one for other, one in self.followers.items() if other.id == key.id]
        return max(same, key=lambda one: one.fetched_ms, default=None)
