"""The coordinator of all transactional ids of one `__transaction_state` partition (KIP-98, KIP-360).

In: requests, the time, and the partition's records. Out: decisions: records to append, and answers. It never writes a
marker: the shell does once a prepared end is committed, and then calls `complete`.

The caller's duties are those of `statemachine`. A refusal is raised as Rejected, with Kafka's code. Time-outs and
expiry use wall time, since the records carry it.

A producer of Kafka's first protocol names its partitions before it writes to them, and its epoch stays from one
transaction to the next. In the second one (KIP-890, `transaction.version` 2) the leaders name the partitions, and each
end raises the epoch, which its markers have: a late batch or marker cannot reach the next transaction. The request that
ends a transaction tells its protocol; one that is open is of the second where a leader has added a partition.

A transaction may take part in a two-phase commit (KIP-939): no time-out aborts it, and a new client may keep it open
and end it, although another client has written it.

Kafka: `TransactionCoordinator`, `TransactionMetadata`.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from stratalog.coordinators.transaction import (
    COMPLETE,
    EPOCH_LAST,
    EPOCH_MAX,
    NO_TIMEOUT_MS,
    PREPARED,
    State,
    Transaction,
    TransactionRecord,
    completed,
    fenced,
    is_before,
    is_repeat,
    kept,
    needs_id_to_fence,
    next_client,
    raised,
)
from stratalog.errors import ErrorCode, Rejected
from stratalog.statemachine import Decision, Now
from stratalog.wire.ids import TopicPartition
from stratalog.wire.markers import RAISED_FROM

__all__ = [
    "Initialised",
    "State",
    "Transaction",
    "TransactionRecord",
    "TransactionSettings",
    "TransactionShard",
]

_CHANGES_PER_TICK: Final = 100


class TransactionSettings(Struct, frozen=True):
    """Kafka's `transaction.*` and `transactional.id.*` settings, in milliseconds."""

    timeout_ms_max: int = 900_000
    id_expiration_ms: int = 604_800_000
    cleanup_interval_ms: int = 10_000
    """How often to call `TransactionShard.tick`."""
    commit_timeout_ms: int = 30_000
    """How long a request waits for its commit."""


class Initialised(Struct, frozen=True):
    """The answer to InitProducerId; an `error` other than none asks the client to repeat the request.

    `ongoing`: producer id and epoch of the open transaction that was kept.
    """

    producer_id: int = -1
    producer_epoch: int = -1
    ongoing: tuple[int, int] = (-1, -1)
    error: ErrorCode = ErrorCode.none


class TransactionShard:
    """A new shard is loading: call `replay` for the whole log before any other method."""

    def __init__(self, settings: TransactionSettings) -> None:
        self._settings = settings
        self._by_id: dict[str, Transaction] = {}
        self._before: dict[str, tuple[int, int]] = {}
        """Producer id and epoch that a repeated InitProducerId may still name. As in Kafka, a new leader has none."""

    # Requests

    def wants_producer_id(self, transactional_id: str) -> bool:
        """Return whether the next InitProducerId of this id needs a new producer id."""
        found = self._by_id.get(transactional_id)
        return found is None or found.client[1] >= EPOCH_LAST

    def initialise(  # noqa: PLR0913 - the request's fields
        self,
        transactional_id: str,
        timeout_ms: int,
        expected: tuple[int, int] | None,
        fresh_id: int | None,
        now: Now,
        *,
        two_phase: bool = False,
        keep: bool = False,
    ) -> Decision[TransactionRecord, Initialised]:
        """Give a producer its id and epoch, and fence every earlier one; abort the open transaction, or keep it.

        `expected`: the producer id and epoch that the client has (KIP-360). `fresh_id`: a new producer id, needed where
        `wants_producer_id` says so. `two_phase`: no time-out aborts the producer's transactions. `keep`: the open
        transaction stays open, for this producer to end. Raises Rejected: INVALID_TRANSACTION_TIMEOUT, PRODUCER_FENCED,
        CONCURRENT_TRANSACTIONS.
        """
        timeout_ms = NO_TIMEOUT_MS if two_phase else self._checked(timeout_ms)
        found = self._by_id.get(transactional_id)
        if found is None:
            if fresh_id is None:
                raise _again(transactional_id)
            return self._begin(transactional_id, fresh_id, 0, timeout_ms, now)
        self._check_expected(transactional_id, found, expected)
        if found.state in PREPARED:
            raise _again(transactional_id)
        if found.state is State.ONGOING and keep:
            return self._keep(transactional_id, kept(found, fresh_id, timeout_ms, now))
        if found.state is State.ONGOING:
            if fresh_id is None and needs_id_to_fence(found):
                raise _again(transactional_id)
            records = self._fence(transactional_id, found, fresh_id, now)
            return Decision(records, Initialised(error=ErrorCode.concurrent_transactions))
        is_repeated = expected is not None and self._is_before(transactional_id, found, expected)
        if is_repeated and found.producer_epoch < EPOCH_MAX:  # a fence used that one
            producer_id, epoch = found.client
        elif found.producer_epoch < EPOCH_LAST:
            producer_id, epoch = found.producer_id, found.producer_epoch + 1
        elif fresh_id is None:
            raise _again(transactional_id)
        else:
            producer_id, epoch = fresh_id, 0
        if expected is None:
            self._before.pop(transactional_id, None)
        else:
            self._before[transactional_id] = expected
        return self._begin(transactional_id, producer_id, epoch, timeout_ms, now)

    def _checked(self, timeout_ms: int) -> int:
        if not 0 < timeout_ms <= self._settings.timeout_ms_max:
            raise Rejected(
                ErrorCode.invalid_transaction_timeout,
                f"{timeout_ms} ms; transaction.max.timeout.ms is {self._settings.timeout_ms_max}",
            )
        return timeout_ms

    def _check_expected(
        self, transactional_id: str, found: Transaction, expected: tuple[int, int] | None
    ) -> None:
        """Raise Rejected(PRODUCER_FENCED) where the client has neither the present id and epoch nor those before."""
        if expected is None or expected == found.client:
            return
        if not self._is_before(transactional_id, found, expected):
            raise _fenced(transactional_id, *expected)

    def _is_before(
        self, transactional_id: str, found: Transaction, expected: tuple[int, int]
    ) -> bool:
        """Return whether a client has the id and epoch before the present ones: an answer was lost."""
        return expected == self._before.get(transactional_id) or is_before(found, expected)

    def _begin(
        self, transactional_id: str, producer_id: int, epoch: int, timeout_ms: int, now: Now
    ) -> Decision[TransactionRecord, Initialised]:
        empty = Transaction(producer_id, epoch, timeout_ms, State.EMPTY, frozenset(), now.wall_ms)
        return Decision(((transactional_id, empty),), Initialised(producer_id, epoch))

    def _keep(
        self, transactional_id: str, open_one: Transaction | None
    ) -> Decision[TransactionRecord, Initialised]:
        if open_one is None:
            raise _again(transactional_id)
        self._before.pop(transactional_id, None)
        ongoing = (open_one.producer_id, open_one.producer_epoch)
        return Decision(((transactional_id, open_one),), Initialised(*open_one.client, ongoing))

    def add_partitions(
        self,
        transactional_id: str,
        producer: tuple[int, int],
        partitions: frozenset[TopicPartition],
        now: Now,
        *,
        implicitly: bool = False,
    ) -> Decision[TransactionRecord, None]:
        """Add partitions to the producer's transaction, which begins with the first ones.

        `implicitly`: a leader asks, for a producer of the second protocol.

        Raises Rejected: INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS, INVALID_TXN_STATE where
        the producer has kept the transaction that another one writes.
        """
        found = self._of(transactional_id, producer)
        if found.state in PREPARED:
            raise _again(transactional_id)
        is_open = found.state is State.ONGOING
        if is_open and partitions <= found.partitions:
            return Decision((), None)
        grown = replace(
            found,
            state=State.ONGOING,
            partitions=found.partitions | partitions,
            updated_ms=now.wall_ms,
            started_ms=found.started_ms if is_open else now.wall_ms,
            version=RAISED_FROM if implicitly else found.version if is_open else 0,
            previous_id=-1,
        )
        return Decision(((transactional_id, grown),), None)

    def verify(
        self, transactional_id: str, producer: tuple[int, int], partition: TopicPartition
    ) -> Decision[TransactionRecord, bool]:
        """Return whether the producer's open transaction has a partition. Raises Rejected as `add_partitions`."""
        found = self._of(transactional_id, producer)
        if found.state in PREPARED:
            raise _again(transactional_id)
        return Decision((), found.state is State.ONGOING and partition in found.partitions)

    def end(
        self, transactional_id: str, producer: tuple[int, int], now: Now, *, commit: bool
    ) -> Decision[TransactionRecord, None]:
        """Decide the end of the producer's transaction; a repeated request gets the answer of the first one.

        Raises Rejected: INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS, INVALID_TXN_STATE.
        """
        found = self._of_client(transactional_id, producer)
        prepared = State.PREPARE_COMMIT if commit else State.PREPARE_ABORT
        if found.state is State.ONGOING:
            ended = replace(found, state=prepared, updated_ms=now.wall_ms, version=0)
            return Decision(((transactional_id, ended),), None)
        if found.state is COMPLETE[prepared]:
            return Decision((), None)
        if found.state is prepared:
            raise _again(transactional_id)
        raise _nothing_open(transactional_id, found)

    def is_exhausted(self, transactional_id: str) -> bool:
        """Return whether `end_raised` needs a new producer id for this id."""
        found = self._by_id.get(transactional_id)
        return found is not None and found.client[1] >= EPOCH_LAST

    def end_raised(
        self,
        transactional_id: str,
        producer: tuple[int, int],
        fresh_id: int | None,
        now: Now,
        *,
        commit: bool,
    ) -> Decision[TransactionRecord, tuple[int, int]]:
        """Decide an end as `end`, in the second protocol; return the id and epoch of the producer's next transaction.

        An abort may end a transaction without partitions. `fresh_id` is needed where `is_exhausted` says so. Raises
        Rejected as `end`.
        """
        found = self._by_id.get(transactional_id)
        prepared = State.PREPARE_COMMIT if commit else State.PREPARE_ABORT
        if found is not None and is_repeat(found, producer):
            if found.state is prepared:
                raise _again(transactional_id)
            if found.state is COMPLETE[prepared]:
                return Decision((), (found.producer_id, found.producer_epoch))
            raise _nothing_open(transactional_id, found)
        self._wait_for_markers(transactional_id, producer)
        found = self._of_client(transactional_id, producer)
        if found.state in PREPARED:  # with the last epoch of its id, which no client receives
            raise _fenced(transactional_id, *producer)
        if found.state is not State.ONGOING and commit:
            raise _nothing_open(transactional_id, found)
        _, epoch = found.client
        if epoch >= EPOCH_LAST and fresh_id is None:
            raise _again(transactional_id)
        if epoch == EPOCH_MAX and commit:  # its markers cannot have a higher epoch
            raise _fenced(transactional_id, *producer)
        ended = raised(found, prepared, fresh_id, now)
        self._before[transactional_id] = producer
        answer = next_client(ended)
        return Decision(((transactional_id, ended),), answer)

    def describe(self, transactional_id: str) -> Decision[TransactionRecord, Transaction]:
        """Return an id's last transaction. Raises Rejected: TRANSACTIONAL_ID_NOT_FOUND."""
        found = self._by_id.get(transactional_id)
        if found is None:
            code = ErrorCode.transactional_id_not_found
            raise Rejected(code, f"transactional id {transactional_id}")
        return Decision((), found)

    def listed(self) -> Decision[TransactionRecord, list[tuple[str, Transaction]]]:
        """Return every id with its last transaction."""
        return Decision((), list(self._by_id.items()))

    def oldest_ms(self) -> int | None:
        """Return when the oldest transaction began that is open, or whose markers may be missing; None without one."""
        held = (State.ONGOING, *PREPARED)
        return min(
            (one.started_ms for one in self._by_id.values() if one.state in held), default=None
        )

    # Markers

    def complete(
        self, transactional_id: str, ended: Transaction, now: Now
    ) -> Decision[TransactionRecord, None]:
        """Note that every partition of a prepared end has its marker."""
        assert self._by_id.get(transactional_id) == ended, "nothing but its markers changes it"
        return Decision(((transactional_id, completed(ended, now)),), None)

    def prepared(self) -> Iterator[tuple[str, Transaction]]:
        """Yield each transaction whose end is decided, and whose markers may be missing."""
        return ((key, one) for key, one in self._by_id.items() if one.state in PREPARED)

    # Time

    def wanted_by_tick(self, now: Now) -> int:
        """Return how many new producer ids the next `tick` needs."""
        overdue = islice(self._overdue(now.wall_ms), _CHANGES_PER_TICK)
        return sum(one.state is State.ONGOING and needs_id_to_fence(one) for _, one in overdue)

    def tick(self, fresh_ids: Sequence[int], now: Now) -> Decision[TransactionRecord, None]:
        """Abort transactions that are open for too long, and forget ids that are unused for too long.

        It changes a limited number of ids; call it regularly. `fresh_ids`: new producer ids, as many as
        `wanted_by_tick` says; a transaction that would need another one waits for the next call.
        """
        records: list[TransactionRecord] = []
        unused = iter(fresh_ids)
        for key, one in islice(self._overdue(now.wall_ms), _CHANGES_PER_TICK):
            if one.state is not State.ONGOING:
                records.append((key, None))
                continue
            fresh_id = next(unused, None) if needs_id_to_fence(one) else None
            if fresh_id is not None or not needs_id_to_fence(one):
                records += self._fence(key, one, fresh_id, now)
        return Decision(records, None)

    def _overdue(self, wall_ms: int) -> Iterator[tuple[str, Transaction]]:
        expired_ms = wall_ms - self._settings.id_expiration_ms
        for key, one in self._by_id.items():
            if one.state is State.ONGOING:
                has_limit = one.timeout_ms != NO_TIMEOUT_MS
                if has_limit and one.started_ms + one.timeout_ms < wall_ms:
                    yield key, one
            elif one.state not in PREPARED and one.updated_ms <= expired_ms:
                yield key, one

    def _fence(
        self, key: str, one: Transaction, fresh_id: int | None, now: Now
    ) -> tuple[TransactionRecord, ...]:
        """Return the record that aborts an open transaction and fences its producer.

        The producer may go on, if no other one begins: InitProducerId gives it the raised epoch (KIP-588).
        """
        if one.next_epoch < 0:
            self._before[key] = one.client
        else:
            self._before.pop(key, None)
        return ((key, fenced(one, fresh_id, now)),)

    # State

    def replay(
        self, transactional_id: str, found: Transaction | None
    ) -> tuple[str, Transaction] | None:
        """Apply one record; return the transaction whose end it decides, if it does."""
        if found is None:
            self._by_id.pop(transactional_id, None)
            self._before.pop(transactional_id, None)
            return None
        self._by_id[transactional_id] = found
        return (transactional_id, found) if found.state in PREPARED else None

    def _of(self, transactional_id: str, producer: tuple[int, int]) -> Transaction:
        """Return the transaction that a producer writes. Raises Rejected."""
        self._wait_for_markers(transactional_id, producer)
        found = self._by_id.get(transactional_id)
        if found is None or found.next_epoch < 0 or found.state is not State.ONGOING:
            return self._of_client(transactional_id, producer)
        if producer == (found.producer_id, found.producer_epoch):
            return found
        self._of_client(transactional_id, producer)
        raise Rejected(
            ErrorCode.invalid_txn_state,
            f"{transactional_id} has a transaction that was kept to be ended, not to be written to",
        )

    def _wait_for_markers(self, transactional_id: str, producer: tuple[int, int]) -> None:
        """Raise CONCURRENT_TRANSACTIONS to a producer that has its next epoch before the last markers are written."""
        found = self._by_id.get(transactional_id)
        if found is not None and found.state in PREPARED and next_client(found) == producer:
            raise _again(transactional_id)

    def _of_client(self, transactional_id: str, producer: tuple[int, int]) -> Transaction:
        """Return the transaction that a producer may end. Raises Rejected."""
        found = self._by_id.get(transactional_id)
        producer_id, epoch = producer
        if found is None or found.client[0] != producer_id:
            raise Rejected(
                ErrorCode.invalid_producer_id_mapping,
                f"{transactional_id} does not belong to producer {producer_id}",
            )
        if found.client[1] != epoch:
            raise _fenced(transactional_id, producer_id, epoch)
        return found


def _nothing_open(transactional_id: str, found: Transaction) -> Rejected:
    return Rejected(
        ErrorCode.invalid_txn_state,
        f"{transactional_id} has no open transaction: its state is {found.state.name}",
    )


def _fenced(transactional_id: str, producer_id: int, epoch: int) -> Rejected:
    return Rejected(
        ErrorCode.producer_fenced,
        f"{transactional_id}: producer {producer_id} of epoch {epoch} is not the newest one",
    )


def _again(transactional_id: str) -> Rejected:
    return Rejected(ErrorCode.concurrent_transactions, f"{transactional_id} ends its transaction")
