"""A quorum, message by message. In: commands. Out: the outputs of its members, one line each.

voters 1 2 3    members start with empty logs; the time is 0 ms
after 1500      so many ms pass: timers end, each at its time
deliver         the messages on their way arrive, in order; `deliver 1>2` only those from 1 to 2
lose 1>2        the messages from 1 to 2 are lost
run             messages arrive, and those they lead to, until none is on its way; no time passes
write 2         leaders append so many records
break 1>2       1 learns that its connection to 2 broke
crash 1         1 dies, with what it had received; `start 1` starts it again, on its log
stop 1          1 is shut down in order
snapshot 1      1 puts a snapshot in the place of its committed records
"""

from collections import Counter
from random import Random

from tests.raft.checks import Checks
from tests.raft.node import Node
from tests.raft.shown import shown

from stratalog.quorum.states import Timeouts
from stratalog.quorum.voters import Voter, VoterSet

ROUNDS_MAX = 30


class Story:
    """The world of the nodes: messages arrive on command, and appends are durable at once."""

    lies = False

    def __init__(self):
        self.now = 0
        self.timeouts = Timeouts()
        self.checks = Checks()
        self.counts = Counter()
        self.nodes = {}
        self.lines = []
        self.on_their_way = []
        self.due = []

    def run(self, command):
        self.lines = []
        verb, *words = command.split()
        getattr(self, f"_{verb}")(*words)
        self._report()
        return self.lines

    def _voters(self, *ids):
        voters = VoterSet.of(Voter(int(one)) for one in ids)
        for one in voters.ids:
            self.nodes[one] = node = Node(self, one, voters, Random(0))
            node.rate, node.skew_ms = 1, 0
            node.uniform = lambda low, high, one=one: low + (high - low) * one / 10
            node.start()

    def _after(self, ms):
        end = self.now + int(ms)
        while True:
            nodes = [(n.raft.next_ms(self.now), n.id) for n in self.nodes.values() if n.raft]
            timers = [one for one in nodes if one[0] is not None]
            at, one = min(timers, default=(end + 1, 0))
            if at > end:
                break
            self.now = at
            node = self.nodes[one]
            node.run(node.raft.tick(at))
            self._report()
        self.now = end

    def _deliver(self, *pairs):
        wanted = [tuple(map(int, one.split(">"))) for one in pairs]
        ready = [one for one in self.on_their_way if not pairs or one[:2] in wanted]
        self.on_their_way = [one for one in self.on_their_way if one not in ready]
        for _, to, incarnation, given in ready:
            self._give(self.nodes[to], incarnation, given)

    def _lose(self, pair):
        lost = tuple(map(int, pair.split(">")))
        self.on_their_way = [one for one in self.on_their_way if one[:2] != lost]

    def _run(self):
        for _ in range(ROUNDS_MAX):
            self._deliver()
            if not self.on_their_way:
                return
        self.lines.append("...")

    def _write(self, count):
        for node in self.nodes.values():
            for number in range(int(count)):
                node.write(b"%d" % number)

    def _break(self, pair):
        one, other = map(int, pair.split(">"))
        node = self.nodes[one]
        node.run(node.raft.on_broken_connection(other, self.now))

    def _crash(self, one):
        self.nodes[int(one)].crash()

    def _start(self, one):
        self.nodes[int(one)].start()

    def _stop(self, one):
        node = self.nodes[int(one)]
        node.run(node.raft.stop(self.now))

    def _snapshot(self, one):
        self.nodes[int(one)].chance = Random(2)
        self.nodes[int(one)].take_snapshot()

    # The world of the nodes

    def voter_logs(self):
        return [node.log for node in self.nodes.values()]

    def trace(self, node_id, output):
        self.lines.append(f"{self.now:>5} {node_id}: {shown(output)}")

    def request(self, node, sent):
        token = (node.id, node.incarnation, sent.correlation_id)
        to = self.nodes[sent.to]
        given = lambda raft, now: raft.on_request(token, sent.request, now)  # noqa: E731
        self.on_their_way.append((node.id, to.id, to.incarnation, given))

    def answer(self, node, token, response):
        to, incarnation, correlation_id = token
        given = lambda raft, now: raft.on_response(correlation_id, response, now)  # noqa: E731
        self.on_their_way.append((node.id, to, incarnation, given))

    def flush_later(self, node):
        def durable(raft, now):
            node.log.durable_offset = node.log.end_offset
            return raft.on_durable(node.log.end_offset, now)

        self.later(0, node, durable)

    def later(self, _delay, node, given):
        self.due.append((node, node.incarnation, given))

    def wake(self, node):
        """Timers end in `after` only."""

    def elected(self, node):
        """No fault hits a new leader."""

    def broke(self, node_id):
        """Others learn of a broken connection in `break` only."""

    def _report(self):
        """Report to nodes that their writes are durable."""
        while self.due:
            self._give(*self.due.pop(0))

    def _give(self, node, incarnation, given):
        if node.raft is not None and node.incarnation == incarnation:
            node.run(given(node.raft, self.now))
            self._report()
