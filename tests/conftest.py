"""Every test's environment, and a summary of what this machine could not provide."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from hypothesis import settings

# A slow machine is not a failure: no test depends on the wall clock.
settings.register_profile("stratalog", deadline=None)
settings.load_profile("stratalog")

# Tests start children of their own; none of them may take a setting from the caller's environment.
for variable in [name for name in os.environ if name.startswith(("STRATA_", "KAFKA_"))]:
    del os.environ[variable]

# A test's Spark runs for seconds, and Java's second compiler takes half of the processor time of those.
os.environ["SPARK_SUBMIT_OPTS"] = "-XX:TieredStopAtLevel=1"

gc.disable()  # until all tests are collected: what that makes stays


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups in the same hook
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests marked `serial` share one worker, so no two of them run at once."""
    for item in items:
        if item.get_closest_marker("serial"):
            item.add_marker(pytest.mark.xdist_group("serial"))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Fail where xdist would not group them: its scheduler reads the group from the end of a test's id."""
    gc.enable()
    gc.freeze()  # a collection walks what a test made, not the 600,000 objects of pytest and of what tests import
    grouped = getattr(session.config.option, "loadgroup", False)
    for item in session.items:
        if grouped and item.get_closest_marker("serial") and not item.nodeid.endswith("@serial"):
            raise pytest.UsageError(f"{item.nodeid} would run beside another serial test")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print one line for each requirement of tests that the machine does not meet."""
    reasons: dict[str, int] = {}
    for report in terminalreporter.stats.get("skipped", []):
        if isinstance(report.longrepr, tuple):
            reason = str(report.longrepr[2]).removeprefix("Skipped: ")
            reasons[reason] = reasons.get(reason, 0) + 1
    if reasons:
        terminalreporter.section("not tested")
        for reason, count in sorted(reasons.items()):
            terminalreporter.line(f"{count} skipped: {reason}")


@pytest.fixture(autouse=True, scope="session")
def no_profiles(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Hide the caller's profiles (`strata profile`) from every command of the run."""
    os.environ["XDG_CONFIG_HOME"] = str(tmp_path_factory.mktemp("config"))


@pytest.fixture(autouse=True)
def default_log_output() -> Iterator[None]:
    """Undo a test's configuration of the log: a server in this process writes past the captured output."""
    yield
    structlog.reset_defaults()


@pytest.fixture
def repository() -> Path:
    """The top of the checkout."""
    return Path(__file__).parent.parent
