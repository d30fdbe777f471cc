"""`strata pipeline run` up to the start of Spark: specifications, Java, errors, processes that end."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stratalog.cli import pipeline
from stratalog.cli.main import exit_code
from stratalog.cli.pipeline import PipelineRun, spark_environment, start_spark
from stratalog.errors import UserError


def ignore(_table, _state):
    pass


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (None, "no spark-pipeline.yml there"),
        ("- a list", "a mapping is expected"),
        ("name: [", "spark-pipeline.yml: while parsing"),
        (b"\xff\xfe\x00", "spark-pipeline.yml: "),
    ],
)
def test_a_specification_that_cannot_be_read_is_one_line(tmp_path, spec, reason):
    project = tmp_path / "project"
    project.mkdir()
    if spec is not None:
        data = spec if isinstance(spec, bytes) else spec.encode()
        (project / "spark-pipeline.yml").write_bytes(data)
    with pytest.raises(UserError, match=reason) as caught:
        PipelineRun(project, tmp_path / "state").update(ignore)
    assert "\n" not in str(caught.value)


def test_a_missing_directory_is_one_line(tmp_path):
    with pytest.raises(UserError, match="no such directory"):
        PipelineRun(tmp_path / "nowhere", tmp_path / "state").update(ignore)


def test_a_wrong_directory_is_refused_before_a_bar_is_shown(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(pipeline, "spark_home", lambda: None)  # Spark may be missing here
    nowhere = str(tmp_path / "nowhere")
    state = str(tmp_path / "state")
    words = ["pipeline", "run", nowhere, "--state", state]
    monkeypatch.setattr(sys, "argv", ["strata", *words])
    assert exit_code(words) == 2
    assert capsys.readouterr().err == (
        f"strata: {nowhere}: no such directory; name the directory of a spark-pipeline.yml\n"
    )
    assert not Path(state).exists()


def test_missing_java_is_one_line(tmp_path, monkeypatch):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="Java is missing and Spark needs 17 or newer"):
        spark_environment(tmp_path, master="local")


@pytest.mark.parametrize("version", ["1.8", "11", "16"])
def test_an_old_java_is_one_line(tmp_path, monkeypatch, version):
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho '    java.specification.version = {version}' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(UserError, match=f"is Java {version} and Spark needs 17"):
        spark_environment(tmp_path, master="local")


def test_modules_are_found_beside_the_specification_or_in_its_libraries(tmp_path):
    project = tmp_path / "project"
    project.mkdir()
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "of_both.py").write_text("WHERE = 'shared'")
    (project / "spark-pipeline.yml").write_text(
        "name: p\nconfiguration: {stratalog.modules: '../shared:../more'}\n"
    )
    _, modules = PipelineRun(project, tmp_path / "state")._prepare()
    assert modules == [project, project / "../shared", project / "../more"]
    environment = spark_environment(tmp_path, master="local", modules=modules)
    said = subprocess.run(
        [sys.executable, "-c", "import of_both; print(of_both.WHERE)"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert said == "shared\n"


def run_with_script(monkeypatch, tmp_path, script, state=None):
    """Run a pipeline with `script` in place of Spark's runner; return the received events."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "spark-pipeline.yml").write_text(
        "name: p\nstorage: s\nconfiguration: {a: b, c: d}\n"
    )
    (project / "one.sql").touch()
    monkeypatch.setattr(pipeline, "spark_environment", lambda *_, **__: dict(os.environ))
    monkeypatch.setattr(pipeline, "RUNNER", ["-c", script])
    events = []
    run = PipelineRun(project, state or tmp_path / "state", conf={"c": "e"})
    run.update(lambda *event: events.append(event))
    return events


def test_a_run_has_its_own_specification_and_reports_events(monkeypatch, tmp_path):
    script = (
        "import sys; print(open(sys.argv[1]).read().replace(chr(10), ' '));"
        "print('t: Flow spark_catalog.default.raw is STARTING.');"
        "print('t: Flow `spark_catalog`.`default`.`raw` has COMPLETED.')"
    )
    events = run_with_script(monkeypatch, tmp_path, script)
    assert events == [("raw", "STARTING"), ("raw", "COMPLETED")]
    state = tmp_path / "state"
    spec = json.loads((state / "run.log").read_text().splitlines()[0])
    assert spec["configuration"] == {"a": "b", "c": "e"}
    assert spec["storage"] == (state / "storage").as_uri()
    assert (state / "project" / "one.sql").resolve() == tmp_path / "project" / "one.sql"
    assert f"databaseName={state}/metastore" in (state / "conf" / "spark-defaults.conf").read_text()


def test_a_state_may_be_named_from_where_the_command_runs(monkeypatch, tmp_path):
    """As the default is: Spark's runner has the state as its own directory, and must find what is in it."""
    monkeypatch.chdir(tmp_path)
    run_with_script(monkeypatch, tmp_path, "import sys; open(sys.argv[1])", Path(".state/p"))
    assert (tmp_path / ".state" / "p" / "project" / "one.sql").exists()


def test_a_failed_run_shows_sparks_error(monkeypatch, tmp_path):
    script = (
        "print('Flow raw has FAILED.'); print('Error: [TABLE_NOT_FOUND] no table. Try again.');"
        "print('  at org.apache'); raise SystemExit(1)"
    )
    with pytest.raises(
        UserError, match=r"\[TABLE_NOT_FOUND\] no table. Try again \(log: .*run.log"
    ):
        run_with_script(monkeypatch, tmp_path, script)


def test_a_failed_run_shows_our_error_before_pythons(monkeypatch, tmp_path):
    script = (
        "print('ConnectionRefusedError: [Errno 111] Connection refused');"
        "print('org.apache.spark.SparkException: [FAILED] to plan: '"
        "'stratalog.errors.Unavailable: broker h:1 unreachable'); raise SystemExit(1)"
    )
    with pytest.raises(UserError, match=r": broker h:1 unreachable \(log: "):
        run_with_script(monkeypatch, tmp_path, script)


def test_a_line_that_announces_a_traceback_is_not_the_reason(monkeypatch, tmp_path):
    script = (
        "print('pyspark.errors.AnalysisException: [X] Failed: Traceback (most recent call last):');"
        "print('  File a.py, line 85'); print('ValueError: option a must be b.'); raise SystemExit(1)"
    )
    with pytest.raises(UserError, match=r": option a must be b \(log: "):
        run_with_script(monkeypatch, tmp_path, script)


def test_a_run_removes_leftovers_of_an_earlier_run_beside_its_specification(tmp_path):
    project, state = tmp_path / "project", tmp_path / "state"
    project.mkdir()
    (project / "spark-pipeline.yml").write_text("name: p\n")
    run = PipelineRun(project, state)
    run._prepare()
    (state / "project" / "made" / "by a definition").mkdir(parents=True)
    run._prepare()
    assert [path.name for path in (state / "project").iterdir()] == ["spark-pipeline.yml"]


def test_a_run_that_dies_silently_is_reported(monkeypatch, tmp_path):
    with pytest.raises(UserError, match="Spark ended without a word"):
        run_with_script(monkeypatch, tmp_path, "import os; os._exit(3)")


def test_a_table_has_only_committed_files(tmp_path):
    """Goal: files of a failed update do not count, nor do entries that a compacted log already has."""
    table = tmp_path / "a state" / "warehouse" / "raw"
    log = table / "_spark_metadata"
    log.mkdir(parents=True)
    for name in ("one", "two", "three", "left over"):
        (table / f"{name}.parquet").touch()

    def batch(name, *files):
        entries = [json.dumps({"path": (table / f"{file}.parquet").as_uri()}) for file in files]
        (log / name).write_text("\n".join(["v1", *entries]))

    batch("8", "one")
    batch("9.compact", "one", "two")
    batch("10", "three")
    (log / ".10.crc").touch()
    assert [path.stem for path in pipeline.table_files(table)] == ["one", "two", "three"]
    view = tmp_path / "view"
    view.mkdir()
    for name in ("part-0.parquet", "_SUCCESS", ".part-0.parquet.crc"):
        (view / name).touch()
    assert [path.name for path in pipeline.table_files(view)] == ["part-0.parquet"]


STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
time.sleep(600)
"""


def test_leaving_kills_a_process_group_that_ignores_sigterm(tmp_path, monkeypatch):
    monkeypatch.setattr(pipeline, "PATIENCE_S", 0.5)

    class Stop(Exception):
        pass

    pids = []

    def interrupted():
        with start_spark(["-c", STUBBORN], os.environ, tmp_path) as process:
            pids.extend([process.pid, int(process.stdout.readline())])
            raise Stop

    with pytest.raises(Stop):
        interrupted()
    for pid in pids:
        assert ends(pid)


def ends(pid):
    """Return whether a process has ended; the system takes a moment to remove a killed one."""
    deadline = time.monotonic() + 20
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not alive(pid)


def alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_a_spark_process_ends_with_its_parent(tmp_path):
    script = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from stratalog.cli.pipeline import start_spark\n"
        "child = 'from stratalog.spark.pipeline_runner import end_with_parent as e; "
        "import time; e(); print(1, flush=True); time.sleep(600)'\n"
        "with start_spark(['-c', child], os.environ, Path('.')) as process:\n"
        "    process.stdout.readline()\n"
        "    print(process.pid, flush=True)\n"
        "    process.wait()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    ) as parent:
        child = int(parent.stdout.readline())
        descriptor = os.pidfd_open(child) if hasattr(os, "pidfd_open") else None
        parent.send_signal(signal.SIGKILL)
    if descriptor is None:
        pytest.skip("no pidfd_open on this system")
    try:
        import select

        ended, _, _ = select.select([descriptor], [], [], 20)
        assert ended
    finally:
        os.close(descriptor)
