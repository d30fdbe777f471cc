"""kafka-python's own integration tests against a broker: `python -m tests.compat.kafka_python`.

In: its source distribution, fetched once into the cache outside the checkout with an environment of its own. Out: an
outcome for each test. The suite's tests of TLS are left out: they need a broker that the suite itself spawns. It never
changes a test.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path

from pipelines.access_log.fetched import fetching
from tests.compat.suites import (
    PASSWORD,
    RIGHTS,
    USER,
    Outcome,
    Part,
    Suite,
    Where,
    command_line,
    must_run,
    one_line,
)
from tests.compat.tools import CannotBeHadError

VERSION = "3.0.12"
FETCH_TIMEOUT_S = 300
TEST_TIMEOUT_S = 30
RUN_TIMEOUT_S = 600
# The codecs are optional for the client, and its tests need them.
NEEDS = ("pytest", "pytest-mock", "pytest-timeout", "crc32c", "lz4", "python-snappy", "zstandard")

# The distribution leaves out the module that spawns brokers; against a running one the suite needs two names of it.
SERVICE = '''"""Brokers that are already running."""


class ExternalService:
    def __init__(self, host, port):
        self.host, self.port = host, port

    def open(self):
        pass

    def close(self):
        pass


class SpawnedService:
    def __init__(self, *_, **__):
        raise RuntimeError("only a broker that already runs")
'''
# Its clients take these settings over their own.
LOGIN = """from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.net.compat import KafkaNetClient


def logged_in(self, first, *words, **settings):
    first(self, *words, **dict(settings, {}))


for client in (KafkaAdminClient, KafkaConsumer, KafkaProducer, KafkaNetClient):
    first = client.__init__
    client.__init__ = lambda self, *words, first=first, **settings: logged_in(self, first, *words, **settings)
"""
USES = (
    "security_protocol='SASL_SSL', ssl_cafile={!r}, sasl_mechanism='PLAIN', "
    "sasl_plain_username={!r}, sasl_plain_password={!r}"
)
INFER = (
    "import sys; from kafka import KafkaConsumer; "
    "c = KafkaConsumer(bootstrap_servers=sys.argv[1]); print(*c.config['api_version'], sep='.'); c.close()"
)


def sources() -> Path:
    """The unpacked distribution with `venv` beside its files. Raises CannotBeHadError."""
    with fetching(f"kafka-python-{VERSION}") as target:
        if (target / "complete").exists():
            return target
        shutil.rmtree(target, ignore_errors=True)
        venv = target / "venv"
        must_run(
            "a virtual environment",
            sys.executable,
            "-m",
            "venv",
            venv,
            cwd=target.parent,
            timeout_s=120,
        )
        pip = (venv / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "--no-input")
        fetch = ("download", "-q", "--no-deps", "--no-binary", ":all:", f"kafka-python=={VERSION}")
        must_run(f"kafka-python {VERSION}", *pip, *fetch, cwd=target, timeout_s=FETCH_TIMEOUT_S)
        must_run(
            "pytest and codecs",
            *pip,
            "install",
            "-q",
            *NEEDS,
            cwd=target,
            timeout_s=FETCH_TIMEOUT_S,
        )
        archive = target / f"kafka_python-{VERSION}.tar.gz"
        must_run(
            "unpacking", "tar", "xzf", archive, "--strip-components=1", cwd=target, timeout_s=60
        )
        (target / "test" / "__init__.py").touch()
        (target / "test" / "service.py").write_text(SERVICE)
        (target / "complete").touch()
        return target


def inferred_version(source: Path, address: str, environ: dict[str, str]) -> str:
    """Return the version of Kafka that the client infers from the broker: the suite needs the same as its setting."""
    done = subprocess.run(
        [source / "venv" / "bin" / "python", "-c", INFER, address],
        cwd=source,
        env=environ,
        capture_output=True,
        text=True,
        timeout=TEST_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        raise CannotBeHadError(f"the client cannot connect: {done.stderr[-500:]}")
    return done.stdout.strip()


def run(where: Where, select: Sequence[str]) -> list[Outcome]:
    """Run tests whose names hold one of `select`, or all of them."""
    source, address = sources(), where.address
    with tempfile.TemporaryDirectory(prefix="stratalog-compat-") as scratch:
        report = Path(scratch) / "report.xml"
        environ = dict(os.environ)
        if where.authority is not None:
            # Python imports it at its start, before any test.
            (Path(scratch) / "sitecustomize.py").write_text(
                LOGIN.format(USES.format(str(where.authority), USER, PASSWORD))
            )
            environ["PYTHONPATH"] = os.pathsep.join((scratch, str(source)))
        version = inferred_version(source, address, environ)
        print(f"kafka-python {VERSION} takes the broker for Kafka {version}")
        environ |= {
            "KAFKA_URI": f"kafka://{address.partition(',')[0]}",  # it takes one
            "KAFKA_VERSION": version,
            "KAFKA_ROOT": scratch,
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        words = ["-q", "--tb=short", "-p", "no:cacheprovider", f"--junitxml={report}"]
        words += [f"--timeout={TEST_TIMEOUT_S}", "--timeout-method=signal", "--log-level=ERROR"]
        words += ["--deselect=test/integration/test_ssl_integration.py"]
        words += ["-k", " or ".join(select)] if select else []
        try:
            done = subprocess.run(
                [source / "venv" / "bin" / "python", "-m", "pytest", *words, "test/integration"],
                cwd=source,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=RUN_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise CannotBeHadError(f"the suite did not end within {RUN_TIMEOUT_S} s") from error
        if not report.exists():
            raise CannotBeHadError(f"the suite did not run: {done.stdout[-1000:]}")
        return outcomes(report)


def outcomes(report: Path) -> list[Outcome]:
    """Read a JUnit report as outcomes; the worst outcome of a test and its fixtures counts."""
    found = []
    for case in ET.parse(report).getroot().iter("testcase"):
        module = case.get("classname", "").removeprefix("test.integration.")
        result, reason = "pass", ""
        for child in case:
            if child.tag in {"failure", "error", "skipped"}:
                result = "skip" if child.tag == "skipped" else "fail"
                reason = one_line(child.get("message") or "")
        found.append(
            Outcome(f"{module}::{case.get('name')}", result, float(case.get("time", 0)), reason)
        )
    return found


SETTINGS = {
    "node__id": "0",
    "num__partitions": "4",
    "tier__url": "",
    "group__min__session__timeout__ms": "1000",
    **RIGHTS,
}
SUITE = Suite("kafka_python", (Part(SETTINGS, run),))

if __name__ == "__main__":
    sys.exit(command_line(SUITE, "part of a test's name; without it all tests run"))
