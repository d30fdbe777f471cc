"""Goal: incremental fetch answers give a client the same state as complete answers.

Method: random clients open, change, leave and lose sessions, while partitions move, fail and recover. A model holds
what each client wants and what its answers said.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.golden.group_script import CountingEntropy

from stratalog.errors import ErrorCode, Rejected
from stratalog.replication.fetch_sessions import EVICTION_MS, LAST_FETCH, NEW_SESSION, FetchSessions
from stratalog.wire.messages.fetch import PartitionData

SLOTS = 3
PARTITIONS_MAX = 9
CLIENTS = range(5)
KEYS = [(topic, index) for topic in "ab" for index in range(3)]

clients = st.sampled_from(CLIENTS)
keys = st.sets(st.sampled_from(KEYS), max_size=4)


class Client:
    def __init__(self):
        self.session_id = 0
        self.epoch = NEW_SESSION
        self.wants = {}
        self.known = {}
        self.news = {}
        self.forgets = set()


class Crowd(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.now_ms = 0
        self.sessions = FetchSessions(SLOTS, CountingEntropy(), partitions_max=PARTITIONS_MAX)
        self.clients = [Client() for _ in CLIENTS]
        self.partitions = {key: [0, 0, ErrorCode.none, False] for key in KEYS}
        self.count = 0

    @rule(
        key=st.sampled_from(KEYS),
        end=st.integers(0, 2),
        start=st.integers(0, 2),
        error=st.sampled_from((ErrorCode.none, ErrorCode.none, ErrorCode.kafka_storage_error)),
        records=st.booleans(),
    )
    def move(self, key, end, start, error, records):
        self.partitions[key] = [end, start, error, records and error is ErrorCode.none]

    @rule(client=clients, add=keys, remove=keys)
    def change(self, client, add, remove):
        client = self.clients[client]
        for key in add - remove:
            self.count += 1
            client.wants[key] = client.news[key] = self.count
            client.forgets.discard(key)
        for key in remove & client.wants.keys():
            del client.wants[key]
            client.news.pop(key, None)
            client.forgets.add(key)

    @rule(delay_ms=st.sampled_from((1, 1000, EVICTION_MS, EVICTION_MS + 1)))
    def wait(self, delay_ms):
        self.now_ms += delay_ms

    @rule(client=clients)
    def fetch(self, client):
        client = self.clients[client]
        begins = client.epoch == NEW_SESSION
        asked = client.wants if begins else client.news
        try:
            fetch = self.sessions.begin(
                client.session_id,
                client.epoch,
                tuple(asked.items()),
                () if begins else client.forgets,
                by_id=False,
                now_ms=self.now_ms,
            )
        except Rejected as error:
            assert not begins
            assert error.code is ErrorCode.fetch_session_id_not_found
            self.restart(client)
            return
        # A partition that leaves and returns between two fetches never left the session.
        for key in client.forgets:
            client.known.pop(key, None)
        client.news, client.forgets = {}, set()
        assert dict(fetch.requested) == client.wants
        found = [self.found(key) for key, _ in fetch.requested]
        answered = fetch.answer(found, self.now_ms)
        assert answered.error is ErrorCode.none
        changed = {fetch.requested[place][0]: found[place] for place in answered.places}
        if begins:
            assert changed.keys() == client.wants.keys()
        else:
            self.check_news(client, changed)
        client.known.update(changed)
        self.check_order(fetch, changed, answered.session_id)
        client.session_id = answered.session_id
        client.epoch = NEW_SESSION if answered.session_id == 0 else client.epoch + 1
        if client.session_id == 0:
            self.restart(client)

    def check_news(self, client, changed):
        for key in client.wants:
            now, before = self.found(key), client.known.get(key)
            if key in changed:
                assert now != before or now.records or now.error_code != ErrorCode.none
            else:
                assert now == before

    def check_order(self, fetch, changed, session_id):
        """A partition that gave records moves to the end of the session's order."""
        session = self.sessions._sessions.get(session_id)
        if session is None or fetch._session is not session:
            return
        order = list(session.partitions)
        full = [key for key in order if key in changed and changed[key].records]
        assert order[len(order) - len(full) :] == full

    @precondition(lambda self: any(one.session_id for one in self.clients))
    @rule(client=clients, off=st.sampled_from((-1, 1, 5)))
    def out_of_step(self, client, off):
        """A fetch with a wrong session epoch gets an error; its session does not change."""
        client = self.clients[client]
        if client.session_id not in self.sessions._sessions or client.epoch + off <= 0:
            return
        try:
            self.sessions.begin(
                client.session_id, client.epoch + off, (), KEYS, by_id=False, now_ms=self.now_ms
            )
        except Rejected as error:
            assert error.code is ErrorCode.invalid_fetch_session_epoch
        else:
            raise AssertionError("a client out of step was served")

    @rule(client=clients)
    def close(self, client):
        client = self.clients[client]
        fetch = self.sessions.begin(
            client.session_id, LAST_FETCH, (), (), by_id=False, now_ms=self.now_ms
        )
        assert fetch.answer([], self.now_ms).session_id == 0
        assert client.session_id not in self.sessions._sessions
        self.restart(client)

    @rule(client=clients)
    def crash(self, client):
        """The client loses its session without closing it."""
        self.restart(self.clients[client])
        self.clients[client].session_id = 0

    def restart(self, client):
        client.epoch, client.news, client.forgets, client.known = NEW_SESSION, {}, set(), {}

    def found(self, key):
        end, start, error, records = self.partitions[key]
        if error is not ErrorCode.none:
            end, start, records = -1, -1, False
        return PartitionData(
            partition_index=key[1],
            error_code=error,
            high_watermark=end,
            log_start_offset=start,
            aborted_transactions=None,
            records=[b"r"] if records else (),
        )

    @invariant()
    def the_sessions_stay_within_their_limits(self):
        held = self.sessions._sessions.values()
        assert len(self.sessions) <= SLOTS
        assert self.sessions.partitions == sum(len(one.partitions) for one in held)
        assert self.sessions.partitions <= PARTITIONS_MAX
        used = [one.used_ms for one in held]
        assert used == sorted(used)


TestCrowd = Crowd.TestCase
TestCrowd.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
