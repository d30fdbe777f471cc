"""Goal: brokers and partitions change by Kafka's rules. Method: scripts of requests, each followed by its changes.

After an intended change run with GOLDEN_REWRITE=1, and commit the difference only if you can explain each line of it.
"""

import pytest
from tests.golden.controller_script import Story
from tests.golden.stories import check_story, stories

STORIES = stories("controller")


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_story(path):
    check_story(path, Story())


def test_there_are_stories():
    assert len(STORIES) >= 12
