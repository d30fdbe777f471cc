"""Spark's temporary files go into a test's own directory.

In: a directory. Out: variables for a process that is or starts Spark. A JVM that is killed leaves its blocks,
artifacts and unpacked libraries behind, and only Spark's Python looks at TMPDIR.
"""

from pathlib import Path


def scratch(place: Path) -> dict[str, str]:
    """Variables under which every JVM and Python below keeps temporary files below `place`."""
    made = place / "scratch"
    made.mkdir(parents=True, exist_ok=True)
    return {"TMPDIR": str(made), "JAVA_TOOL_OPTIONS": f"-Djava.io.tmpdir={made}"}
