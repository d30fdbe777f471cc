"""Goal: idempotent producers are answered as told. Method: scripts, each command followed by its full trace.

After an intended change run with GOLDEN_REWRITE=1, and commit the difference only if you can explain each line of it.
"""

import os
from pathlib import Path

import pytest
from tests.golden.producer_script import Story

STORIES = sorted((Path(__file__).parent / "producers").glob("*.txt"))


def replayed(text):
    """The script with the trace that its commands give now."""
    story = Story()
    lines = []
    for line in text.splitlines():
        if line.startswith("> "):
            lines.append(line)
            lines.extend(f"  {one}" for one in story.run(line[2:]))
        elif not line.startswith("  "):
            lines.append(line)
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_story(path):
    told = path.read_text()
    now = replayed(told)
    if os.environ.get("GOLDEN_REWRITE") == "1":
        path.write_text(now)
    else:
        assert now == told


def test_there_are_stories():
    assert len(STORIES) >= 8
