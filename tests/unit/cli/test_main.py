"""A failure is one line with the right exit code, and the help imports no heavy module."""

import subprocess
import sys

import pytest

from stratalog.cli.main import exit_code, explanation
from stratalog.errors import Corrupt, ErrorCode, Fenced, Rejected, Unavailable, UserError


@pytest.mark.parametrize(
    ("error", "line", "code"),
    [
        (UserError("--from: 'x'\n is  wrong"), "--from: 'x' is wrong", 2),
        (Unavailable("broker a:1 unreachable: no"), "broker a:1 unreachable: no", 2),
        (Fenced("a newer leader"), "a newer leader", 2),
        (Corrupt("x.seg: altered"), "x.seg: altered", 1),
        (
            Rejected(ErrorCode.invalid_config, "retention.ms: 'x'"),
            "retention.ms: 'x' (INVALID_CONFIG)",
            2,
        ),
        (
            Rejected(ErrorCode.offset_out_of_range, "t-0 at 9: offset_out_of_range"),
            "t-0 at 9: OFFSET_OUT_OF_RANGE",
            2,
        ),
        (Rejected(ErrorCode.not_controller), "NOT_CONTROLLER", 2),
        (
            FileNotFoundError(2, "No such file or directory", "x.log"),
            "x.log: No such file or directory",
            2,
        ),
        (ExceptionGroup("tasks", [ExceptionGroup("more", [UserError("inside")])]), "inside", 2),
    ],
)
def test_a_failure_is_one_line(error: Exception, line: str, code: int) -> None:
    assert explanation(error) == (line, code)


@pytest.mark.parametrize(
    "bug",
    [ValueError("x"), AssertionError(), ExceptionGroup("two", [UserError("a"), UserError("b")])],
)
def test_a_bug_keeps_its_traceback(bug: Exception) -> None:
    assert explanation(bug) is None


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            "broker drain x",
            "ID: 'x' is not accepted; accepted: a whole number (see: strata broker drain --help)",
        ),
        (
            "perf produce t --num-records 0",
            "--num-records: '0' is not accepted; accepted: 1 or more",
        ),
        ("cluster start --nodes 10", "--nodes: '10' is not accepted; accepted: 9 or less"),
        ("consume t --timeout soon", "--timeout: 'soon' is not accepted; accepted: a number"),
        (
            "consume t --isolation-level x",
            "--isolation-level: 'x' is not one of 'read_uncommitted', ",
        ),
        ("topic create", "Missing argument 'TOPIC' (see: strata topic create --help)"),
        ("topic creat", "No such command 'creat'. Did you mean 'create'?"),
        ("topic list --jsn", "No such option: --jsn (Possible options: --json)"),
    ],
)
def test_a_wrong_command_line_is_one_line(
    words: str, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["strata", *words.split()])
    assert exit_code(words.split()) == 2
    (printed,) = capsys.readouterr().err.splitlines()
    assert printed.startswith(f"strata: {line}")


def test_a_group_without_a_command_prints_its_help(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["strata", "topic"])
    assert exit_code(["topic"]) == 2
    assert capsys.readouterr().err.startswith("Usage: strata topic [OPTIONS] COMMAND")


def test_the_command_imports_no_heavy_module_before_it_runs() -> None:
    program = "import sys, stratalog.cli.main; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    heavy = {
        "asyncio",
        "crc32c",
        "msgspec",
        "numba",
        "obstore",
        "pyarrow",
        "pyspark",
        "rich",
        "structlog",
        "uvloop",
    }
    assert not heavy & set(done.stdout.split())
    assert "stratalog.node" not in done.stdout.split()
