"""Goal: transactions behave as recorded, to the last record. Method: scripts, each command followed by its full trace.

After an intended change run with GOLDEN_REWRITE=1, and commit the difference only if you can explain each line of it.
"""

import pytest
from tests.golden.stories import check_story, stories
from tests.golden.transaction_script import Story

STORIES = stories("transactions")


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_story(path):
    check_story(path, Story())


def test_there_are_stories():
    assert len(STORIES) >= 15
