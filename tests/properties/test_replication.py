"""Replicas of one partition under any schedule: committed records stay, and every log ends as the leader's.

The logs are real, each on a simulated disk of its own; so are the leader's view, the followers' fetchers and the fetch
sessions. The controller is the model: it applies Kafka's rules to one partition. Metadata, fetches, answers and
proposals arrive late, or never. Processes are killed; a machine loses power where another in-sync replica stays up.

The ledger holds every batch below any leader's high watermark: these are acknowledged. It must be in the log of each
later leader, at the same offset, byte for byte.
"""

from collections import Counter
from dataclasses import replace
from random import Random

import pytest
from tests.log_steps import TOPIC_ID, Steps, batch
from tests.properties.replica_node import (
    LAG_MS,
    NODES,
    Decided,
    Fetching,
    FollowerLog,
    Node,
    Proposal,
)

from stratalog.config import LogConfig
from stratalog.errors import ErrorCode
from stratalog.replication.fetcher import Fetcher, FetchLimits
from stratalog.replication.following import Append, AskOffsets, BeginAnew, Truncate, reposition
from stratalog.wire.batch import scan
from stratalog.wire.ids import TopicIdPartition

KEY = TopicIdPartition(TOPIC_ID, 0)
NO_LEADER = -1
LIMITS = FetchLimits(max_bytes=600, backoff_ms=50)


class Replicas:
    """The cluster; `random` chooses the next event."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        config = LogConfig(
            segment_bytes=random.choice((600, 2000, 100_000)),
            retention_ms=-1,
            file_delete_delay_ms=0,
        )
        self.now_ms = 1_000_000
        self.decided = Decided(1, 0, 0, NODES)
        self.nodes = {one: Node(one, Steps(config, replicated=True)) for one in NODES}
        self.ledger: dict[int, bytes] = {}
        self.proposals: list[Proposal] = []
        self.weights = [weight * random.choice((0.3, 1, 1, 3)) for weight in MOVES.values()]
        self.seen: Counter[str] = Counter()
        """How often each thing happened: a run without truncations or elections proves nothing."""
        for node in self.nodes.values():
            node.begin(self.decided)
            self._learn(node)

    def step(self) -> None:
        random = self.random
        node = self.nodes[random.choice(NODES)]
        (move,) = random.choices(list(MOVES), self.weights)
        if move in OF_THE_LEADER and random.random() < 0.4:
            node = self.nodes.get(self.decided.leader, node)
        if move in UNTIL_STARTED or node.up:
            getattr(self, move)(node)

    # Metadata

    def _learn(self, node):
        """Give a node the newest metadata, as its broker acts on it."""
        before, now = node.seen, self.decided
        node.seen = now
        log = node.steps.log
        if now.leader == node.id:
            node.fetcher = node.fetching = None
            begins = before is None or before.leader_epoch < now.leader_epoch
            if begins:
                node.steps.perform_all()
                log.assign_epoch(now.leader_epoch)
                self._check_leader(node)
            node.replica.become_leader(
                now.leader_epoch,
                log.log_end_offset,
                isr=now.isr,
                partition_epoch=now.partition_epoch,
                now_ms=self.now_ms,
            )
            self._committed(node)
            return
        if before is not None and before.leader_epoch == now.leader_epoch:
            return
        node.steps.perform_all()
        node.replica.become_follower(now.leader_epoch)
        node.fetcher = node.fetching = None
        if now.leader > 0:
            node.fetcher = Fetcher(node.id, node.broker_epoch, LIMITS)
            node.fetcher.follow(KEY, FollowerLog(node), now.leader_epoch)

    def metadata_arrives(self, node):
        self._learn(node)

    def _decide(self, *, isr, leader):
        """Decide as the controller; a new leader, or none, brings a new leader epoch."""
        before = self.decided
        self.seen["elections"] += leader != before.leader
        self.seen["shrinks"] += len(isr) < len(before.isr)
        self.seen["expansions"] += len(isr) > len(before.isr)
        self.decided = Decided(
            leader,
            before.leader_epoch + (leader != before.leader),
            before.partition_epoch + 1,
            isr,
        )

    def _fence(self, node):
        """Remove a broker that is down from the ISR, unless it is the last; elect another leader."""
        isr = tuple(one for one in self.decided.isr if one != node.id) or self.decided.isr
        leader = self.decided.leader
        if leader == node.id:
            leader = next((one for one in isr if self.nodes[one].is_active), NO_LEADER)
        self._decide(isr=isr, leader=leader)

    # Faults

    def dies(self, node):
        """Kill a process; or its machine loses power, where another in-sync replica stays up."""
        for _ in range(self.random.randint(0, 4)):
            if node.steps.queue:
                node.steps.perform_effect()
        node.steps.queue.clear()
        node.up = False
        was_fenced, node.fenced = node.fenced, False
        others = [one for one in self.decided.isr if self.nodes[one].up]
        if others and self.random.random() < 0.5:
            node.steps.disk.crash(self.random)
            self.seen["power losses"] += 1
        if not was_fenced:
            self._fence(node)

    def is_cut_off(self, node):
        """A node's heartbeats get lost: the controller fences the node, which continues as before."""
        if not node.fenced:
            node.fenced = True
            self._fence(node)

    def is_back(self, node):
        if node.fenced:
            node.fenced = False
            self._lead_if_last(node)

    def starts(self, node):
        if node.up:
            return
        high_watermark = node.replica.high_watermark
        node.steps.load()
        node.begin(self.decided, high_watermark)
        self._lead_if_last(node)

    def _lead_if_last(self, node):
        """Elect the last member of the ISR in a new epoch."""
        decided = self.decided
        if decided.leader == NO_LEADER and node.id in decided.isr:
            self._decide(isr=decided.isr, leader=node.id)

    # Clients

    def produces(self, node):
        """Send to a node that believes that it leads; another one may have been elected."""
        if not node.replica.leads:
            return
        self.seen["batches"] += 1
        data = batch(self.random.randint(1, 5), size=10 + self.seen["batches"] % 50)
        steps, replica = node.steps, node.replica
        steps.decide(data, leader_epoch=replica.leader_epoch)
        effects, finish = steps.queue[-1]

        def performed():
            finish()
            if replica.leads:
                replica.on_append(steps.log.log_end_offset)
                self._committed(node)

        steps.queue[-1] = (effects, performed)
        if self.random.random() < 0.7:
            steps.perform_all()

    def disk_catches_up(self, node):
        node.steps.perform_all()

    def time_passes(self, _node):
        self.now_ms += self.random.choice((10, 60, 60, 1_500))

    # Fetches

    def fetches_at_once(self, node):
        self.fetch_leaves(node)
        self.fetch_is_answered(node)
        self.answer_arrives(node)

    def fetch_leaves(self, node):
        if node.fetcher is None or node.fetching is not None:
            return
        request = node.fetcher.request(self.now_ms)
        if request is not None:
            leader = self.nodes[node.seen.leader]
            node.fetching = Fetching(leader.id, leader.run, node.run, node.fetcher, request)

    def fetch_is_answered(self, node):
        fetching = node.fetching
        if fetching is None or fetching.answer is not None:
            return
        leader = self.nodes[fetching.leader]
        if leader.up and leader.run == fetching.leader_run:
            fetching.answer = leader.answer(fetching.request, self.now_ms)
            self._committed(leader)
        else:
            fetching.fetcher.on_failure(self.now_ms)
            node.fetching = None

    def answer_arrives(self, node):
        fetching = node.fetching
        if fetching is None or fetching.answer is None:
            return
        node.fetching = None
        assert fetching.fetcher is node.fetcher
        for key, epoch, taken in node.fetcher.on_response(fetching.answer, self.now_ms):
            self._carry_out(node, taken)
            node.fetcher.resume(key, epoch)

    def answer_is_lost(self, node):
        if node.fetching is not None:
            node.fetching.fetcher.on_failure(self.now_ms)
            node.fetching = None

    def _carry_out(self, node, taken):
        steps, replica = node.steps, node.replica
        self.seen[type(taken).__name__] += 1
        match taken:
            case Append(records, high_watermark, log_start):
                if records:
                    log = steps.log
                    appended = log.append_as_follower(memoryview(records), self.now_ms)
                    steps.decided(appended.effects, lambda: log.performed(appended))
                    steps.perform_all()
                replica.on_leader_high_watermark(high_watermark, steps.log.log_end_offset)
                if log_start <= steps.log.log_end_offset:
                    steps.log.raise_log_start(log_start)
            case Truncate(offset):
                assert all(base < offset for base in self.ledger if base < replica.high_watermark)
                self._truncate(node, offset)
            case BeginAnew(offset):
                raise AssertionError(f"no log begins at {offset} here")
            case AskOffsets():
                leader = self.nodes[node.seen.leader].steps.log
                moved = reposition(steps.log, leader.log_start_offset, leader.log_end_offset)
                if isinstance(moved, Truncate):
                    self._truncate(node, moved.offset)

    def _truncate(self, node, offset):
        node.steps.truncate(offset)
        node.replica.on_truncated(node.steps.log.log_end_offset)

    # The ISR

    def leader_looks_at_its_followers(self, node):
        if not node.replica.leads:
            return
        isr = node.replica.propose_isr(self.now_ms, LAG_MS)
        self._committed(node)
        if isr is None and not any(one.leader == node.id for one in self.proposals):
            isr = node.replica.proposed  # the request or its answer was lost: once more
        if isr is not None:
            epochs = {
                one: node.broker_epoch
                if one == node.id
                else node.replica.followers[one].broker_epoch
                for one in isr
            }
            seen = replace(node.seen, partition_epoch=node.replica.partition_epoch)
            self.proposals.append(Proposal(node.id, seen, epochs))

    def controller_decides(self, _node):
        waiting = [one for one in self.proposals if one.answer is None]
        if not waiting:
            return
        proposal = self.random.choice(waiting)
        if proposal.seen.leader_epoch != self.decided.leader_epoch:
            proposal.answer = ErrorCode.fenced_leader_epoch
        elif proposal.seen.partition_epoch != self.decided.partition_epoch:
            proposal.answer = ErrorCode.invalid_update_version
        elif any(
            not self.nodes[one].is_active or self.nodes[one].broker_epoch != epoch
            for one, epoch in proposal.isr.items()
            if epoch >= 0
        ):
            proposal.answer = ErrorCode.ineligible_replica
        else:
            self._decide(isr=tuple(proposal.isr), leader=self.decided.leader)
            proposal.answer = self.decided
        if self.random.random() < 0.2:
            self.proposals.remove(proposal)  # the answer is lost

    def decision_arrives(self, _node):
        answered = [one for one in self.proposals if one.answer is not None]
        if not answered:
            return
        proposal = self.random.choice(answered)
        self.proposals.remove(proposal)
        node = self.nodes[proposal.leader]
        replica = node.replica
        if not (node.up and replica.leads and replica.leader_epoch == proposal.seen.leader_epoch):
            return
        if isinstance(proposal.answer, Decided):
            replica.on_isr_decided(proposal.answer.isr, proposal.answer.partition_epoch)
        elif (
            proposal.answer is ErrorCode.ineligible_replica
            and replica.partition_epoch == proposal.seen.partition_epoch
        ):
            replica.on_isr_refused()
        self._committed(node)

    # Invariants

    def _committed(self, leader):
        """Enter the records below the high watermark into the ledger: the leader acknowledges them."""
        for base, data in leader.batches():
            _, header = next(iter(scan(memoryview(data))))
            if header.next_offset <= leader.replica.high_watermark:
                assert self.ledger.setdefault(base, data) == data, f"offset {base} changed"

    def _check_leader(self, node):
        """A new leader has everything that was ever acknowledged."""
        held = dict(node.batches())
        for base, data in self.ledger.items():
            assert held.get(base) == data, f"leader {node.id} lacks acknowledged {base}"

    def high_watermarks_lie_within_the_logs(self):
        for node in self.nodes.values():
            if node.up:
                log = node.steps.log
                assert node.replica.high_watermark <= log.log_end_offset

    def heal(self):
        """Finally every log equals the leader's, all records are committed, and the ISR is complete."""
        self.proposals.clear()
        for node in self.nodes.values():
            self.starts(node)
            self.is_back(node)
        for _ in range(HEALING_ROUNDS):
            for node in self.nodes.values():
                for move in HEALING:
                    getattr(self, move)(node)
            self.now_ms += 60
            ends = {node.replica.high_watermark for node in self.nodes.values()}
            ends |= {node.steps.log.log_end_offset for node in self.nodes.values()}
            if len(ends) == 1 and len(self.decided.isr) == len(NODES):
                break
        leader = self.nodes[self.decided.leader]
        for node in self.nodes.values():
            assert list(node.batches()) == list(leader.batches())
        assert sorted(self.decided.isr) == list(NODES)
        assert leader.replica.high_watermark == leader.steps.log.log_end_offset
        self._check_leader(leader)
        self.seen["acknowledged"] = len(self.ledger)


MOVES = {
    "produces": 20,
    "disk_catches_up": 6,
    "time_passes": 4,
    "fetches_at_once": 20,
    "fetch_leaves": 6,
    "fetch_is_answered": 6,
    "answer_arrives": 6,
    "answer_is_lost": 1,
    "leader_looks_at_its_followers": 10,
    "controller_decides": 10,
    "decision_arrives": 3,
    "metadata_arrives": 3,
    "dies": 0.7,
    "starts": 6,
    "is_cut_off": 1.2,
    "is_back": 6,
}
OF_THE_LEADER = {"produces", "leader_looks_at_its_followers"}
UNTIL_STARTED = {"time_passes", "starts", "controller_decides"}
HEALING = (
    "metadata_arrives",
    "disk_catches_up",
    "fetch_leaves",
    "fetch_is_answered",
    "answer_arrives",
    "leader_looks_at_its_followers",
    "controller_decides",
    "decision_arrives",
)
HEALING_ROUNDS = 2_000
STEPS = 2_000


@pytest.mark.parametrize("first_seed", range(0, 40, 10))
def test_replicas_agree_and_keep_acknowledged_records(first_seed):
    seen: Counter[str] = Counter()
    for seed in range(first_seed, first_seed + 10):
        world = Replicas(seed)
        try:
            for _ in range(STEPS):
                world.step()
                world.high_watermarks_lie_within_the_logs()
            world.heal()
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
        seen += world.seen
    for thing in ("elections", "shrinks", "expansions", "power losses", "Truncate", "acknowledged"):
        assert seen[thing] > 1, f"no {thing}: the runs prove nothing"
