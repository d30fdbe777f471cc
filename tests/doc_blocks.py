"""The shell and Python blocks of the documentation, and what their markers say.

In: a page. Out: its blocks. It runs none.

A marker is an HTML comment on the line above a block: `run by FILE` names the test file that runs the block, and
`not run: REASON` says what the block needs. `tests/integration/test_doc_blocks.py` runs every block without a marker.
"""

import re
from dataclasses import dataclass
from pathlib import Path

TOP = Path(__file__).parent.parent
PAGES = sorted([*TOP.glob("*.md"), *TOP.glob("docs/**/*.md"), *TOP.glob("pipelines/**/*.md")])
BLOCK = re.compile(
    r"^(?:<!-- (?P<marker>(?:run by|not run:) [^\n]+) -->\n)?```(?P<language>sh|python)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Block:
    """One block of a page; `page` is its path below the top of the checkout, `marker` is empty without one."""

    page: str
    language: str
    text: str
    marker: str


def blocks(page: Path) -> list[Block]:
    """Return the page's shell and Python blocks in their order."""
    name = str(page.relative_to(TOP))
    return [
        Block(name, found["language"], found["text"], found["marker"] or "")
        for found in BLOCK.finditer(page.read_text())
    ]


def unmarked() -> list[Block]:
    """Return every block that runs as it is written, page by page."""
    return [block for page in PAGES for block in blocks(page) if not block.marker]
