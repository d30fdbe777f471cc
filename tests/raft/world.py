"""A quorum of simulated nodes, from one seed: messages with loss, delay and reorder, cuts, pauses, crashes, clocks.

In: a seed. Out: counts of what happened; raises `Broken` where a property does not hold. No wall clock.

A run has a time of faults, then a time of healing, in which a leader must be elected and a new record must be
committed and applied by every node.
"""

import heapq
from collections import Counter, deque
from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from typing import Any

from tests.raft.checks import Broken, Checks, hold
from tests.raft.lies import damaged
from tests.raft.node import Node, voter
from tests.raft.shown import shown
from tests.raft.stories import Stories

from stratalog.errors import ErrorCode
from stratalog.quorum.messages import (
    ANY_NODE,
    AddVoterRequest,
    Output,
    RemoveVoterRequest,
    Request,
    Response,
    Send,
    VoterChangeRequest,
)
from stratalog.quorum.raft import Raft
from stratalog.quorum.states import Timeouts
from stratalog.quorum.voters import Voter, VoterSet

HEALING_MS = 30_000
QUICK = Timeouts(
    election_ms=40, election_backoff_max_ms=80, fetch_ms=250, request_ms=150, fetch_wait_ms=60
)
"""Timeouts near the messages' delays: most elections have several candidates."""
MUST_HAPPEN = (
    "elections",
    "truncations",
    "restarts",
    "batches lost",
    "snapshots loaded",
    "appends",
    "voters added",
    "voters removed",
    "leaders removed",
    "bridges",
    "lonely leaders",
    "epochs hidden",
)

Input = Callable[[Raft, int], list[Output]]


class World:
    def __init__(self, seed: int, *, lies: bool = False) -> None:
        """`lies`: some nodes send damaged answers for a while."""
        self.seed = seed
        self._lying = Random(f"{seed}-lies")
        self.lies = lies
        self._liars: dict[int, float] = {}
        """How often a node's answer is damaged, while it lies."""
        self.chance = chance = Random(seed)
        self.now = 0.0
        self.counts: Counter[str] = Counter()
        self.checks = Checks()
        self._wakes: dict[int, tuple[float, int]] = {}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = iter(range(1 << 62))
        self._trace: deque[tuple[float, int, Any]] = deque(maxlen=80)
        self.cuts: set[tuple[int, int]] = set()
        self.timeouts, self.faults_ms = chance.choice([(Timeouts(), 20_000), (QUICK, 4000)])
        self.loss = chance.choice([0.0, 0.01, 0.1])
        self.delay_ms = chance.choice([2, 10, 40])
        self.unlucky = chance.choice([0.0, 0.4, 0.7])
        """How often a fault hits a new leader."""
        self._stories = Stories(self)
        count = chance.choice([3, 3, 4, 5])
        observers = chance.choice([0, 0, 1])
        self.changing = Random(f"{seed}-voters")
        self.is_dynamic = self.changing.random() < 0.5
        make = voter if self.is_dynamic else Voter
        voters = VoterSet.of(make(one) for one in range(1, count + 1))
        spare = 2 if self.is_dynamic else 0
        self.nodes = {
            one: Node(
                self,
                one,
                voters if one <= count or not self.is_dynamic else VoterSet(),
                Random(f"{seed}-{one}"),
                is_dynamic=self.is_dynamic,
            )
            for one in range(1, count + observers + spare + 1)
        }

    # The run

    def run(self) -> Counter[str]:
        """Run to the end. Raises Broken."""
        try:
            for node in self.nodes.values():
                node.read_max = self.chance.choice([1, 4])
                node.crash_chance = self.chance.choice([0.0, 0.0, 0.002, 0.04])
                node.start()
            for at, fault in self._faults():
                self.at(at, fault)
            self._until(self.faults_ms)
            self._heal()
            self._make_progress()
        except Broken as broken:
            raise Broken(
                f"seed {self.seed}, at {self.now:.0f} ms: {broken}\n{self.traced()}"
            ) from None
        return self.counts

    def traced(self) -> str:
        return "\n".join(
            f"{at:9.1f}  {node_id}  {shown(what)}" for at, node_id, what in self._trace
        )

    def _faults(self) -> Iterator[tuple[float, Callable[[], None]]]:
        chance = self.chance
        kinds = [
            self._crash,
            self._pause,
            self._cut,
            self._cut_one_way,
            self._isolate,
            self._snapshot,
        ]
        kinds += [self._heal_cuts, self._heal_cuts, self._stop_leader, self._snapshot]
        kinds += [self._crash_leader, self._crash_leader, self._isolate_leader]
        kinds += [*self._stories.all, *self._stories.all]
        at, gap = 0.0, chance.choice([100, 400, 1500]) * self.faults_ms / 20_000
        while (at := at + chance.expovariate(1 / gap)) < self.faults_ms:
            yield at, chance.choice(kinds)
        at, gap = 0.0, chance.choice([20, 100, 500]) * self.faults_ms / 20_000
        while (at := at + chance.expovariate(1 / gap)) < self.faults_ms:
            yield at, partial(self._write, b"%f" % at)
        at, gap = 0.0, self.changing.choice([100, 500]) * self.faults_ms / 20_000
        while self.is_dynamic and (at := at + self.changing.expovariate(1 / gap)) < self.faults_ms:
            yield at, self._change_voters
        at, gap = 0.0, self.faults_ms / 8
        while self.lies and (at := at + self._lying.expovariate(1 / gap)) < self.faults_ms:
            yield at, self._lie

    def _until(self, end: float) -> None:
        while self._events and self._events[0][0] <= end:
            self.now, _, event = heapq.heappop(self._events)
            event()
        self.now = end

    def at(self, at: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (at, next(self._numbers), event))

    # Healing

    def _heal(self) -> None:
        self.cuts.clear()
        self._liars.clear()
        self.loss = 0.0
        self._stories = Stories(self)
        for node in self.nodes.values():
            node.crash_chance = 0.0
            node.read_max = 1000
            node.paused_until = 0.0
            if node.raft is None:
                node.start()
        self.trace(0, "healed")

    def _make_progress(self) -> None:
        end = self.now + HEALING_MS
        committed = self.checks.committed_end
        while self.now < end:
            self._until(self.now + 500)
            self._write(b"healed %d" % self.now)
            if all(node.applied > committed + 3 for node in self.nodes.values()):
                return
        applied = {node.id: node.applied for node in self.nodes.values()}
        states = {n.id: (n.raft.epoch, n.raft.leader_id) for n in self.nodes.values() if n.raft}
        raise Broken(
            f"Progress: {committed} was committed, then {applied}; epochs and leaders {states}"
        )

    # Faults

    def any_node(self) -> Node:
        return self.chance.choice(list(self.nodes.values()))

    def leader(self) -> Node | None:
        leaders = [n for n in self.nodes.values() if n.raft is not None and n.raft.is_leader]
        return self.chance.choice(leaders) if leaders else None

    def _crash(self) -> None:
        self.crash_node(self.any_node())

    def _crash_leader(self) -> None:
        leader = self.leader()
        if leader is not None:
            self.crash_node(leader)

    def crash_node(self, node: Node) -> None:
        if node.raft is not None:
            self.trace(node.id, "crash")
            node.crash()
            self.restart_later(node)

    def restart_later(self, node: Node) -> None:
        incarnation = node.incarnation

        def restart() -> None:
            if node.incarnation == incarnation:
                self.trace(node.id, "restart")
                self.counts["restarts"] += 1
                node.start()

        self.at(self.now + self.chance.choice([1, 10, 50, 300, self.faults_ms / 7]), restart)

    def elected(self, node: Node) -> None:
        """Perhaps crash or isolate the leader before all have its first record, or let none have it."""
        if self.now < self.faults_ms and self.chance.random() < self.unlucky:
            hide = self._stories.hide
            fault = self.chance.choice([self.crash_node, self.isolate_node, hide, hide])
            if fault == hide:
                hide(node)
                return
            at = self.now + self.chance.expovariate(1 / (3 * self.delay_ms))
            self.at(min(at, self.faults_ms), partial(fault, node))

    def _pause(self) -> None:
        node = self.any_node()
        self.counts["pauses"] += 1
        node.paused_until = self.now + self.chance.choice([50, 500, self.faults_ms / 4])

    def _cut(self) -> None:
        one, other = self.any_node().id, self.any_node().id
        self.cuts |= {(one, other), (other, one)}
        self.counts["cuts"] += 1

    def _cut_one_way(self) -> None:
        self.cuts.add((self.any_node().id, self.any_node().id))
        self.counts["cuts"] += 1

    def _isolate(self) -> None:
        self.isolate_node(self.any_node())

    def _isolate_leader(self) -> None:
        self.isolate_node(self.leader() or self.any_node())

    def isolate_node(self, node: Node) -> None:
        for other in self.nodes:
            self.cuts |= {(node.id, other), (other, node.id)}
        self.counts["cuts"] += 1

    def _heal_cuts(self) -> None:
        self.cuts.clear()

    def _stop_leader(self) -> None:
        """Shut a node down in order; a process ends soon after."""
        node = self.leader()
        if node is not None and node.raft is not None:
            self.counts["resignations"] += 1
            node.run(node.raft.stop(node.now_ms()))
            incarnation = node.incarnation

            def end() -> None:
                if node.incarnation == incarnation:
                    node.crash()
                    self.restart_later(node)

            self.at(self.now + self.chance.choice([10, 200]), end)

    def _change_voters(self) -> None:
        """Ask the leader for one voter more or less, perhaps for its own removal."""
        leader = self.leader()
        if leader is None or leader.raft is None:
            return
        node_id = self.changing.choice(list(self.nodes))
        if self.changing.random() < 0.2:
            node_id = leader.id
        request: VoterChangeRequest = AddVoterRequest(voter(node_id), 1000)
        what = "voters added"
        if leader.raft.voters.voter(node_id) is not None:
            request = RemoveVoterRequest(voter(node_id).key, 1000)
            what = "leaders removed" if node_id == leader.id else "voters removed"
        self.trace(leader.id, request)
        leader.run(leader.raft.on_change(what, request, leader.now_ms()))

    def _lie(self) -> None:
        """Let one node damage some of its answers, or all, until another one does; most often the leader."""
        self._liars.clear()
        node = self._lying.choice([self.leader() or self.any_node(), self.any_node()])
        self._liars[node.id] = self._lying.choice([0.1, 0.5, 1.0])
        self.trace(node.id, "lies")

    def _snapshot(self) -> None:
        self.any_node().take_snapshot()

    def _write(self, value: bytes) -> None:
        for node in self.nodes.values():
            if node.paused_until <= self.now:
                node.write(value)

    # Messages between nodes

    def request(self, node: Node, sent: Send) -> None:
        token = (node.id, node.incarnation, sent.correlation_id)
        to = self.any_node() if sent.to == ANY_NODE else self.nodes.get(sent.to)
        if to is None:  # a node that an answer has made up
            self._break(node, sent.to)
            return
        if to.raft is None and self.chance.random() < 0.8:
            self._break(node, to.id)  # connection refused
            return
        request: Request = sent.request
        self._deliver(node.id, to, lambda raft, now: raft.on_request(token, request, now))

    def answer(self, node: Node, token: Any, response: Response) -> None:
        if isinstance(token, str):
            is_done = response.error is ErrorCode.none
            self.counts[token if is_done else f"{token}: {response.error.name}"] += 1
            return
        if self._stories.is_hidden(node, response):
            return
        if self._lying.random() < self._liars.get(node.id, 0.0):
            response, kind = damaged(response, self._lying)
            self.counts[f"lie: {kind}"] += 1
            self.trace(node.id, f"lies: {kind}")
        to_id, incarnation, correlation_id = token
        to = self.nodes[to_id]
        if to.incarnation == incarnation:
            self._deliver(
                node.id, to, lambda raft, now: raft.on_response(correlation_id, response, now)
            )

    def _deliver(self, sender: int, to: Node, given: Input) -> None:
        if (sender, to.id) in self.cuts or self.chance.random() < self.loss:
            self.counts["messages lost"] += 1
            return
        self.counts["messages"] += 1
        slow = 20 if self.chance.random() < 0.02 else 1
        self.later(self.chance.expovariate(1 / self.delay_ms) * slow, to, given)

    def broke(self, node_id: int) -> None:
        """Tell the others that a node's connections broke, as most of them learn."""
        for other in self.nodes.values():
            if other.id != node_id and other.raft is not None and self.chance.random() < 0.7:
                self._break(other, node_id)

    def _break(self, node: Node, broken_id: int) -> None:
        delay = self.chance.expovariate(1 / self.delay_ms)
        self.later(delay, node, lambda raft, now: raft.on_broken_connection(broken_id, now))

    def flush_later(self, node: Node) -> None:
        log = node.log
        end, generation = log.end_offset, log.generation

        def durable(raft: Raft, now: int) -> list[Output]:
            if log.generation != generation:
                return []
            log.durable_offset = max(log.durable_offset, end)
            return raft.on_durable(log.durable_offset, now)

        self.later(self.chance.choice([0, 1, 5, 30]), node, durable)

    def wake(self, node: Node) -> None:
        """Call the node when its next timer ends."""
        assert node.raft is not None
        next_ms = node.raft.next_ms(node.now_ms())
        if next_ms is None:
            return
        at = max(node.world_ms(next_ms), self.now + 0.5)
        known = self._wakes.get(node.id)
        if known is None or at < known[0] or known[1] != node.incarnation or known[0] <= self.now:
            self._wakes[node.id] = (at, node.incarnation)
            self.later(at - self.now, node, lambda raft, now: raft.tick(now))

    def later(self, delay: float, node: Node, given: Input) -> None:
        """Pass an input to the running node, unless it dies before; a paused node gets the input when it wakes up."""
        incarnation = node.incarnation

        def event() -> None:
            if node.incarnation != incarnation or node.raft is None:
                return
            if node.paused_until > self.now:
                self.at(node.paused_until, event)
                return
            node.run(given(node.raft, node.now_ms()))

        self.at(self.now + delay, event)

    def trace(self, node_id: int, what: Any) -> None:
        self._trace.append((self.now, node_id, what))


def check_counts(counts: Counter[str], *, lies: bool = False) -> None:
    """A run proves little unless its faults happened."""
    needed = MUST_HAPPEN + (("answers discarded",) if lies else ())
    missing = [one for one in needed if not counts[one]]
    hold(not missing, f"the run had no {', '.join(missing)}: {dict(counts)}")
