"""The first program of docs/spark.md runs unchanged, also with the environment not on PATH."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.spark_scratch import scratch
from tests.unit.table.buckets import NOW_MS, Bucket, batch

from stratalog.adapters.object_store import open_store

pytestmark = [
    pytest.mark.big,
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("spark"),
    pytest.mark.skipif(
        shutil.which("java") is None and "JAVA_HOME" not in os.environ, reason="no Java 17 or later"
    ),
]

PAGE = Path(__file__).parents[2] / "docs/spark.md"


def test_the_first_program_of_the_page_runs_without_the_environment_on_path(tmp_path: Path) -> None:
    url = (tmp_path / "bucket").as_uri()
    bucket = Bucket(open_store(url))
    bucket.create("events", 2)
    bucket.archive("events", 0, [[batch(0, 30)]])
    # No record is as young as the requested timestamp.
    bucket.archive("events", 1, [[batch(0, 10)]])
    found = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    changed = {
        '    .option("kafka.bootstrap.servers", "broker:9092")\n': "",
        "s3://history": url,
        "1767225600000": str(NOW_MS + 20),
        "events.show()": "print('rows', events.count())",
    }
    program = found[1]
    for old, new in changed.items():
        assert old in program
        program = program.replace(old, new)
    job = tmp_path / "job.py"
    job.write_text(program)
    own = Path(sys.executable).parent
    path = [one for one in os.environ["PATH"].split(os.pathsep) if Path(one) != own]
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("PYSPARK_") and name not in {"CLASSPATH", "VIRTUAL_ENV"}
    }
    done = subprocess.run(
        [sys.executable, str(job)],
        env={
            **kept,
            **scratch(tmp_path),
            "PATH": os.pathsep.join(path),
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "rows 10" in done.stdout
