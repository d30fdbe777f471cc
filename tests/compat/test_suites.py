"""Third-party suites: a recorded test that no longer passes is a failure.

Method: each suite runs as its command runs it, against a real broker process. The pass lists may only grow, which the
repository's history shows. FINDINGS.md explains each test that does not pass.
"""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.compat import kafka_python, librdkafka, node_rdkafka
from tests.compat.kafka_python import outcomes
from tests.compat.librdkafka import CASE, THREE_REPLICAS, chosen, judge
from tests.compat.suites import (
    HERE,
    NODES,
    Outcome,
    Suite,
    account,
    run_suite,
    stopped_passing,
)

SUITES = [kafka_python.SUITE, librdkafka.SUITE, node_rdkafka.SUITE]
EACH = pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.name)
EACH_ON_ANY = pytest.mark.parametrize(
    "suite",
    [replace(suite, nodes=nodes) for nodes in NODES for suite in SUITES],
    ids=lambda suite: f"{suite.name}-{suite.nodes}",
)
ON_THREE = "## Only on three nodes"


@pytest.mark.big
@pytest.mark.serial
@pytest.mark.timeout(3600)
@EACH_ON_ANY
def test_recorded_tests_still_pass(suite: Suite) -> None:
    found = run_suite(suite, [])
    print(account(suite, found))
    lost = stopped_passing(suite, found)
    if lost:
        # Run the failed tests again alone: a failure under load is no regression.
        names = [test.rpartition("::")[2].split("[")[0] for test in lost]
        lost = stopped_passing(suite, run_suite(suite, names))
    assert lost == {}


@EACH_ON_ANY
def test_a_pass_list_only_grows(suite: Suite) -> None:
    listed = suite.pass_list.read_text().splitlines()
    assert listed == sorted(set(listed))
    path = suite.pass_list.relative_to(HERE.parents[1])
    history = subprocess.run(
        ["git", "log", "--format=", "--no-renames", "--unified=0", "--patch", "--", path],
        cwd=HERE,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    ever = set(re.findall(r"^\+(?!\+\+)(.+)", history, re.MULTILINE))
    assert ever - set(listed) == set()


def findings() -> tuple[str, str]:
    """Return what FINDINGS.md says of any number of nodes, and its section about three nodes."""
    text = (HERE / "FINDINGS.md").read_text()
    begin = text.index(ON_THREE)
    end = text.index("\n## ", begin + len(ON_THREE))
    return text[:begin] + text[end:], text[begin:end]


def names_in(text: str) -> set[str]:
    return set(re.findall(r"`([^`]+)`", text))


@EACH_ON_ANY
def test_a_finding_names_every_test_that_is_not_recorded(suite: Suite) -> None:
    passes_there = {test for test, result in suite.apache_kafka().items() if result != "skip"}
    always, on_three = map(names_in, findings())
    explained = always if suite.nodes == 1 else always - THREE_REPLICAS | on_three
    assert passes_there - suite.must_pass() - explained == set()
    assert suite.must_pass() & explained == set()


@EACH
def test_the_findings_give_the_counts(suite: Suite) -> None:
    """A heading has the lists' own counts, without cases."""

    def whole(tests: set[str]) -> int:
        return sum(CASE not in test for test in tests)

    peer = suite.apache_kafka()
    theirs = whole({test for test, result in peer.items() if result == "pass"})
    one, three = (whole(replace(suite, nodes=nodes).must_pass()) for nodes in NODES)
    name = suite.name.replace("_", "-")
    heading = rf"^## {name} [\d.]+: of (\d+), (\d+) pass, (\d+) on three nodes; Apache Kafka (\d+)$"
    (counts,) = re.findall(heading, (HERE / "FINDINGS.md").read_text(), re.MULTILINE)
    assert tuple(map(int, counts)) == (whole(set(peer)), one, three, theirs)


def test_the_findings_list_the_tests_that_never_run() -> None:
    text = (HERE / "FINDINGS.md").read_text()
    (section,) = re.findall(r"^## Tests that never run$(.*?)^## ", text, re.MULTILINE | re.DOTALL)
    skipped = {test for test, result in librdkafka.SUITE.apache_kafka().items() if result == "skip"}
    assert set(re.findall(r"\b\d{4}_\w+", section)) == skipped


def test_tests_of_three_replicas_run_where_three_nodes_are() -> None:
    def all_chosen(nodes: int) -> set[str]:
        return {
            test
            for apart in (False, True)
            for group in chosen([], apart=apart, nodes=nodes).values()
            for test in group
        }

    assert all_chosen(3) - all_chosen(1) == THREE_REPLICAS
    assert librdkafka.SUITE.apache_kafka().keys() >= THREE_REPLICAS


# What requirements/dev.in has beyond the product.
ONLY_FOR_TESTS = "aiokafka boto3 confluent_kafka duckdb hypothesis kafka moto psutil pytest"


@EACH
def test_a_command_needs_no_package_of_the_tests(suite: Suite, repository: Path) -> None:
    program = (
        f"import runpy, sys; sys.modules.update(dict.fromkeys({ONLY_FOR_TESTS.split()!r}));"
        f"sys.argv[1:] = ['--help']; runpy.run_module('tests.compat.{suite.name}', run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=repository, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert f"tests.compat.{suite.name}" in done.stdout


def test_a_test_that_stopped_passing_is_reported() -> None:
    one = min(kafka_python.SUITE.must_pass())
    failed = [Outcome(one, "fail", 0.1, "said so"), Outcome("unknown", "fail", 0.1)]
    assert stopped_passing(kafka_python.SUITE, failed) == {one: "fail said so"}
    assert stopped_passing(kafka_python.SUITE, [Outcome(one, "pass", 0.1)]) == {}
    assert "2 tests: 2 fail" in account(kafka_python.SUITE, failed)


def test_a_junit_report_is_read(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(
        '<testsuites><testsuite><testcase classname="test.integration.test_a" name="one" time="0.5"/>'
        '<testcase classname="test.integration.test_a" name="two"><failure message="no\nway">x</failure></testcase>'
        '<testcase classname="test.integration.test_a" name="three"><skipped message="why"/></testcase>'
        "</testsuite></testsuites>"
    )
    assert outcomes(report) == [
        Outcome("test_a::one", "pass", 0.5),
        Outcome("test_a::two", "fail", 0.0, "no way"),
        Outcome("test_a::three", "skip", 0.0, "why"),
    ]


TABLE = """\
| 0001_multiobj                                      |     PASSED |   1.427s |
| 0092_mixed_msgver                                  |    SKIPPED |   0.000s | | too old
"""


def test_mochas_report_is_read_and_a_failed_hook_fails_the_tests_after_it() -> None:
    good = {"fullTitle": "a  passes", "duration": 1500, "err": {}}
    bad = {"fullTitle": "a fails", "duration": 0, "err": {"message": "no\nway"}}
    hook = {"fullTitle": 'a "before" hook', "err": {"message": "broke"}}
    report = json.dumps({"tests": [good, bad], "pending": [], "failures": [bad, hook]})
    listed = ["one::a passes", "one::a fails", "one::never reached", "two::of another file"]
    assert list(node_rdkafka.judge(report, "one", listed, 1)) == [
        Outcome("one::a passes", "pass", 1.5),
        Outcome("one::a fails", "fail", 0.0, "no way"),
        Outcome("one::never reached", "fail", 0.0, 'a "before" hook: broke'),
    ]
    assert [one.result for one in node_rdkafka.judge("", "one", listed, None)] == ["timeout"] * 3


@pytest.mark.parametrize(
    ("text", "ended", "expected"),
    [
        (TABLE, 0, ("pass", 1.427, "")),
        (
            '### Test "0001_multiobj (sub:12)" failed at a.c:1:f() at noon: ###\nhow odd\n',
            134,
            ("fail", 0.0, "how odd"),
        ),
        ("Test 0001_multiobj (sub) timed out (timeout set to 40 seconds)\n", -9, None),
        ("", None, ("timeout", 0.0, "killed")),
        ("", 139, ("crash", 0.0, "exit code 139")),
    ],
)
def test_the_runners_output_becomes_outcomes(
    text: str, ended: int | None, expected: tuple[str, float, str] | None
) -> None:
    (found,) = judge(text, ["0001_multiobj"], ended)
    result, seconds, reason = expected or ("timeout", 0.0, text.strip())
    assert found == Outcome("0001_multiobj", result, seconds, reason)


def test_a_case_passes_where_it_ran() -> None:
    ran = "[0001_multiobj  /  1.2s] [ one:12: with this ]\n" + TABLE
    names = ["0001_multiobj > one", "0001_multiobj > two"]
    assert [found.result for found in judge(ran, names, 0)] == ["pass", "fail"]


def test_the_cases_are_counted_too() -> None:
    peer = [test for test in librdkafka.SUITE.apache_kafka() if CASE in test]
    for nodes in NODES:
        ours = [test for test in replace(librdkafka.SUITE, nodes=nodes).must_pass() if CASE in test]
        where = "on one node" if nodes == 1 else "on three"
        assert f"{len(ours)} of {len(peer)} pass {where}" in (HERE / "FINDINGS.md").read_text()


def test_a_skipped_test_says_why() -> None:
    text = "[0092_mixed_msgver   /  0.001s] SKIPPING TEST: too new\n" + TABLE
    assert list(judge(text, ["0092_mixed_msgver"], 0)) == [
        Outcome("0092_mixed_msgver", "skip", 0.0, "too new")
    ]
