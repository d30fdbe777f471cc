"""Route calls to leaders and coordinators, and retry: the part that both shells share.

In: answers that the shells received. Out: *programs*: generators that yield `Ask` (send this call to that broker) or
`Pause` (wait so many seconds), and return the result. A shell sends the answer to an `Ask`, or throws `Unavailable`;
after a `Pause` it sends the seconds since the program began. Programs never do I/O.

They retry where a broker cannot be reached, and on errors that fresh metadata resolves. A missing topic or partition
is an error only after a look at fresh metadata: the kept ones may be older than it.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, repeat
from typing import Any, Final, TypeVar

from stratalog.client import calls
from stratalog.client.admin import OF_GROUP, find_coordinator
from stratalog.client.calls import (
    BrokerAddress,
    Call,
    ClusterInfo,
    ListedOffset,
    PartitionInfo,
    TopicInfo,
    error_of,
)
from stratalog.client.fetches import FetchedPartition, FetchSpan, fetch
from stratalog.errors import ErrorCode, Rejected, Unavailable
from stratalog.wire.ids import TopicPartition

T = TypeVar("T")

LOGGER: Final = "stratalog.client"
PAUSES_S = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0)
"""Seconds between attempts; after the last attempt the caller gets the error, unless it has a patience of its own."""
_SILENT_S: Final = 1.0
"""How long a program waits without a line in the log."""

PASSING = frozenset(
    {
        ErrorCode.broker_not_available,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.kafka_storage_error,
        ErrorCode.leader_not_available,
        ErrorCode.network_exception,
        ErrorCode.not_controller,
        ErrorCode.not_coordinator,
        ErrorCode.not_leader_or_follower,
        ErrorCode.offset_not_available,
        ErrorCode.replica_not_available,
        ErrorCode.request_timed_out,
        ErrorCode.throttling_quota_exceeded,
        ErrorCode.unknown_leader_epoch,
    }
)
"""Retriable errors."""
_PASSING_AT_CONTROLLER: Final = PASSING - {ErrorCode.request_timed_out}
"""Without the error of a broker that has already waited its whole time for the active controller."""
_LATE: Final = frozenset({ErrorCode.unknown_topic_id, ErrorCode.unknown_topic_or_partition})
"""Errors that one more attempt may resolve: metadata reach one broker after another."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Send `call` to the broker `node_id` (None: to any) and send back its answer."""

    node_id: int | None
    call: Call[Any]


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait `seconds`; `says`: a line for the log, where a person should know of it."""

    seconds: float
    says: str = ""


Program = Generator[Ask | Pause, Any, T]


def parse_bootstrap(text: str) -> list[tuple[str, int]]:
    """Return `host:port,host:port` (IPv6 in brackets) as pairs. Raises ValueError naming the part that is wrong."""
    servers = []
    for part in text.split(","):
        server = part.strip()
        if not server:
            continue
        host, colon, port = server.rpartition(":")
        if not colon or not port.isdigit() or not 0 < int(port) < 65536 or not _is_host(host):
            raise ValueError(f"{server!r} is not host:port")
        servers.append((host.strip("[]"), int(port)))
    if not servers:
        raise ValueError(f"{text!r} names no host:port")
    return servers


def _is_host(text: str) -> bool:
    """Return whether the resolver takes the name: it raises another error for an empty or too long label."""
    try:
        return bool(text.encode("idna"))
    except UnicodeError:
        return False


class ClusterView:
    """A client's view of a cluster, and programs over it.

    Programs try again until `patience_s` are over since they began; without it, after each of `PAUSES_S`.
    """

    def __init__(self, bootstrap: Sequence[tuple[str, int]], patience_s: float = 0.0) -> None:
        self._patience_s = patience_s
        self._bootstrap = [
            BrokerAddress(-1 - number, host, port) for number, (host, port) in enumerate(bootstrap)
        ]
        self.brokers: dict[int, BrokerAddress] = {}
        self.topics: dict[str, TopicInfo] = {}

    def candidates(self, node_id: int | None) -> list[BrokerAddress]:
        """Return the brokers to try for an `Ask`, in order. Empty for an unknown broker."""
        if node_id is None:
            return [*self.brokers.values(), *self._bootstrap]
        broker = self.brokers.get(node_id)
        return [broker] if broker is not None else []

    def metadata(self, topics: Sequence[str] | None) -> Program[ClusterInfo]:
        """Return fresh metadata; also remembered for routing."""
        info: ClusterInfo = yield from self._persistent(lambda: _ask(None, calls.metadata(topics)))
        self.brokers = dict(info.brokers)
        self.topics.update(info.topics)
        return info

    def on_any(self, call: Call[T]) -> Program[T]:
        """Run `call` on any broker that answers. A broker without a controller answers REQUEST_TIMED_OUT once."""
        return self._persistent(lambda: _ask(None, call), _PASSING_AT_CONTROLLER)

    def on_controller(self, call: Call[T]) -> Program[T]:
        """Run `call` on the controller, where the cluster names one (Kafka before KRaft), else on any broker.

        As in `on_any`, REQUEST_TIMED_OUT comes once.
        """
        info = yield from self.metadata([])
        node_id = info.controller_id if info.controller_id in info.brokers else None
        answer: T = yield from self._persistent(lambda: _ask(node_id, call), _PASSING_AT_CONTROLLER)
        return answer

    def on_each(self, call: Call[T]) -> Program[list[T]]:
        """Run `call` on every broker of the cluster; return the answers by node id.

        After a failure it asks all again: the broker may have left, and others have its partitions then.
        """

        def attempt() -> Program[list[T]]:
            yield from self.metadata([])
            answers: list[T] = []
            for node_id in sorted(self.brokers):
                answer: T = yield from _ask(node_id, call)
                answers.append(answer)
            return answers

        return (yield from self._persistent(attempt))

    def on_coordinator(self, key: str, call: Call[T], key_type: int = OF_GROUP) -> Program[T]:
        """Run `call` on the broker that coordinates a group, or a transactional id."""

        def attempt() -> Program[T]:
            yield from self.metadata([])
            node_id: int = yield from _ask(None, find_coordinator(key, key_type))
            answer: T = yield from _ask(node_id, call)
            return answer

        return (yield from self._persistent(attempt))

    def led(self, topic: str, partition: int, *, fresh: bool = False) -> Program[PartitionInfo]:
        """Return a partition that has a leader; raises Rejected where topic, partition or leader is missing.

        Kept metadata may be older than the partition, so only fresh ones are believed that it is missing.
        """
        if not fresh and topic in self.topics:
            try:
                return self._led(topic, partition)
            except Rejected:
                pass
        yield from self.metadata([topic])
        return self._led(topic, partition)

    def _led(self, topic: str, partition: int) -> PartitionInfo:
        """Return a partition of the kept metadata. Raises Rejected and forgets the topic where it has no leader."""
        info = self.topics[topic]
        found = info.partitions.get(partition)
        if info.error:
            refused = Rejected(info.error, f"topic {topic}: {info.error.name}")
        elif found is None:
            refused = Rejected(
                ErrorCode.unknown_topic_or_partition, f"topic {topic} has no partition {partition}"
            )
        elif found.leader < 0:
            refused = Rejected(ErrorCode.leader_not_available, f"{topic}-{partition} has no leader")
        else:
            return found
        self.forget(topic)
        raise refused

    def forget(self, topic: str) -> None:
        """Look the topic's leaders up again before its next call: one of them has failed or refused."""
        self.topics.pop(topic, None)

    def list_offsets(
        self, wanted: Mapping[TopicPartition, int], isolation: int
    ) -> Program[dict[TopicPartition, ListedOffset]]:
        """Return offsets by timestamp, from each partition's leader.

        Raises Rejected for the first partition without one.
        """
        answers: dict[TopicPartition, ListedOffset] = {}

        def attempt() -> Program[dict[TopicPartition, ListedOffset]]:
            names = sorted({key.topic for key in wanted if key not in answers})
            yield from self.metadata(names)
            by_leader: dict[int, dict[TopicPartition, int]] = {}
            epochs: dict[TopicPartition, int] = {}
            for key, timestamp in wanted.items():
                if key not in answers:
                    led = self._led(*key)
                    by_leader.setdefault(led.leader, {})[key] = timestamp
                    epochs[key] = led.leader_epoch
            for leader, timestamps in by_leader.items():
                found = yield from _ask(leader, calls.list_offsets(timestamps, isolation, epochs))
                for key in timestamps:
                    answer = found.get(key)
                    if answer is None:
                        raise Rejected(ErrorCode.unknown_server_error, f"no offset of {key}")
                    if answer.error:
                        raise Rejected(answer.error, f"{key}: {answer.error.name}")
                    answers[key] = answer
            return answers

        return (yield from self._persistent(attempt, late=_LATE))

    def fetch(self, span: FetchSpan) -> Program[FetchedPartition]:
        """Fetch record batches from the partition's leader. Raises Rejected for a permanent error.

        The fetch names the leader epoch of the metadata, so a broker that no longer leads, or has yet to learn that it
        does, refuses it.
        """
        fresh = False

        def attempt() -> Program[FetchedPartition]:
            nonlocal fresh
            led = yield from self.led(span.topic, span.partition, fresh=fresh)
            fresh = True  # after a failed attempt, try again with fresh metadata
            named = replace(span, leader_epoch=led.leader_epoch)
            found: FetchedPartition = yield from _ask(led.leader, fetch(named))
            if found.error_code:
                code = error_of(found.error_code)
                raise Rejected(
                    code, f"fetch of {span.topic}-{span.partition} at {span.offset}: {code.name}"
                )
            return found

        return (yield from self._persistent(attempt, late=_LATE))

    def _persistent(
        self,
        attempt: Callable[[], Program[T]],
        passing: frozenset[ErrorCode] = PASSING,
        late: frozenset[ErrorCode] = frozenset(),
    ) -> Program[T]:
        """Run `attempt` until it succeeds, fails permanently, or the patience is used up.

        An error of `late` is permanent the second time.
        """
        since_s, was_late, reported = 0.0, False, False
        for number, pause in enumerate(chain(PAUSES_S, repeat(PAUSES_S[-1]))):
            try:
                return (yield from attempt())
            except (Unavailable, Rejected) as error:
                if isinstance(error, Rejected) and error.code not in passing:
                    if was_late or error.code not in late:
                        raise
                    was_late = True
                patience_s = self._patience_s
                if since_s >= patience_s if patience_s else number >= len(PAUSES_S):
                    raise
                says = ""
                if patience_s and since_s >= _SILENT_S and not reported:
                    reported, says = True, f"{error}: trying again for up to {patience_s:g} s"
            since_s = yield Pause(pause, says)
        raise AssertionError("there is always another pause")


def _ask(node_id: int | None, call: Call[T]) -> Program[T]:
    answer: T = yield Ask(node_id, call)
    return answer
