"""The state machine of transactional ids: each request in each state, time, and a new leader."""

import pytest

from stratalog.coordinators.transaction import (
    Transaction,
    bytes_max,
    decode_record,
    encode_record,
)
from stratalog.coordinators.transactions import State, TransactionSettings, TransactionShard
from stratalog.errors import ErrorCode, Rejected
from stratalog.statemachine import Now
from stratalog.wire.ids import TopicPartition
from stratalog.wire.internal.transactions import (
    PartitionsSchema,
    TransactionLogValue,
    encode_key,
    encode_value,
)

FRESH = 900
LAST = 2**15 - 2
PARTS = frozenset({TopicPartition("t", 0), TopicPartition("t", 2), TopicPartition("u", 1)})


class Coordinator:
    """A shard with its log; each decision is applied at once, as the runtime does."""

    def __init__(self, **settings):
        self.settings = TransactionSettings(**settings)
        self.shard = TransactionShard(self.settings)
        self.log = []
        self.prepared = []
        self.now_ms = 1_000

    def decide(self, name, *arguments, **options):
        decision = getattr(self.shard, name)(*arguments, Now(0, self.now_ms), **options)
        for record in decision.records:
            encoded = encode_record(record)
            assert decode_record(*encoded) == record, "a new leader has the same state"
            assert sum(len(one or b"") for one in encoded) < bytes_max(record)
            self.log.append(encoded)
            ended = self.shard.replay(*record)
            self.prepared += [] if ended is None else [ended]
        return decision.answer

    def refusal(self, name, *arguments, **options):
        with pytest.raises(Rejected) as caught:
            self.decide(name, *arguments, **options)
        return caught.value.code

    def init(self, expected=None, *, timeout_ms=60_000, fresh=FRESH):
        found = self.decide("initialise", "x", timeout_ms, expected, fresh)
        return found.error or (found.producer_id, found.producer_epoch)

    def begin(self, producer=(FRESH, 0)):
        return self.decide("add_partitions", "x", producer, PARTS)

    def tick(self, *fresh):
        self.decide("tick", fresh)

    def complete(self):
        (ended,) = self.prepared
        self.prepared.clear()
        self.decide("complete", *ended)
        return ended[1]

    def end(self, producer=(FRESH, 0), *, commit=True):
        self.decide("end", "x", producer, commit=commit)
        return self.complete()

    def restart(self):
        """A new leader replays the log."""
        self.shard = TransactionShard(self.settings)
        for key, value in self.log:
            self.shard.replay(*decode_record(key, value))


def started():
    one = Coordinator()
    assert one.init() == (FRESH, 0)
    one.begin()
    return one


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_is_prepared_with_its_partitions_and_then_complete(commit):
    one = started()
    done = State.PREPARE_COMMIT if commit else State.PREPARE_ABORT
    one.decide("end", "x", (FRESH, 0), commit=commit)
    assert one.refusal("end", "x", (FRESH, 0), commit=commit) is ErrorCode.concurrent_transactions
    assert one.refusal("end", "x", (FRESH, 0), commit=not commit) is ErrorCode.invalid_txn_state
    assert one.refusal("add_partitions", "x", (FRESH, 0), PARTS) is (
        ErrorCode.concurrent_transactions
    )
    assert one.refusal("initialise", "x", 1, None, None) is ErrorCode.concurrent_transactions
    one.restart()
    assert list(one.shard.prepared()) == one.prepared, "a new leader writes the markers"
    ended = one.complete()
    assert (ended.state, ended.partitions) == (done, PARTS)
    assert not list(one.shard.prepared())
    one.decide("end", "x", (FRESH, 0), commit=commit)
    assert not one.prepared, "a repeated request has the first one's answer"
    assert one.refusal("end", "x", (FRESH, 0), commit=not commit) is ErrorCode.invalid_txn_state
    one.begin()
    assert one.end().partitions == PARTS, "the next one begins anew"


def test_a_producer_that_begins_again_fences_the_one_before():
    one = Coordinator()
    one.init()
    assert one.init(fresh=None) == (FRESH, 1)
    assert one.refusal("add_partitions", "x", (FRESH, 0), PARTS) is ErrorCode.producer_fenced
    assert one.refusal("end", "x", (FRESH, 0), commit=True) is ErrorCode.producer_fenced
    other = ErrorCode.invalid_producer_id_mapping
    assert one.refusal("add_partitions", "x", (FRESH + 1, 1), PARTS) is other
    assert one.refusal("end", "y", (FRESH, 0), commit=True) is other
    assert one.refusal("end", "x", (FRESH, 1), commit=True) is ErrorCode.invalid_txn_state


def test_an_open_transaction_is_aborted_with_a_higher_epoch_before_a_producer_begins():
    one = started()
    assert one.init() is ErrorCode.concurrent_transactions
    ended = one.complete()
    assert (ended.state, ended.producer_epoch) == (State.PREPARE_ABORT, 1)
    assert one.init() == (FRESH, 2)


def test_a_producer_that_says_its_epoch_gets_the_next_one_and_may_repeat_that():
    one = Coordinator()
    one.init()
    assert one.init((FRESH, 0)) == (FRESH, 1)
    assert one.init((FRESH, 0)) == (FRESH, 1), "the answer was lost"
    assert one.init((FRESH, 1)) == (FRESH, 2)
    assert one.refusal("initialise", "x", 1, (FRESH, 0), None) is ErrorCode.producer_fenced
    assert one.refusal("initialise", "x", 1, (7, 2), None) is ErrorCode.producer_fenced


def test_a_used_up_epoch_brings_another_producer_id():
    one = Coordinator()
    one.init()
    for epoch in range(1, LAST + 1):
        assert not one.shard.wants_producer_id("x")
        one.init((FRESH, epoch - 1), fresh=None)
    assert one.shard.wants_producer_id("x")
    assert one.refusal("initialise", "x", 1, None, None) is ErrorCode.concurrent_transactions
    assert one.init((FRESH, LAST), fresh=901) == (901, 0)
    assert one.init((FRESH, LAST)) == (901, 0), "the answer was lost"


def test_a_transaction_that_is_open_for_too_long_is_aborted_and_its_producer_fenced():
    one = started()
    one.now_ms += 60_000
    one.tick()
    assert not one.prepared
    one.now_ms += 1
    one.tick()
    assert one.complete().state is State.PREPARE_ABORT
    assert one.refusal("end", "x", (FRESH, 0), commit=True) is ErrorCode.producer_fenced
    one.tick()
    assert not one.prepared


def test_an_unused_id_expires_and_an_open_transaction_does_not():
    one = Coordinator(id_expiration_ms=100, timeout_ms_max=1_000_000)
    one.init(timeout_ms=1_000_000)
    one.begin()
    one.now_ms += 500
    one.tick()
    assert not one.shard.wants_producer_id("x")
    one.end()
    one.now_ms += 99
    one.tick()
    assert not one.shard.wants_producer_id("x")
    one.now_ms += 1
    one.tick()
    assert one.shard.wants_producer_id("x")
    one.restart()
    assert one.shard.wants_producer_id("x"), "a tombstone says so"


def test_only_a_partition_of_an_open_transaction_is_verified():
    one = started()
    has, other = TopicPartition("t", 2), TopicPartition("t", 1)

    def verify(partition):
        return one.shard.verify("x", (FRESH, 0), partition).answer

    assert verify(has)
    assert not verify(other)
    one.end()
    assert not verify(has)


def test_a_time_out_must_be_within_the_limit():
    one = Coordinator(timeout_ms_max=900)
    for timeout_ms in (0, -1, 901):
        code = one.refusal("initialise", "x", timeout_ms, None, FRESH)
        assert code is ErrorCode.invalid_transaction_timeout
    assert one.init(timeout_ms=900) == (FRESH, 0)


def test_records_have_kafkas_bytes():
    one = started()
    (key, empty), (_, ongoing) = one.log
    assert key.hex() == "0000" + "0001" + b"x".hex()
    head = "0000" + f"{FRESH:016x}" + "0000" + f"{60_000:08x}"
    assert empty.hex() == head + "00" + "ffffffff" + f"{1000:016x}" + "ff" * 8
    parts = "00000002" + "0001" + b"t".hex() + "00000002" + "0000000000000002"
    parts += "0001" + b"u".hex() + "00000001" + "00000001"
    assert ongoing.hex() == head + "01" + parts + f"{1000:016x}" * 2


@pytest.mark.parametrize("version", [0, 2])
def test_a_transaction_that_kafka_left_open_is_ended(version):
    """Kafka writes the producer's own id as the previous one, in both protocols."""
    left = TransactionLogValue(
        producer_id=FRESH,
        producer_epoch=0,
        transaction_timeout_ms=60_000,
        transaction_status=State.ONGOING,
        transaction_partitions=(PartitionsSchema(topic="t", partition_ids=(0,)),),
        transaction_last_update_timestamp_ms=1,
        transaction_start_timestamp_ms=1,
        previous_producer_id=FRESH,
        client_transaction_version=version,
    )
    assert encode_value(left).startswith(b"\x00\x01")
    one = Coordinator()
    one.shard.replay(*decode_record(encode_key("x"), encode_value(left)))
    if version:
        assert one.decide("end_raised", "x", (FRESH, 0), None, commit=True) == (FRESH, 1)
        assert one.complete().partitions == {TopicPartition("t", 0)}
    else:
        assert one.end().partitions == {TopicPartition("t", 0)}
    one.restart()
    assert one.shard.describe("x").answer.state is State.COMPLETE_COMMIT


def raised():
    """The state of an open transaction of the second protocol."""
    one = Coordinator()
    assert one.init() == (FRESH, 0)
    one.decide("add_partitions", "x", (FRESH, 0), PARTS, implicitly=True)
    return one


@pytest.mark.parametrize("commit", [True, False])
def test_an_end_of_the_second_protocol_raises_the_epoch_and_may_be_repeated(commit):
    one = raised()
    ask = ("end_raised", "x", (FRESH, 0), None)
    assert one.decide(*ask, commit=commit) == (FRESH, 1)
    assert one.refusal(*ask, commit=commit) is ErrorCode.concurrent_transactions
    assert one.refusal(*ask, commit=not commit) is ErrorCode.invalid_txn_state
    one.restart()
    ended = one.complete()
    assert (ended.producer_epoch, ended.version, ended.partitions) == (1, 2, PARTS)
    assert one.decide(*ask, commit=commit) == (FRESH, 1)
    assert one.refusal(*ask, commit=not commit) is ErrorCode.invalid_txn_state
    late = one.refusal("add_partitions", "x", (FRESH, 0), PARTS, implicitly=True)
    assert late is ErrorCode.producer_fenced
    one.decide("add_partitions", "x", (FRESH, 1), PARTS, implicitly=True)
    assert one.refusal(*ask, commit=commit) is ErrorCode.producer_fenced


@pytest.mark.parametrize("epoch", [0, LAST])
def test_the_next_transaction_waits_for_the_markers_of_the_last_one(epoch):
    """The answer to the end has the next epoch, and comes before the markers."""
    one = raised()
    for number in range(epoch):
        one.decide("end_raised", "x", (FRESH, number), None, commit=False)
        one.complete()
    one.decide("add_partitions", "x", (FRESH, epoch), PARTS, implicitly=True)
    renewed = one.decide("end_raised", "x", (FRESH, epoch), 901, commit=True)
    assert renewed == ((901, 0) if epoch else (FRESH, 1))
    asks = [("end_raised", "x", renewed, 902), ("add_partitions", "x", renewed, PARTS)]
    codes = [one.refusal(*asks[0], commit=False), one.refusal(*asks[1], implicitly=True)]
    assert codes == [ErrorCode.concurrent_transactions] * 2
    one.complete()
    assert one.decide(*asks[0], commit=False) == (renewed[0], renewed[1] + 1)


def test_an_abort_of_the_second_protocol_needs_no_partition_and_a_commit_does():
    one = Coordinator()
    one.init()
    nothing = one.refusal("end_raised", "x", (FRESH, 0), None, commit=True)
    assert nothing is ErrorCode.invalid_txn_state
    for epoch in range(3):
        renewed = one.decide("end_raised", "x", (FRESH, epoch), None, commit=False)
        assert renewed == (FRESH, epoch + 1)
        assert one.complete().partitions == frozenset()


def test_the_last_epoch_ends_with_another_producer_id():
    one = raised()
    for epoch in range(LAST):
        one.decide("end_raised", "x", (FRESH, epoch), None, commit=False)
        one.complete()
        one.log.clear()
    ask = ("end_raised", "x", (FRESH, LAST))
    assert one.shard.is_exhausted("x")
    one.decide("add_partitions", "x", (FRESH, LAST), PARTS, implicitly=True)
    assert one.refusal(*ask, None, commit=True) is ErrorCode.concurrent_transactions
    assert one.decide(*ask, 901, commit=True) == (901, 0)
    one.restart()
    ended = one.complete()
    assert (ended.producer_id, ended.producer_epoch) == (FRESH, LAST + 1)
    one.restart()
    assert one.decide(*ask, 902, commit=True) == (901, 0), "the answer was lost"
    other = one.refusal("end_raised", "x", (FRESH, LAST - 1), None, commit=True)
    assert other is ErrorCode.invalid_producer_id_mapping
    one.decide("add_partitions", "x", (901, 0), PARTS, implicitly=True)


def test_a_fenced_producer_of_the_second_protocol_may_repeat_its_abort():
    """As in Apache Kafka 4.3 (KAFKA-19367): it goes on, until the newer producer begins."""
    one = Coordinator()
    one.init()
    one.decide("add_partitions", "x", (FRESH, 0), PARTS, implicitly=True)
    assert one.init() is ErrorCode.concurrent_transactions
    assert one.prepared[0][1].producer_epoch == 1
    ask = ("end_raised", "x", (FRESH, 0), None)
    assert one.refusal(*ask, commit=False) is ErrorCode.concurrent_transactions
    one.complete()
    assert one.refusal(*ask, commit=True) is ErrorCode.invalid_txn_state
    assert one.decide(*ask, commit=False) == (FRESH, 1)
    assert one.init() == (FRESH, 2)
    assert one.refusal(*ask, commit=False) is ErrorCode.producer_fenced


def at_epoch(epoch, *, implicitly=True):
    """The state of an open transaction of a producer with this epoch, as the log of a release before has it."""
    one = Coordinator()
    empty = Transaction(FRESH, epoch, 60_000, State.EMPTY, frozenset(), 1_000)
    one.log.append(encode_record(("x", empty)))
    one.restart()
    one.decide("add_partitions", "x", (FRESH, epoch), PARTS, implicitly=implicitly)
    return one


def overdue(one, *fresh):
    one.now_ms += 61_000
    assert one.shard.wanted_by_tick(Now(0, one.now_ms)) == len(fresh)
    one.tick(*fresh)


@pytest.mark.parametrize("by", ["time", "a newer producer"])
@pytest.mark.parametrize("is_moved", [False, True])
def test_a_fence_at_the_last_epoch_brings_another_producer_id(by, is_moved):
    """KAFKA-20090: the late end has its answer, and the producer goes on with the new id."""
    one = at_epoch(LAST)
    ask = ("end_raised", "x", (FRESH, LAST), 903)
    if by == "time":
        one.now_ms += 61_000
        assert one.shard.wanted_by_tick(Now(0, one.now_ms)) == 1
        one.tick()
        assert not one.prepared, "it waits for an id"
        one.tick(901)
    else:
        assert one.shard.wants_producer_id("x")
        assert one.refusal("initialise", "x", 1, None, None) is ErrorCode.concurrent_transactions
        assert one.init(fresh=901) is ErrorCode.concurrent_transactions
    assert one.refusal(*ask, commit=False) is ErrorCode.concurrent_transactions
    waits = one.refusal("initialise", "x", 1, (FRESH, LAST), 902)
    assert waits is ErrorCode.concurrent_transactions
    ended = one.complete()
    assert (ended.state, ended.producer_id, ended.producer_epoch) == (
        State.PREPARE_ABORT,
        FRESH,
        LAST + 1,
    )
    if is_moved:
        one.restart()
    assert one.refusal(*ask, commit=True) is ErrorCode.invalid_txn_state
    assert one.decide(*ask, commit=False) == (901, 0)
    late = one.refusal("add_partitions", "x", (FRESH, LAST), PARTS, implicitly=True)
    assert late is ErrorCode.invalid_producer_id_mapping
    assert one.init((FRESH, LAST), fresh=None) == (901, 0)
    assert one.init(fresh=None) == (901, 1)
    assert one.refusal("initialise", "x", 1, (FRESH, LAST), None) is ErrorCode.producer_fenced


@pytest.mark.parametrize("implicitly", [False, True])
def test_a_fence_before_the_last_epoch_keeps_the_producer_id(implicitly):
    one = at_epoch(LAST - 1, implicitly=implicitly)
    overdue(one)
    assert one.complete().producer_epoch == LAST
    assert one.init((FRESH, LAST - 1), fresh=None) == (FRESH, LAST)
    assert one.init((FRESH, LAST), fresh=901) == (901, 0)


def test_a_fence_of_the_first_protocol_at_the_last_epoch_uses_it_up():
    one = at_epoch(LAST, implicitly=False)
    overdue(one)
    assert one.complete().producer_epoch == LAST + 1
    assert one.refusal("end", "x", (FRESH, LAST), commit=False) is ErrorCode.producer_fenced
    assert one.init((FRESH, LAST), fresh=901) == (901, 0), "no client gets the epoch of the fence"
    assert one.init((FRESH, LAST), fresh=902) == (901, 0), "the answer was lost"


@pytest.mark.parametrize("how", ["time", "a newer producer", "its own abort"])
def test_a_transaction_that_was_written_with_the_fences_epoch_ends(how):
    """A release before this one gave that epoch to a client, whose transactions no marker ended."""
    one = at_epoch(LAST + 1)
    mine = (FRESH, LAST + 1)
    if how == "time":
        overdue(one, 901)
    elif how == "a newer producer":
        assert one.init(fresh=901) is ErrorCode.concurrent_transactions
    else:
        assert one.refusal("end_raised", "x", mine, 901, commit=True) is ErrorCode.producer_fenced
        assert one.decide("end_raised", "x", mine, 901, commit=False) == (901, 0)
    ended = one.complete()
    assert (ended.producer_epoch, ended.version, ended.partitions) == (LAST + 1, 2, PARTS)
    assert one.shard.describe("x").answer.client == (901, 0)


def test_an_end_that_a_release_before_decided_with_the_last_epoch_is_completed():
    one = Coordinator()
    left = Transaction(FRESH, LAST + 1, 60_000, State.PREPARE_ABORT, PARTS, 1_000, 1_000, 2)
    one.log.append(encode_record(("x", left)))
    one.restart()
    one.prepared += one.shard.prepared()
    assert one.complete() == left
    assert one.init((FRESH, LAST + 1), fresh=901) == (901, 0)


@pytest.mark.parametrize("epoch", [LAST - 1, LAST, LAST + 1])
def test_the_fence_of_a_kept_transaction_has_an_epoch_at_every_end(epoch):
    one = at_epoch(epoch)
    kept = one.decide("initialise", "x", 60_000, None, 901, two_phase=True, keep=True)
    client = (kept.producer_id, kept.producer_epoch)
    assert client == ((FRESH, LAST) if epoch < LAST else (901, 0))
    assert one.init(fresh=902) is ErrorCode.concurrent_transactions
    ended = one.complete()
    assert ended.producer_epoch == min(epoch + 1, LAST + 1)
    assert one.refusal("end_raised", "x", client, 903, commit=False) is ErrorCode.producer_fenced
    assert one.init(fresh=904) == ((904, 0) if epoch < LAST else (901, 3))


@pytest.mark.parametrize("implicitly", [False, True])
def test_a_producer_goes_on_after_the_time_out_of_its_transaction(implicitly):
    """KIP-588: the time-out raises the epoch, and the producer that has the one before gets it."""
    one = Coordinator()
    one.init()
    one.decide("add_partitions", "x", (FRESH, 0), PARTS, implicitly=implicitly)
    one.now_ms += 61_000
    one.tick()
    one.complete()
    assert one.init((FRESH, 0)) == (FRESH, 1)
    assert one.init((FRESH, 1)) == (FRESH, 2)
    assert one.refusal("initialise", "x", 60_000, (FRESH, 0), None) is ErrorCode.producer_fenced


def test_a_producer_whose_answer_was_lost_says_its_epoch_and_gets_the_raised_one():
    one = raised()
    assert one.decide("end_raised", "x", (FRESH, 0), None, commit=True) == (FRESH, 1)
    one.complete()
    assert one.init((FRESH, 0)) == (FRESH, 1)


def keep(one, fresh=None, **options):
    """InitProducerId that keeps the open transaction (KIP-939)."""
    return one.decide("initialise", "x", 60_000, None, fresh, two_phase=True, keep=True, **options)


def prepared_by_client(implicitly, epoch=0):
    """The state of an open transaction without a time-out."""
    one = Coordinator()
    one.decide("initialise", "x", 60_000, None, FRESH, two_phase=True)
    for number in range(epoch):
        one.decide("end_raised", "x", (FRESH, number), None, commit=False)
        one.complete()
        one.log.clear()
    one.decide("add_partitions", "x", (FRESH, epoch), PARTS, implicitly=implicitly)
    return one


def test_no_time_out_aborts_a_transaction_of_a_two_phase_commit():
    one = prepared_by_client(implicitly=False)
    one.restart()
    one.now_ms += 10**10
    one.tick()
    assert not one.prepared
    one.end()
    assert one.init() == (FRESH, 1)


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("end", ["end", "end_raised"])
def test_a_new_client_keeps_a_transaction_and_ends_it(end, commit):
    is_raised = end == "end_raised"
    one = prepared_by_client(implicitly=is_raised)
    words = [None] if is_raised else []
    for epoch in (1, 2):
        found = keep(one)
        assert (found.producer_id, found.producer_epoch, found.ongoing) == (
            FRESH,
            epoch,
            (FRESH, 0),
        )
        assert one.refusal(end, "x", (FRESH, epoch - 1), *words, commit=commit) is (
            ErrorCode.producer_fenced
        )
        one.restart()
    assert one.refusal("add_partitions", "x", (FRESH, 2), PARTS) is ErrorCode.invalid_txn_state
    assert one.refusal("add_partitions", "x", (FRESH, 3), PARTS) is ErrorCode.producer_fenced
    assert one.shard.verify("x", (FRESH, 0), TopicPartition("t", 0)).answer, (
        "its batches may be late"
    )
    one.decide(end, "x", (FRESH, 2), *words, commit=commit)
    assert one.refusal(end, "x", (FRESH, 2), *words, commit=commit) is (
        ErrorCode.concurrent_transactions
    )
    one.restart()
    ended = one.complete()
    assert (ended.producer_id, ended.producer_epoch) == (FRESH, is_raised), "the markers'"
    one.restart()
    answer = one.decide(end, "x", (FRESH, 2), *words, commit=commit)
    assert answer == ((FRESH, 3) if is_raised else None), "a repeat has the first one's answer"
    assert one.init() == (FRESH, 4 if is_raised else 3)


def test_a_client_that_does_not_keep_the_transaction_aborts_it_and_fences_those_before():
    one = prepared_by_client(implicitly=True)
    keep(one)
    assert one.init() is ErrorCode.concurrent_transactions
    assert one.refusal("end_raised", "x", (FRESH, 1), None, commit=False) is (
        ErrorCode.producer_fenced
    )
    ended = one.complete()
    assert (ended.state, ended.producer_epoch) == (State.PREPARE_ABORT, 1)
    assert one.refusal("end_raised", "x", (FRESH, 1), None, commit=False) is (
        ErrorCode.producer_fenced
    )
    assert one.init() == (FRESH, 4)


def test_nothing_is_kept_where_nothing_is_open():
    one = Coordinator()
    assert keep(one, FRESH).ongoing == (-1, -1)
    assert one.decide("add_partitions", "x", (FRESH, 0), PARTS) is None
    one.decide("end", "x", (FRESH, 0), commit=True)
    assert one.refusal("initialise", "x", 1, None, None, keep=True, two_phase=True) is (
        ErrorCode.concurrent_transactions
    )
    one.complete()
    found = keep(one)
    assert (found.producer_epoch, found.ongoing) == (1, (-1, -1))


@pytest.mark.parametrize("kept_times", [1, 2])
def test_the_last_epoch_of_a_kept_transaction_brings_another_producer_id(kept_times):
    one = prepared_by_client(implicitly=True, epoch=LAST - 1)
    found = keep(one)
    assert (found.producer_id, found.producer_epoch) == (FRESH, LAST)
    if kept_times == 2:
        assert one.shard.wants_producer_id("x")
        assert one.refusal("initialise", "x", 1, None, None, keep=True, two_phase=True) is (
            ErrorCode.concurrent_transactions
        )
        found = keep(one, 901)
        assert (found.producer_id, found.producer_epoch) == (901, 0)
    one.restart()
    client = (found.producer_id, found.producer_epoch)
    ask = ("end_raised", "x", client)
    answer = one.decide(*ask, 902 if one.shard.is_exhausted("x") else None, commit=True)
    assert answer == ((901, 1) if kept_times == 2 else (902, 0))
    ended = one.complete()
    assert (ended.producer_id, ended.producer_epoch) == (FRESH, LAST)
    one.restart()
    assert one.decide(*ask, None, commit=True) == answer, "a repeat has the first one's answer"
    one.decide("add_partitions", "x", answer, PARTS, implicitly=True)


def test_a_record_of_a_kept_transaction_has_kafkas_bytes():
    one = prepared_by_client(implicitly=False)
    keep(one)
    _, value = one.log[-1]
    head = "0001" + f"{FRESH:016x}" + "0000" + "7fffffff" + "01"
    tags = "02" + "01" + "08" + f"{FRESH:016x}" + "03" + "02" + "0001"
    assert value.hex().startswith(head)
    assert value.hex().endswith(f"{1000:016x}" * 2 + tags)
