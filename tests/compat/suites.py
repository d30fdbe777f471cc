"""Shared parts of the runners of third-party suites: outcomes, the recorded pass lists, and the report of a run.

In: one run's outcomes. Out: the report in lines beside Apache Kafka's results, and the regressions. Each suite
has three files here: `SUITE.pass`, the tests that must pass on one node, `SUITE.three_nodes`, those that must pass on
three (both may only grow), and `SUITE.apache_kafka`, what Apache Kafka 4.3.1 gets. It never runs a test itself.
"""

import os
import signal
import subprocess
import tempfile
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from tests.broker_process import broker_process
from tests.cluster_processes import ClusterProcesses
from tests.compat.tools import CannotBeHadError

from stratalog.adapters.free_ports import free_ports
from stratalog.config.local_cluster import HOST

HERE = Path(__file__).parent
NODES = (1, 3)
USER, PASSWORD = "suite", "planted-password"
MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SASL_SSL = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}
CALM = {"broker.heartbeat.interval.ms": "2000", "broker.session.timeout.ms": "9000"}
"""Kafka's own defaults, of a cluster that no test kills."""

RIGHTS = {
    "authorizer__class__name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow__everyone__if__no__acl__found": "true",
}
"""Suites that make ACLs run as any client: what no ACL names is free to all."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One test's result: `pass`, `fail`, `skip`, `timeout`, `crash`, or `not run` after the end of the run's time."""

    test: str
    result: str
    seconds: float
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Where:
    """Brokers at `address`. With an `authority`, clients log in as `USER` by PLAIN, over TLS."""

    address: str
    authority: Path | None = None


def librdkafkas_login(where: Where) -> dict[str, str]:
    """Return librdkafka's settings of a login, or none."""
    if where.authority is None:
        return {}
    user = {"sasl.username": USER, "sasl.password": PASSWORD}
    return SASL_SSL | user | {"ssl.ca.location": str(where.authority)}


def javas_login(where: Where) -> dict[str, str]:
    """Return the settings of a login for Kafka's tools and for `strata`, or none."""
    if where.authority is None:
        return {}
    jaas = f'{MODULE} required username="{USER}" password="{PASSWORD}";'
    trust = {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(where.authority)}
    return SASL_SSL | trust | {"sasl.jaas.config": jaas}


def lines(properties: dict[str, str]) -> str:
    """Return the lines of a file of properties."""
    return "".join(f"{name}={text}\n" for name, text in properties.items())


@dataclass(frozen=True, slots=True)
class Part:
    """The part of a suite that runs against one broker: its `settings`, and `run`, which returns outcomes."""

    settings: dict[str, str]
    run: Callable[[Where, Sequence[str]], list[Outcome]]


@dataclass(frozen=True, slots=True)
class Suite:
    """One suite: `name` is that of its files; its parts run one after the other, each with `nodes` of its own."""

    name: str
    parts: tuple[Part, ...]
    nodes: int = 1
    secure: bool = False
    """Whether clients log in over TLS."""

    @property
    def pass_list(self) -> Path:
        return HERE / f"{self.name}.{'pass' if self.nodes == 1 else 'three_nodes'}"

    def must_pass(self) -> set[str]:
        """Return the recorded tests, or none without a record."""
        return set(self.pass_list.read_text().splitlines()) if self.pass_list.exists() else set()

    def apache_kafka(self) -> dict[str, str]:
        """Test to result, as Apache Kafka got it."""
        lines = (HERE / f"{self.name}.apache_kafka").read_text().splitlines()
        return {test: result for test, _, result in (line.partition("\t") for line in lines)}

    def record(self, passed: set[str]) -> None:
        """Add passed tests to the list; no test leaves it."""
        self.pass_list.write_text(
            "".join(f"{test}\n" for test in sorted(self.must_pass() | passed))
        )


def passed(outcomes: Sequence[Outcome]) -> set[str]:
    return {outcome.test for outcome in outcomes if outcome.result == "pass"}


def stopped_passing(suite: Suite, outcomes: Sequence[Outcome]) -> dict[str, str]:
    """Recorded tests that were run and did not pass, to the result and its reason."""
    must = suite.must_pass()
    return {
        outcome.test: f"{outcome.result} {outcome.reason}".rstrip()
        for outcome in outcomes
        if outcome.test in must and outcome.result not in {"pass", "not run"}
    }


def one_line(text: str) -> str:
    """Shorten a message to a reason."""
    return " ".join(text.split())[:300]


def account(suite: Suite, outcomes: Sequence[Outcome]) -> str:
    """One line for each test that did not pass, and the counts beside Apache Kafka's."""
    peer = suite.apache_kafka()
    lines = [
        f"{outcome.result:8} {outcome.test} (Apache Kafka: {peer.get(outcome.test, '?')}) {outcome.reason}".rstrip()
        for outcome in outcomes
        if outcome.result != "pass"
    ]
    ours = Counter(outcome.result for outcome in outcomes)
    theirs = Counter(peer.get(outcome.test, "?") for outcome in outcomes)
    fresh = passed(outcomes) - suite.must_pass()
    lines.append(f"{len(outcomes)} tests: {counts(ours)}; Apache Kafka: {counts(theirs)}")
    lines.append(f"{len(fresh)} pass and are not in {suite.pass_list.name}")
    return "\n".join(lines)


def counts(results: Counter[str]) -> str:
    return ", ".join(f"{count} {result}" for result, count in results.most_common())


def run_suite(suite: Suite, select: Sequence[str], *, address: str | None = None) -> list[Outcome]:
    """Run its parts, each against broker processes of its own, or all against the brokers at `address`."""
    found = []
    for part in suite.parts:
        with ExitStack() as stack:
            if address is None:
                place = stack.enter_context(tempfile.TemporaryDirectory(prefix="stratalog-compat-"))
                start = (
                    secured_node
                    if suite.secure
                    else one_node
                    if suite.nodes == 1
                    else several_nodes
                )
                given = start(Path(place), part.settings, suite.nodes, stack)
            else:
                given = Where(address)
            found += part.run(given, select)
    return found


def one_node(place: Path, settings: dict[str, str], _nodes: int, stack: ExitStack) -> Where:
    """Start a broker until the stack ends."""
    address = f"127.0.0.1:{free_ports(1)[0]}"
    # A file sets both, as an operator does: tests check the source of a setting.
    listeners = {
        "listeners": f"PLAINTEXT://{address}",
        "advertised__listeners": f"PLAINTEXT://{address}",
    }
    stack.enter_context(broker_process(place, None, **settings, **listeners))
    return Where(address)


def secured_node(place: Path, settings: dict[str, str], _nodes: int, stack: ExitStack) -> Where:
    """Start a broker with TLS and a user until the stack ends."""
    from stratalog.testing.certificates import Authority

    authority = Authority(place / "authority")
    address = f"127.0.0.1:{free_ports(1)[0]}"
    login = f'{MODULE} required user_{USER}="{PASSWORD}";'
    listener = {
        "listeners": f"SASL_SSL://{address}",
        "advertised__listeners": f"SASL_SSL://{address}",
        "inter__broker__listener__name": "SASL_SSL",
        "ssl__keystore__location": str(authority.issue("broker").pem),
        "sasl__enabled__mechanisms": "PLAIN",
        "listener__name__sasl_ssl__plain__sasl__jaas__config": login,
    }
    stack.enter_context(broker_process(place, None, **settings, **listener))
    return Where(address, authority.certificate)


class SuiteNodes(ClusterProcesses):
    """Nodes 0, 1 and 2, each in a rack of its own as a suite expects: `RACK0` …

    As on one node, a file sets the advertised listeners. A suite assigns replicas to node 0.
    """

    def addresses(self, node: int) -> dict[str, str]:
        advertised = f"PLAINTEXT://{HOST}:{self.ports[node].clients}"
        set_too = {"advertised.listeners": advertised, "broker.rack": f"RACK{node}"}
        return {**super().addresses(node), **set_too}


def several_nodes(place: Path, settings: dict[str, str], nodes: int, stack: ExitStack) -> Where:
    """Start a cluster until the stack ends."""
    named = {name.replace("__", "."): value for name, value in settings.items()}
    named.pop("node.id", None)
    cluster = SuiteNodes(place / "nodes", nodes, CALM | named, first_id=0)
    return Where(stack.enter_context(cluster).address)


def command_line(suite: Suite, what_select_means: str) -> int:
    """Run the suite's command; return 0 if every recorded test that ran passed, 1 if not, 2 if the suite cannot run."""
    parser = ArgumentParser(prog=f"python -m tests.compat.{suite.name}")
    parser.add_argument("select", nargs="*", help=what_select_means)
    parser.add_argument(
        "--bootstrap-server", help="HOST:PORT of a running broker; without it one is started"
    )
    parser.add_argument(
        "--nodes", type=int, default=1, choices=NODES, help="how many nodes to start"
    )
    parser.add_argument(
        "--security",
        choices=("plaintext", "sasl_ssl"),
        default="plaintext",
        help="sasl_ssl: clients log in over TLS; on one node",
    )
    parser.add_argument("--record", action="store_true", help="add what passes to the pass list")
    chosen = parser.parse_args()
    secure = chosen.security == "sasl_ssl"
    if secure and (chosen.nodes > 1 or chosen.bootstrap_server or chosen.record):
        parser.error("--security sasl_ssl: on one node that the command starts, without --record")
    suite = replace(suite, nodes=chosen.nodes, secure=secure)
    try:
        outcomes = run_suite(suite, chosen.select, address=chosen.bootstrap_server)
    except CannotBeHadError as missing:
        print(missing)
        return 2
    print(account(suite, outcomes))
    lost = stopped_passing(suite, outcomes)
    for test, why in lost.items():
        print(f"STOPPED PASSING {test}: {why}")
    if chosen.record:
        suite.record(passed(outcomes))
    return 1 if lost else 0


def tell(outcomes: Sequence[Outcome], name: str, text: str) -> None:
    """Print outcomes as they arrive; keep the output of failed tests in $STRATALOG_COMPAT_LOGS, if set."""
    for outcome in outcomes:
        print(f"{outcome.result:8} {outcome.seconds:6.1f} {outcome.test}", flush=True)
    logs = os.environ.get("STRATALOG_COMPAT_LOGS")
    if logs and any(outcome.result not in {"pass", "skip"} for outcome in outcomes):
        Path(logs).mkdir(parents=True, exist_ok=True)
        (Path(logs) / f"{name}.txt").write_text(text[-1_000_000:])


def run_bounded(
    command: Sequence[str | Path],
    *,
    cwd: Path,
    environ: dict[str, str],
    output: Path,
    limit_s: float,
) -> int | None:
    """Run tests in their own process group, with their output in `output`.

    Return the exit code, or None after a timeout.
    """
    with output.open("wb") as stream:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            start_new_session=True,
        )
        try:
            return process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def must_run(
    what: str,
    *command: str | Path,
    cwd: Path,
    timeout_s: float,
    environ: dict[str, str] | None = None,
) -> None:
    """Run one step of a download or build. Raise CannotBeHadError with the end of its output if it fails."""
    try:
        done = subprocess.run(
            [str(word) for word in command],
            cwd=cwd,
            env={**os.environ, **(environ or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotBeHadError(f"{what}: {error}") from error
    if done.returncode != 0:
        raise CannotBeHadError(f"{what}: {' '.join(done.stdout.split())[-300:]}")
