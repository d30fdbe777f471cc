"""The pytest plugin: fixtures `broker` and `broker_settings`.

In: a test that asks for them. Out: a started broker, gone after the test. It imports nothing but pytest until then.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from stratalog.testing.broker import TemporaryBroker


@pytest.fixture
def broker_settings() -> Mapping[str, str]:
    """A broker's settings by Kafka's names; define a fixture of this name to have others."""
    return {}


@pytest.fixture
def broker(
    broker_settings: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory
) -> "Iterator[TemporaryBroker]":
    """A broker of this test's own, empty, at `broker.address`."""
    from stratalog.testing.broker import TemporaryBroker  # noqa: PLC0415 - only who asks pays for it

    place = tmp_path_factory.mktemp("broker")
    with TemporaryBroker(broker_settings, directory=place / "data") as started:
        yield started
