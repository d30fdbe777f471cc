"""Judge the facts of a cluster: what is right, what deserves a look, what is wrong.

In: facts that `strata check` has collected. Out: findings, each with a remedy where it is not ok. Pure: it asks
nothing and reads no clock.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from stratalog.broker.network.certificate_dates import SOON_S
from stratalog.client.admin import LogDirectory
from stratalog.client.calls import ClusterInfo
from stratalog.client.cluster_admin import QuorumInfo, RegisteredBroker
from stratalog.client.core import CERTIFICATE_REFUSED
from stratalog.client.differing import differing
from stratalog.errors import ErrorCode

__all__ = [
    "BAD",
    "OK",
    "WARNING",
    "Finding",
    "of_brokers",
    "of_certificate",
    "of_clock",
    "of_directories",
    "of_partitions",
    "of_quorum",
    "of_settings",
]

OK, WARNING, BAD = "ok", "warning", "bad"

_FREE_WARNING: Final = 0.10
_FREE_BAD: Final = 0.03
_CLOCK_WARNING_MS: Final = 1_000
_CLOCK_BAD_MS: Final = 60_000
_VOTER_SILENT_MS: Final = 10_000
_NAMED_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class Finding:
    """One result: which check, of what, how it is, what was seen, what to do."""

    check: str
    of: str
    state: str
    seen: str
    remedy: str = ""


def of_brokers(
    registered: Iterable[RegisteredBroker], answers: Mapping[int, float | str]
) -> list[Finding]:
    """Judge each broker; `answers`: milliseconds until it answered at its advertised address, or why it did not."""
    found = []
    for one in sorted(registered, key=lambda one: one.node_id):
        place, at = f"broker {one.node_id}", f"{one.host}:{one.port}"
        answer = answers.get(one.node_id, "it was not asked")
        if one.is_fenced:
            seen, remedy = f"{at} is fenced: it leads nothing", "start the broker, or see its log"
            found.append(Finding("port", place, BAD, seen, remedy))
        elif isinstance(answer, str) and CERTIFICATE_REFUSED in answer:
            remedy = "see ssl.keystore.location of the broker"
            found.append(Finding("tls", place, BAD, answer, remedy))
        elif isinstance(answer, str):
            remedy = f"open {at} to this machine; see advertised.listeners and the broker's log"
            found.append(Finding("port", place, BAD, answer, remedy))
        else:
            found.append(Finding("port", place, OK, f"{at} answers in {answer:.0f} ms"))
    return found


def of_quorum(cluster: ClusterInfo, quorum: QuorumInfo | str) -> list[Finding]:
    """Judge the controllers; a text says why the quorum did not answer."""
    if isinstance(quorum, str):
        remedy = _unless_denied(quorum, "start a majority of the controllers")
        return [Finding("controllers", "cluster", BAD, quorum, remedy)]
    if quorum.leader_id < 0:
        remedy = "start a majority of the controllers"
        return [Finding("controllers", "cluster", BAD, "the quorum has no leader", remedy)]
    now_ms = max((one.last_fetch_ms for one in quorum.replicas), default=-1)
    late = [
        one.node_id
        for one in quorum.replicas
        if one.is_voter
        and one.node_id != quorum.leader_id
        and now_ms - max(one.last_fetch_ms, 0) > _VOTER_SILENT_MS
    ]
    voters = sum(one.is_voter for one in quorum.replicas)
    if late:
        seen = f"{voters} voters; silent: {_named(late)}"
        remedy = "start these controllers: one more loss may stop the cluster"
        return [Finding("controllers", "cluster", BAD, seen, remedy)]
    seen = f"node {quorum.leader_id} leads {voters} voter{'' if voters == 1 else 's'}"
    if cluster.controller_id < 0:
        remedy = "wait for an election, or see the controllers' logs"
        return [Finding("controllers", "cluster", BAD, "no controller is active", remedy)]
    return [Finding("controllers", "cluster", OK, seen)]


def of_partitions(cluster: ClusterInfo, min_isr: Mapping[str, int]) -> list[Finding]:
    """Judge leaders and replicas; `min_isr`: min.insync.replicas of topics that lack an in-sync replica."""
    offline, refusing, behind, elsewhere, count = [], [], [], [], 0
    for topic in cluster.topics.values():
        for index, one in topic.partitions.items():
            count += 1
            name = f"{topic.name}-{index}"
            if one.leader < 0:
                offline.append(name)
            elif len(one.isr) < min(min_isr.get(topic.name, 1), len(one.replicas)):
                refusing.append(name)
            elif len(one.isr) < len(one.replicas):
                behind.append(name)
            elif one.replicas and one.leader != one.replicas[0]:
                elsewhere.append(name)
    found = []
    for names, state, seen, remedy in (
        (offline, BAD, "without a leader", "start the brokers that hold their replicas"),
        (refusing, BAD, "below min.insync.replicas: acks=all is refused", "start their brokers"),
        (behind, BAD, "with a replica out of sync", "start the missing brokers, or wait"),
        (elsewhere, WARNING, "not led by the first replica", "strata partition elect"),
    ):
        if names:
            found.append(
                Finding("partitions", _named(names), state, f"{len(names)} {seen}", remedy)
            )
    return found or [Finding("partitions", "cluster", OK, f"{count} with leaders and in sync")]


def of_directories(directories: Mapping[int, Sequence[LogDirectory] | str]) -> list[Finding]:
    """Judge the disks of brokers; a text says why a broker did not answer."""
    found = []
    for node_id, answer in sorted(directories.items()):
        if isinstance(answer, str):
            remedy = _unless_denied(answer, "see the broker's log")
            found.append(Finding("disks", f"broker {node_id}", BAD, answer, remedy))
            continue
        for one in answer:
            place = f"broker {node_id} {one.path}"
            if one.error:
                seen, remedy = one.error.name, "repair the disk and restart the broker"
                found.append(Finding("disks", place, BAD, seen, remedy))
            elif one.total_bytes <= 0:
                found.append(Finding("disks", place, OK, "online; its room is not reported"))
            else:
                free = one.free_bytes / one.total_bytes
                state = BAD if free < _FREE_BAD else WARNING if free < _FREE_WARNING else OK
                remedy = "shorten retention, tier topics, or move replicas" if state != OK else ""
                found.append(Finding("disks", place, state, f"{free:.1%} free", remedy))
    return found


def _unless_denied(answer: str, remedy: str) -> str:
    """Return the remedy of an answer; another one where the client lacks a right."""
    denied = ErrorCode.cluster_authorization_failed.name.upper() in answer
    return "strata acl add --operation describe --cluster" if denied else remedy


def of_settings(settings: Mapping[int, Mapping[str, str | None]]) -> list[Finding]:
    """Judge the settings of brokers against one another."""
    found = [
        Finding(
            "settings",
            name,
            WARNING,
            ", ".join(f"broker {node_id}: {value}" for node_id, value in sorted(of.items())),
            "give all brokers one value",
        )
        for name, of in differing(settings).items()
    ]
    count = len(settings)
    seen = "one broker" if count == 1 else f"equal on {count} brokers"
    return found or [Finding("settings", "cluster", OK, seen)]


def of_certificate(place: str, ends_s: float, now_s: float) -> Finding:
    """Judge a certificate that was verified; times are epoch seconds."""
    left_s = ends_s - now_s
    state = WARNING if left_s < SOON_S else OK
    remedy = "renew the broker's certificate" if state != OK else ""
    return Finding("tls", place, state, f"trusted; ends in {left_s / 86_400:.0f} days", remedy)


def of_clock(place: str, ahead_ms: float, unsure_ms: float) -> Finding:
    """Judge another clock against this machine's; `unsure_ms` is how far the comparison may be off."""
    beyond = max(0.0, abs(ahead_ms) - unsure_ms)
    state = BAD if beyond > _CLOCK_BAD_MS else WARNING if beyond > _CLOCK_WARNING_MS else OK
    remedy = "synchronize both machines' clocks (NTP)" if state != OK else ""
    word = "ahead of" if ahead_ms >= 0 else "behind"
    seen = f"{abs(ahead_ms) / 1000:.1f} s {word} this machine, ± {unsure_ms / 1000:.1f} s"
    return Finding("clock", place, state, seen, remedy)


def _named(names: Sequence[object]) -> str:
    more = f" and {len(names) - _NAMED_MAX} more" if len(names) > _NAMED_MAX else ""
    return ", ".join(map(str, names[:_NAMED_MAX])) + more
