"""Scripts with their traces: each `> command` line is run, and its output must equal the lines after it.

In: a folder of scripts, and a story with `run(command) -> lines`. Out: the assertion that a trace changed, or, with
GOLDEN_REWRITE=1, the scripts with the traces of today. Never judges a trace: its committer does.
"""

import os
from pathlib import Path


def stories(folder):
    """The scripts below this directory's `folder`, in order of their names."""
    return sorted((Path(__file__).parent / folder).glob("*.txt"))


def check_story(path, story):
    """Run the script at `path` in a new story, and compare its trace with the one in the script."""
    recorded = path.read_text()
    now = _replayed(recorded, story)
    if os.environ.get("GOLDEN_REWRITE") == "1":
        path.write_text(now)
    else:
        assert now == recorded


def _replayed(text, story):
    lines = []
    for line in text.splitlines():
        if line.startswith("> "):
            lines.append(line)
            lines.extend(f"  {one}" for one in story.run(line[2:]))
        elif not line.startswith("  "):
            lines.append(line)
    return "\n".join(lines) + "\n"
