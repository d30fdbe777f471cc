"""librdkafka's own test-runner against a broker: `python -m tests.compat.librdkafka`.

In: its sources, which npm's package of Confluent's client carries, built once into the cache outside the checkout (a
C++ compiler, make and the headers of zlib are needed; RapidJSON's and zstd's come from Debian's packages, unpacked
beside the sources and not installed). Out: an outcome for each test. It runs what Apache Kafka was given: Kafka's
version 4.0.0, no quick mode, no local and no mock tests. It never changes a test.
"""

import os
import re
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

from pipelines.access_log.fetched import fetching
from tests.compat.suites import (
    RIGHTS,
    Outcome,
    Part,
    Suite,
    Where,
    command_line,
    javas_login,
    librdkafkas_login,
    lines,
    must_run,
    one_line,
    run_bounded,
    tell,
)
from tests.compat.tools import java, java_command, java_environment, kafka_lib

VERSION = "2.15.1"
PACKAGE = "@confluentinc/kafka-javascript@1.10.1"
KAFKA_VERSION = "4.0.0"
HEADERS = {"rapidjson-dev": "rapidjson/schema.h", "libzstd-dev": "zstd.h"}
STEP_TIMEOUT_S = 600
TEST_TIMEOUT_S = 240
# Tests that take longer, by number: the first starts Java 17 times, and Apache Kafka takes 650 s for the second.
LONGER_S = {"0098": 600, "0113": 900}
# A run must not occupy a shared machine for longer; the remaining tests are reported as `not run`.
RUN_TIMEOUT_S = float(os.environ.get("STRATALOG_COMPAT_RUN_S", "2700"))

# Tests that create a topic of three replicas: on one node they run only if selected by name.
THREE_REPLICAS = {
    "0098_consumer_txn",
    "0101_fetch_from_follower",
    "0103_transactions",
    "0107_topic_recreate",
    "0111_delay_create_topics",
}
REPLICAS = 3
# The separator of a test and its case in a name.
CASE = " > "
# Tests that need missing topics to stay missing: they run apart, against a broker that creates none by itself.
NO_TOPICS_BY_THEMSELVES = {
    "0045_subscribe_update_topic_remove",
    "0045_subscribe_update_non_exist_and_partchange",
    "0107_topic_recreate",
    "0111_delay_create_topics",
}


def sources() -> Path:
    """The built tree of librdkafka. Raises CannotBeHadError."""
    with fetching(f"librdkafka-{VERSION}") as target:
        tree = target / "package" / "deps" / "librdkafka"
        if not (target / "complete").exists():
            shutil.rmtree(target, ignore_errors=True)
            target.mkdir()
            fetch(target)
            build(tree, target / "headers" / "usr")
            (target / "complete").touch()
        return tree


def fetch(target: Path) -> None:
    must_run(
        f"npm's {PACKAGE}", "npm", "pack", "--silent", PACKAGE, cwd=target, timeout_s=STEP_TIMEOUT_S
    )
    for archive in target.glob("*.tgz"):
        must_run(
            "unpacking", "tar", "xzf", archive, "package/deps/librdkafka", cwd=target, timeout_s=60
        )
    for package, header in HEADERS.items():
        if (Path("/usr/include") / header).exists():
            continue
        must_run(
            package, "apt-get", "download", "-q", package, cwd=target, timeout_s=STEP_TIMEOUT_S
        )
        for archive in target.glob(f"{package}_*.deb"):
            must_run(package, "dpkg", "-x", archive, "headers", cwd=target, timeout_s=60)


def build(tree: Path, headers: Path) -> None:
    for script in (tree / "configure", tree / "lds-gen.py", *(tree / "tests").glob("*.sh")):
        script.chmod(0o755)
    environ = {name: str(headers / "include") for name in ("C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH")}
    # The shared library of an unpacked package has no target: the linker must use the static one.
    for linked in headers.glob("lib/*/libzstd.so"):
        linked.unlink()
    environ["LIBRARY_PATH"] = ":".join(str(place) for place in headers.glob("lib/*"))
    for command in (
        ["./configure"],
        ["make", "-j2", "libs"],
        ["make", "-j2", "-C", "tests", "build"],
    ):
        must_run("librdkafka", *command, cwd=tree, timeout_s=STEP_TIMEOUT_S, environ=environ)


def chosen(select: Sequence[str], *, apart: bool, nodes: int) -> dict[str, list[str]]:
    """Return the selector of each process and the names of its tests: those that run apart, or the others.

    The runner selects by number and so runs all tests of one number in one process. A case of a test, whose name is
    `TEST > CASE`, has a process of its own: if a test ends early, its other cases still have results.
    """
    groups: dict[str, list[str]] = {}
    left_out = THREE_REPLICAS if nodes < REPLICAS else set()
    for test in SUITE.apache_kafka():
        wanted = any(word in test for word in select) or (not select and test not in left_out)
        if wanted and (test in NO_TOPICS_BY_THEMSELVES) == apart:
            groups.setdefault(test if CASE in test else test.partition("_")[0], []).append(test)
    return groups


def run(where: Where, select: Sequence[str], *, apart: bool) -> list[Outcome]:
    """Run tests whose names hold one of `select`, or all that these nodes can run."""
    address = where.address
    tree, nodes = sources(), address.count(",") + 1
    began = time.monotonic()
    found: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="stratalog-compat-") as scratch:
        settings = Path(scratch) / "test.conf"
        settings.write_text(
            f"bootstrap.servers={address}\ntest.topic.random=true\ntest.timeout.multiplier=4\n"
            + lines(librdkafkas_login(where))
        )
        tools = Path(scratch) / "tools.properties"
        tools.write_text(lines(javas_login(where)))
        put_kafka(Path(scratch), tools)
        for name, tests in chosen(select, apart=apart, nodes=nodes).items():
            number, case = name[:4], name.partition(CASE)[2]
            left_s = RUN_TIMEOUT_S - (time.monotonic() - began)
            if left_s < 1:
                found += [Outcome(test, "not run", 0) for test in tests]
                continue
            environ = {"TESTS": number, "BROKERS": address}
            environ |= {"SUBTESTS": f"{case}:"} if case else {}
            environ |= {"TEST_SCENARIO": "noautocreate"} if apart else {}
            output = settings.with_name(f"{number}.txt")
            ended = run_bounded(
                ["./test-runner", "-p1", "-L"],
                cwd=tree / "tests",
                environ=environment(settings) | environ,
                output=output,
                limit_s=min(LONGER_S.get(number, TEST_TIMEOUT_S), left_s),
            )
            text = re.sub(r"\x1b(\[[0-9;]*m|\(B)", "", output.read_text(errors="replace"))
            outcomes = list(judge(text, tests, ended))
            tell(outcomes, f"librdkafka-{name.replace(CASE, '-')}", text)
            found += outcomes
    return found


def environment(settings: Path) -> dict[str, str]:
    """Return the runner's environment, without the selection of tests."""
    return {
        **java_environment(),
        "TEST_KAFKA_VERSION": KAFKA_VERSION,
        "RDKAFKA_TEST_CONF": str(settings),
        "KAFKA_PATH": str(settings.parent),
        "LD_LIBRARY_PATH": "../src:../src-cpp",
    }


def put_kafka(kafka: Path, login: Path) -> None:
    """Put Apache Kafka's jars and three of its scripts where some tests expect them. Raise CannotBeHadError.

    The tools have the settings of `login`.
    """
    (kafka / "libs").symlink_to(kafka_lib())
    (kafka / "bin").mkdir()
    tools = "org.apache.kafka.tools"
    topics = shlex.join(java_command(f"{tools}.TopicCommand"))
    acls = shlex.join(java_command(f"{tools}.AclCommand"))
    run_class = f'{shlex.quote(java())} -cp "$CLASSPATH:{kafka_lib()}/*"'
    scripts = {"kafka-topics": topics, "kafka-acls": acls, "kafka-run-class": run_class}
    for name, words in scripts.items():
        script = kafka / "bin" / f"{name}.sh"
        given = f" --command-config {login}" if name != "kafka-run-class" else ""
        script.write_text(f'#!/bin/sh\nexec {words}{given} "$@"\n')
        script.chmod(0o755)


def judge(text: str, tests: Sequence[str], ended: int | None) -> Iterable[Outcome]:
    """Read outcomes from the runner's output: from its table if it printed one, else from its errors."""
    words = {"PASSED": "pass", "FAILED": "fail", "SKIPPED": "skip"}
    for test in tests:
        whole, _, case = test.partition(CASE)
        name = re.escape(whole)
        row = re.search(rf"^\|\s*{name}\s*\|\s*(\w+)\s*\|\s*([\d.]+)", text, re.MULTILINE)
        complaint = re.search(rf'### Test "{name}[ "(].*\n(.*)', text)
        late = re.search(rf"^Test {name} .*timed out.*", text, re.MULTILINE)
        skipped = re.search(rf"\[{name} +/.*SKIPPING TEST: (.*)", text)
        seconds = float(row[2]) if row else 0.0
        if row and case and f"[ {case}:" not in text:
            yield Outcome(test, "fail", seconds, "there is no such case")
        elif row:
            why = complaint or skipped if row[1] != "PASSED" else None
            yield Outcome(test, words.get(row[1], "fail"), seconds, one_line(why[1] if why else ""))
        elif late or ended is None:
            yield Outcome(test, "timeout", seconds, one_line(late[0] if late else "killed"))
        elif complaint:
            yield Outcome(test, "fail", seconds, one_line(complaint[1]))
        else:
            yield Outcome(test, "crash", seconds, f"exit code {ended}")


# The suite expects these group settings, such as three seconds of rebalance delay.
SETTINGS = {
    "num__partitions": "4",
    "tier__url": "",
    "group__initial__rebalance__delay__ms": "3000",
    "group__min__session__timeout__ms": "100",
    "log__segment__delete__delay__ms": "1000",
    # A follower serves a consumer of its rack.
    "replica__selector__class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    # Kafka's default: a test's records are dated 1970, and must outlive the test.
    "log__retention__check__interval__ms": "300000",
    **RIGHTS,
}
SUITE = Suite(
    "librdkafka",
    (
        Part(SETTINGS, partial(run, apart=False)),
        Part({**SETTINGS, "auto__create__topics__enable": "false"}, partial(run, apart=True)),
    ),
)

if __name__ == "__main__":
    sys.exit(
        command_line(SUITE, "part of a test's name; without it all tests run that the nodes allow")
    )
