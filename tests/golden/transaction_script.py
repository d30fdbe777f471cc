"""Play a story of one transactional id: commands in, the full trace out.

In: lines such as `alice begins`, `alice commits`. Out: each logged record, each answer. It is a miniature of the
broker's shell: it appends a decision's records and replays them. Markers are written when the story says so, and a new
coordinator loads the log. It never touches the shard's inner state.
"""

from stratalog.coordinators.transaction import decode_record, encode_record
from stratalog.coordinators.transactions import TransactionSettings, TransactionShard
from stratalog.errors import Rejected
from stratalog.statemachine import Now
from stratalog.wire.ids import TopicPartition

ID = "x"


class Story:
    """`run` a command: `<client> begins|adds|writes|commits|aborts …`, `markers`, `wait MS`, `restart`, `describe`."""

    def __init__(self):
        self.now_ms = 0
        self.log = []
        self.trace = []
        self.clients = {}
        self.next_id = 7
        self.shard = self.loaded()

    def loaded(self):
        shard = TransactionShard(
            TransactionSettings(timeout_ms_max=60_000, id_expiration_ms=600_000)
        )
        for key, value in self.log:
            shard.replay(*decode_record(key, value))
        return shard

    @property
    def now(self):
        return Now(self.now_ms, self.now_ms)

    def run(self, line):
        """Run one command; return its trace."""
        self.trace = []
        first, *words = line.split()
        try:
            if words and hasattr(self, words[0]):
                getattr(self, words[0])(first, words[1:])
            else:
                getattr(self, first)(words)
        except Rejected as error:
            self.trace.append(f"refused: {error.code.name.upper()}: {error}")
        return self.trace

    # Commands of clients

    def begins(self, name, words):
        """`two-phase`, `keeping`, `again` (naming the id and epoch that it has), `timeout=MS`."""
        timeouts = [word for word in words if word.startswith("timeout=")]
        decision = self.shard.initialise(
            ID,
            int(timeouts[0].partition("=")[2]) if timeouts else 10_000,
            self.clients[name] if "again" in words else None,
            self.fresh() if self.shard.wants_producer_id(ID) else None,
            self.now,
            two_phase="two-phase" in words,
            keep="keeping" in words,
        )
        found = self.take(decision)
        if found.error:
            self.trace.append(f"{name}: {found.error.name.upper()}")
            return
        self.clients[name] = (found.producer_id, found.producer_epoch)
        kept = f", has kept that of {text(found.ongoing)}" if found.ongoing[0] >= 0 else ""
        self.trace.append(f"{name} is producer {text(self.clients[name])}{kept}")

    def adds(self, name, words):
        self.take(self.shard.add_partitions(ID, self.clients[name], partitions(words), self.now))

    def writes(self, name, words):
        """A leader adds the partitions that a producer of the second protocol writes to."""
        added = partitions(words)
        self.take(
            self.shard.add_partitions(ID, self.clients[name], added, self.now, implicitly=True)
        )

    def verifies(self, name, words):
        (partition,) = partitions(words)
        is_in = self.take(self.shard.verify(ID, self.clients[name], partition))
        self.trace.append(f"{words[0]} is {'' if is_in else 'not '}in the transaction")

    def commits(self, name, words):
        self.end(name, words, commit=True)

    def aborts(self, name, words):
        self.end(name, words, commit=False)

    def end(self, name, words, *, commit):
        """`raising`: in the second protocol."""
        if "raising" not in words:
            self.take(self.shard.end(ID, self.clients[name], self.now, commit=commit))
            self.trace.append(f"{name}: NONE")
            return
        fresh = self.fresh() if self.shard.is_exhausted(ID) else None
        decision = self.shard.end_raised(ID, self.clients[name], fresh, self.now, commit=commit)
        answer = self.take(decision)
        if "lost" in words:
            self.trace.append("the answer is lost")
            return
        self.clients[name] = answer
        self.trace.append(f"{name} is producer {text(answer)}")

    # Commands of the coordinator

    def markers(self, _words):
        """All markers of prepared ends are written."""
        for key, ended in list(self.shard.prepared()):
            result = "commit" if ended.state.label == "PrepareCommit" else "abort"
            producer = text((ended.producer_id, ended.producer_epoch))
            places = " ".join(sorted(f"{one.topic}-{one.partition}" for one in ended.partitions))
            self.trace.append(f"marker: {result} of {producer} in {places or 'nothing'}")
            self.take(self.shard.complete(key, ended, self.now))

    def wait(self, words):
        self.now_ms += int(words[0])
        fresh = [self.fresh() for _ in range(self.shard.wanted_by_tick(self.now))]
        self.take(self.shard.tick(fresh, self.now))

    def restart(self, _words):
        self.shard = self.loaded()

    def describe(self, _words):
        self.trace.append(shown(self.take(self.shard.describe(ID))))

    def exhaust(self, _words):
        """Let the epochs run out, by clients that begin one after the other."""
        while not self.clients.get("many", (0, 0))[1] >= 2**15 - 3:
            self.begins("many", [])
            self.trace.clear()
        self.trace.append(f"many is producer {text(self.clients['many'])}")
        self.log = self.log[-1:]

    # Parts

    def fresh(self):
        self.next_id += 1
        return self.next_id - 1

    def take(self, decision):
        for record in decision.records:
            self.log.append(encode_record(record))
            name, one = record
            assert name == ID
            self.trace.append(f"log: {'expired' if one is None else shown(one)}")
            self.shard.replay(*record)
        return decision.answer


def partitions(words):
    return frozenset(TopicPartition("t", int(word.removeprefix("t-"))) for word in words)


def text(producer):
    return "{}/{}".format(*producer)


def shown(one):
    """One line with all that a transaction's record says."""
    parts = [one.state.label, f"producer {text((one.producer_id, one.producer_epoch))}"]
    if one.next_id >= 0:
        parts.append(f"next {text((one.next_id, one.next_epoch))}")
    if one.previous_id >= 0:
        parts.append(f"previous {one.previous_id}")
    if one.partitions:
        parts.append(" ".join(sorted(f"t-{index}" for _, index in one.partitions)))
    if one.timeout_ms != 10_000:
        parts.append(f"time-out {one.timeout_ms}")
    if one.version:
        parts.append(f"protocol {one.version}")
    if one.started_ms >= 0:
        parts.append(f"since {one.started_ms}")
    return ", ".join(parts)
