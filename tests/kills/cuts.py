"""Faults of the network and of disks, for `rounds.py`: links that are cut, slow or torn, and a disk that is full.

In: rounds on nodes whose network or disks a test controls. Out: each fault begun and ended. It never checks a record.
"""

import time
from typing import TYPE_CHECKING, Final

from tests.cluster_processes import QUICK
from tests.kills.machines import CLIENTS, Machines
from tests.kills.proxied import Proxied

if TYPE_CHECKING:
    from tests.kills.rounds import Rounds

SESSION_S = int(QUICK["broker.session.timeout.ms"]) / 1000
END_TIMEOUT_S = 60


def _machines(rounds: "Rounds") -> Machines:
    assert isinstance(rounds.nodes, Machines)
    return rounds.nodes


def _longer_than_a_session(rounds: "Rounds") -> None:
    time.sleep(SESSION_S + rounds.chance.uniform(0.5, 2))


def cut_off_leader(rounds: "Rounds") -> None:
    """Cut a leader, with as many others as make no majority, off from the other nodes. Clients reach both sides."""
    nodes, leader = _machines(rounds), rounds.leader()
    others = [node for node in nodes.ids if node != leader]
    here = [leader, *rounds.chance.sample(others, len(others) // 2 - 1)]
    nodes.cut(nodes.between(here, set(nodes.ids) - set(here)))
    _longer_than_a_session(rounds)
    nodes.heal()


def mute_leader(rounds: "Rounds") -> None:
    """Drop all that a leader sends to other nodes. What they send arrives."""
    nodes, leader = _machines(rounds), rounds.leader()
    nodes.cut((leader, other) for other in nodes.ids if other != leader)
    _longer_than_a_session(rounds)
    nodes.heal()


def deaf_leader(rounds: "Rounds") -> None:
    """Drop all that other nodes send to a leader. What it sends arrives."""
    nodes, leader = _machines(rounds), rounds.leader()
    nodes.cut((other, leader) for other in nodes.ids if other != leader)
    _longer_than_a_session(rounds)
    nodes.heal()


def cut_pair(rounds: "Rounds") -> None:
    """Cut the link between a leader and one other node. The rest reaches both."""
    nodes, leader = _machines(rounds), rounds.leader()
    other = rounds.chance.choice([node for node in nodes.ids if node != leader])
    nodes.cut(nodes.between([leader], [other]))
    _longer_than_a_session(rounds)
    nodes.heal()


def lost_machine(rounds: "Rounds") -> None:
    """Cut a leader off from nodes and clients; it comes back as it was."""
    nodes, leader = _machines(rounds), rounds.leader()
    nodes.cut(nodes.between([leader], {CLIENTS, *nodes.ids} - {leader}))
    _longer_than_a_session(rounds)
    nodes.heal()


def full_disk(rounds: "Rounds") -> None:
    """Fill a leader's disk until the node ends with one line; start it once there is room again."""
    nodes, leader = _machines(rounds), rounds.leader()
    nodes.fill(leader)
    code = nodes.processes[leader].wait(END_TIMEOUT_S)
    last = nodes.said(leader).splitlines()[-1]
    assert (code, last[:16]) == (2, "strata: stopped:"), f"exit code {code}: {last}"
    assert "No space left on device" in last, last
    rounds.a_while(SESSION_S)
    nodes.empty(leader)
    nodes.start([leader])


def slow_leader(rounds: "Rounds") -> None:
    """Delay and limit all that is sent to a leader, and its answers."""
    assert isinstance(rounds.nodes, Proxied)
    with rounds.nodes.toxic(rounds.leader(), "latency", latency=150, jitter=100):
        _longer_than_a_session(rounds)


def unheard_leader(rounds: "Rounds") -> None:
    """Swallow all that is sent to a leader, and its answers. It connects to others as before."""
    assert isinstance(rounds.nodes, Proxied)
    with rounds.nodes.toxic(rounds.leader(), "timeout", timeout=0):
        _longer_than_a_session(rounds)


def torn_connections(rounds: "Rounds") -> None:
    """Reset every connection to a leader, again and again."""
    assert isinstance(rounds.nodes, Proxied)
    with rounds.nodes.toxic(rounds.leader(), "reset_peer", timeout=50):
        _longer_than_a_session(rounds)


CUTS: Final = (cut_off_leader, full_disk, mute_leader, deaf_leader, cut_pair, lost_machine)
TOXICS: Final = (slow_leader, unheard_leader, torn_connections)
