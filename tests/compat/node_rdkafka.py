"""node-rdkafka's own end-to-end tests against a broker: `python -m tests.compat.node_rdkafka`.

In: npm's package, which carries them and the librdkafka that it builds, once, into the cache outside the checkout
(Node.js with its headers, a C++ compiler and make are needed). Out: an outcome for each test that Apache Kafka was
given: its title after its file's name. It never changes a test: those of a login over TLS load `LOGIN` before.
"""

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pipelines.access_log.fetched import fetching
from tests.compat.suites import (
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
from tests.compat.tools import CannotBeHadError

VERSION = "3.6.1"
PACKAGE = f"node-rdkafka@{VERSION}"
TOOLS = ("mocha@10.8.2", "node-gyp@11.5.0")
STEP_TIMEOUT_S = 300
BUILD_TIMEOUT_S = 1500
LOGIN = Path(__file__).with_name("node_rdkafka_login.js")
# Topics that its tests expect: the suite's own set-up creates them.
TOPICS = ("test", "test2")
# The suite's own limit, of one test, and ours, of one file.
TEST_TIMEOUT_S = 120
FILE_TIMEOUT_S = 600


def sources() -> Path:
    """The built package, mocha in `tools` beside it. Raises CannotBeHadError."""
    with fetching(f"node-rdkafka-{VERSION}") as target:
        package, tools = target / "package", target / "tools"
        if (target / "complete").exists():
            return package
        shutil.rmtree(target, ignore_errors=True)
        tools.mkdir(parents=True)
        npm = ("npm", "install", "--no-save", "--no-package-lock", "--no-audit", "--no-fund")
        pack = ("npm", "pack", "--silent", PACKAGE)
        must_run(f"npm's {PACKAGE}", *pack, cwd=target, timeout_s=STEP_TIMEOUT_S)
        for archive in target.glob("*.tgz"):
            must_run("unpacking", "tar", "xzf", archive, cwd=target, timeout_s=STEP_TIMEOUT_S)
        must_run("mocha and node-gyp", *npm, *TOOLS, cwd=tools, timeout_s=STEP_TIMEOUT_S)
        needs = ("--omit=dev", "--ignore-scripts")
        must_run("what it needs", *npm, *needs, cwd=package, timeout_s=STEP_TIMEOUT_S)
        # With more than one job its build does not wait for librdkafka's configure.
        gyp = tools / "node_modules" / ".bin" / "node-gyp"
        words = ("rebuild", "--jobs=1", *headers())
        must_run("node-rdkafka's build", gyp, *words, cwd=package, timeout_s=BUILD_TIMEOUT_S)
        (target / "complete").touch()
        return package


def headers() -> list[str]:
    """Node.js's own headers, where they lie beside it: node-gyp would fetch them."""
    node = shutil.which("node")
    prefix = Path(node).resolve().parents[1] if node else Path("/")
    return [f"--nodedir={prefix}"] if (prefix / "include" / "node" / "node.h").exists() else []


def run(where: Where, select: Sequence[str]) -> list[Outcome]:
    """Run the files in which the name of a test holds one of `select`, or all; one process a file."""
    address = where.address
    package = sources()
    listed = SUITE.apache_kafka()
    wanted = [test for test in listed if not select or any(word in test for word in select)]
    found: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="stratalog-compat-") as scratch:
        environ, hook = logging_in(where)
        create_topics(where, Path(scratch) / "client.properties")
        for name in dict.fromkeys(test.partition("::")[0] for test in wanted):
            report, output = Path(scratch) / f"{name}.json", Path(scratch) / f"{name}.txt"
            mocha = package.parent / "tools" / "node_modules" / ".bin" / "mocha"
            words = ["--exit", "--timeout", f"{TEST_TIMEOUT_S * 1000}", "--ui", "bdd"]
            words += ["--reporter", "json", "--reporter-option", f"output={report}"]
            ended = run_bounded(
                [mocha, *hook, *words, f"e2e/{name}.spec.js"],
                cwd=package,
                environ={**os.environ, **environ, "KAFKA_HOST": address},
                output=output,
                limit_s=FILE_TIMEOUT_S,
            )
            text = report.read_text() if report.exists() else ""
            outcomes = list(judge(text, name, listed, ended))
            tell(outcomes, f"node-rdkafka-{name}", output.read_text(errors="replace"))
            found += outcomes
    return found


def logging_in(where: Where) -> tuple[dict[str, str], list[str]]:
    """Return mocha's environment and words for clients that log in over TLS, or nothing."""
    login = librdkafkas_login(where)
    return (
        ({"NODE_RDKAFKA_LOGIN": json.dumps(login)}, ["--require", str(LOGIN)])
        if login
        else ({}, [])
    )


def create_topics(where: Where, properties: Path) -> None:
    """Create missing topics with one partition. The login of our command goes to the file."""
    properties.write_text(lines(javas_login(where)))
    strata = (sys.executable, "-m", "stratalog.cli.main", "--config", properties)
    create = (*strata, "topic", "create", "--if-not-exists")
    one = ("--partitions", "1", "--replication-factor", "1", "--bootstrap-server", where.address)
    for topic in TOPICS:
        must_run(f"topic {topic}", *create, topic, *one, cwd=Path.cwd(), timeout_s=STEP_TIMEOUT_S)


def judge(report: str, name: str, listed: Iterable[str], ended: int | None) -> Iterable[Outcome]:
    """Return the outcomes of one file from mocha's report, and of each listed test that the report lacks.

    If a hook fails, mocha reports the hook and no test after it: those tests get the hook's message.
    """
    if report:
        parsed = json.loads(report)
    elif ended is None:
        parsed = {"tests": [], "failures": [{"fullTitle": "", "err": {"message": "killed"}}]}
    else:
        raise CannotBeHadError(f"mocha did not run {name}: exit code {ended}")
    waits = {titled(name, test) for test in parsed.get("pending", [])}
    seen = set()
    for test in parsed["tests"]:
        title = titled(name, test)
        seen.add(title)
        reason = one_line(test["err"].get("message", ""))
        result = "fail" if test["err"] else "skip" if title in waits else "pass"
        yield Outcome(title, result, test.get("duration", 0) / 1000, reason)
    hooks = [
        f"{failure['fullTitle']}: {failure['err'].get('message', '')}"
        for failure in parsed["failures"]
        if titled(name, failure) not in seen
    ]
    for test in listed:
        if test.startswith(f"{name}::") and test not in seen:
            result = "timeout" if ended is None else "fail"
            yield Outcome(test, result, 0.0, one_line(" ".join(hooks)))


def titled(name: str, test: dict[str, Any]) -> str:
    return f"{name}::{' '.join(test['fullTitle'].split())}"


SETTINGS = {"num__partitions": "1", "tier__url": ""}
SUITE = Suite("node_rdkafka", (Part(SETTINGS, run),))

if __name__ == "__main__":
    sys.exit(command_line(SUITE, "part of a test's name; without it all tests run"))
