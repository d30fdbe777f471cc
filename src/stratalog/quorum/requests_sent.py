"""Track a member's open requests: one for each node, with a time limit and a backoff.

In: requests, answers, failures, the time. Out: whether a node may get a request, and which request an answer belongs
to. It never sends. Kafka: RequestManager.
"""

from msgspec import Struct

from stratalog.quorum.messages import Request

_DOUBLINGS_MAX = 5
"""Of Kafka's backoff of 20 ms that is 640 ms: less than the fetch timeout."""


class Sent(Struct, frozen=True):
    """A request that waits for its answer until `deadline_ms`."""

    to: int
    request: Request
    deadline_ms: int


class RequestsSent:
    """See the module. Correlation ids are never used again, so a late answer is recognized."""

    def __init__(self, request_ms: int, backoff_ms: int) -> None:
        self._request_ms = request_ms
        self._backoff_ms = backoff_ms
        self._next_id = 0
        self._sent: dict[int, Sent] = {}
        self._backoffs: dict[int, int] = {}
        """For each node that failed, when it may get the next request."""

    def is_ready(self, node_id: int, now_ms: int) -> bool:
        """Return whether the node has no open request and no backoff."""
        if any(one.to == node_id for one in self._sent.values()):
            return False
        return self._backoffs.get(node_id, now_ms) <= now_ms

    def add(self, to: int, request: Request, now_ms: int) -> int:
        """Note a request; return its correlation id."""
        self._next_id += 1
        self._sent[self._next_id] = Sent(to, request, now_ms + self._request_ms)
        return self._next_id

    def answered(self, correlation_id: int) -> Sent | None:
        """Return the answered request; None where the member no longer waits for that answer."""
        sent = self._sent.pop(correlation_id, None)
        if sent is not None:
            self._backoffs.pop(sent.to, None)
        return sent

    def back_off(self, node_id: int, now_ms: int, doublings: int = 0) -> None:
        """Give up the node's open request, and wait before the next one; longer with each of the `doublings`."""
        self._sent = {key: one for key, one in self._sent.items() if one.to != node_id}
        self._backoffs[node_id] = now_ms + (self._backoff_ms << min(doublings, _DOUBLINGS_MAX))

    def expire(self, now_ms: int) -> None:
        """Drop requests whose time is over."""
        for sent in [one for one in self._sent.values() if one.deadline_ms <= now_ms]:
            self.back_off(sent.to, now_ms)

    def clear(self) -> None:
        """Forget all requests: answers to them count no more."""
        self._sent.clear()
        self._backoffs.clear()

    def next_ms(self, now_ms: int) -> list[int]:
        """Return the times at which requests expire and backoffs end."""
        ends = [end for end in self._backoffs.values() if end > now_ms]
        return ends + [one.deadline_ms for one in self._sent.values()]
