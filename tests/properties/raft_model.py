"""A member of the quorum as a short model: epoch, vote, leader, log, high watermark.

In: messages and the changes that the real member makes. Out: the answers that Raft demands, and an error where a change
is not one of Raft's. Time is no part of it: the real member decides when to stand, the model whether it may.
"""

from dataclasses import dataclass, field

from stratalog.errors import ErrorCode
from stratalog.quorum.messages import FetchRequest, VoteRequest
from stratalog.quorum.saved_state import NO_NODE, QuorumState

ME, UNKNOWN = 1, -1
PEERS = (2, 3)
"""The other voters: with this member one of them is a majority."""


@dataclass
class Learned:
    """What a message says: an epoch and perhaps its leader; or the candidate that asks for a vote."""

    epoch: int = -1
    leader: int = NO_NODE
    candidate: int = NO_NODE


@dataclass
class Model:
    epoch: int = 0
    leader: int = NO_NODE
    voted: int = NO_NODE
    epochs: list[int] = field(default_factory=list)
    """The epoch of each record, by offset."""
    durable: int = 0
    high_watermark: int = 0
    follows: bool = False
    """Whether the member followed a leader before this input."""
    has_answer: bool = False
    """Whether the leader that this member follows has answered a fetch."""
    pre_votes: set[int] = field(default_factory=set)
    votes: set[int] = field(default_factory=set)
    is_elected: bool = False
    """Whether the member won its epoch and has not opened it: a member opens an epoch once."""
    opened_at: int = UNKNOWN
    """The offset of the record that opened the epoch that this member leads."""
    reached: dict[int, int] = field(default_factory=dict)
    led_to: int = UNKNOWN
    """The high watermark as this leader knows it."""
    copied: int = UNKNOWN
    """The leader's high watermark as this follower knows it."""

    @property
    def leads(self) -> bool:
        return self.opened_at != UNKNOWN

    @property
    def end(self) -> int:
        return len(self.epochs)

    @property
    def last_epoch(self) -> int:
        return self.epochs[-1] if self.epochs else 0

    # Answers

    def vote(self, asked: VoteRequest) -> tuple[ErrorCode, bool]:
        """Return the answer to a request of a vote."""
        if asked.epoch < self.epoch:
            return ErrorCode.fenced_leader_epoch, False
        if asked.last_epoch > asked.epoch - (not asked.pre_vote):
            return ErrorCode.invalid_request, False
        is_newer = asked.epoch > self.epoch
        is_up_to_date = (asked.last_epoch, asked.last_offset) >= (self.last_epoch, self.end)
        if asked.pre_vote:
            return ErrorCode.none, is_up_to_date and (
                is_newer or not (self.leads or self.has_answer)
            )
        if not is_newer and self.voted != NO_NODE:
            return ErrorCode.none, self.voted == asked.candidate.id
        return ErrorCode.none, is_up_to_date and (is_newer or self.leader == NO_NODE)

    def fetch(self, asked: FetchRequest) -> ErrorCode:
        """Return the code of a fetch's answer."""
        if asked.last_epoch > asked.epoch:
            return ErrorCode.invalid_request
        if asked.epoch < self.epoch:
            return ErrorCode.fenced_leader_epoch
        if asked.epoch > self.epoch:
            # The voter gives up its epoch (Raft's rule): else an observer that a damaged answer has led to a later
            # epoch waits for its leader for ever.
            return ErrorCode.not_leader_or_follower
        return ErrorCode.none if self.leads else ErrorCode.not_leader_or_follower

    def common_end(self, diverging: tuple[int, int]) -> int:
        """Return where this log and the leader's part."""
        own_epoch, own_end = self.end_of(diverging[0])
        return min(own_end, diverging[1]) if own_epoch == diverging[0] else own_end

    def may_diverge(self, asked: FetchRequest, diverging: tuple[int, int]) -> bool:
        """Return whether a sound leader can answer so; else the member discards the answer, and nothing changes."""
        cut = self.common_end(diverging)
        return diverging[0] <= asked.last_epoch and self.high_watermark <= cut < asked.offset

    def diverging(self, asked: FetchRequest) -> tuple[int, int] | None:
        """Return the largest epoch that both logs may have and its end; None where the sender's log is a prefix."""
        if asked.offset == 0:
            return None
        found = self.end_of(asked.last_epoch)
        return None if found[0] == asked.last_epoch and asked.offset <= found[1] else found

    def end_of(self, epoch: int) -> tuple[int, int]:
        known = [one for one in self.epochs if one <= epoch]
        return (known[-1], len(known)) if known else (0, 0)

    # Changes

    def persisted(self, state: QuorumState, learned: Learned) -> None:
        """Take a change of epoch, vote and leader, which must be one of Raft's."""
        now = (state.leader_epoch, state.leader_id, state.voted_id)
        if state.leader_epoch > self.epoch:
            is_learned = learned.epoch == state.leader_epoch
            stands = now == (self.epoch + 1, NO_NODE, ME) and bool(self.pre_votes)
            leaves = now == (self.epoch + 1, NO_NODE, NO_NODE) and self.leader == ME
            assert is_learned or stands or leaves, f"{now} after {self}: no reason for a new epoch"
            self._enter(state.leader_epoch)
            if stands or (is_learned and learned.leader == ME):
                self.voted = ME
        if now == (self.epoch, ME, NO_NODE) and self.leader != ME:
            assert self.voted == ME, f"{self} leads without its own vote"
            assert self.votes, f"{self} leads without a majority"
            self.leader, self.voted, self.is_elected = ME, NO_NODE, True
        if state.leader_id != self.leader:
            # A member that looks for the leader may have the name of a wrong one, from a damaged answer. It has no
            # vote to give in an epoch with a leader, so another name is safe there.
            is_free = self.leader == NO_NODE or not (self.follows or self.leader == ME)
            assert is_free, (now, self, learned)
            assert (learned.epoch, learned.leader) == (self.epoch, state.leader_id)
            assert state.leader_id != NO_NODE, (now, self, learned)
            self.leader, self.opened_at = state.leader_id, UNKNOWN
        if state.voted_id != self.voted:
            assert self.voted == NO_NODE == self.leader, f"{now}: a second vote after {self}"
            assert state.voted_id == learned.candidate, (now, self, learned)
            self.voted = state.voted_id
        assert now == (self.epoch, self.leader, self.voted), (now, self)

    def _enter(self, epoch: int) -> None:
        self.epoch, self.leader, self.voted = epoch, NO_NODE, NO_NODE
        self.votes = set()
        self.entered()

    def entered(self) -> None:
        """Note that the member is in another state: what it knew of the state before does not count."""
        self.has_answer, self.copied = False, UNKNOWN
        self.pre_votes = set()
        self.opened_at = self.led_to = UNKNOWN

    def opens(self, epoch: int) -> None:
        """Append the first record of an epoch that this member leads."""
        assert (epoch, True) == (self.epoch, self.is_elected), f"{self} opens epoch {epoch}"
        self.is_elected, self.opened_at, self.reached = False, self.end, {}
        self.epochs.append(epoch)

    def commits(self) -> None:
        """Raise the high watermark as far as a majority's logs, or the leader's word, allow."""
        if self.leads:
            ends = sorted((self.durable, *(self.reached.get(one, UNKNOWN) for one in PEERS)))
            if ends[1] > max(self.opened_at, self.led_to):
                self.led_to = ends[1]
            self.high_watermark = max(self.high_watermark, self.led_to)
        self.high_watermark = max(self.high_watermark, min(self.copied, self.durable))
