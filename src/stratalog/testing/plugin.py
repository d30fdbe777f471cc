"""The pytest plugin: fixtures `broker` and `session_broker`, and the fixtures for their settings.

In: a test that uses one of them. Out: a started broker, which ends with the test or the run. It imports nothing but
pytest until then.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from stratalog.testing.broker import TemporaryBroker

Settings = Mapping[str, str | float]


@pytest.fixture
def broker_settings() -> Settings:
    """Return a broker's settings by Kafka's names; define a fixture of this name to change them."""
    return {}


@pytest.fixture
def broker_tls() -> bool:
    """Return whether `broker` uses TLS; define a fixture of this name to change it."""
    return False


@pytest.fixture
def broker_users() -> Mapping[str, str]:
    """Return the users of `broker` with their passwords; define a fixture of this name to change them."""
    return {}


@pytest.fixture
def broker(
    broker_settings: Settings,
    broker_users: Mapping[str, str],
    tmp_path_factory: pytest.TempPathFactory,
    *,
    broker_tls: bool,
) -> "Iterator[TemporaryBroker]":
    """Start an empty broker for this test alone, at `broker.address`."""
    yield from _started(broker_settings, tmp_path_factory, tls=broker_tls, users=broker_users)


@pytest.fixture(scope="session")
def session_broker_settings() -> Settings:
    """Return the settings of `session_broker`, by Kafka's names; define a fixture of this name to change them."""
    return {}


@pytest.fixture(scope="session")
def session_broker(
    session_broker_settings: Settings, tmp_path_factory: pytest.TempPathFactory
) -> "Iterator[TemporaryBroker]":
    """Start one broker for all tests of a run that use it; with pytest-xdist, one per worker."""
    yield from _started(session_broker_settings, tmp_path_factory)


def _started(
    settings: Settings,
    places: pytest.TempPathFactory,
    *,
    tls: bool = False,
    users: Mapping[str, str] | None = None,
) -> "Iterator[TemporaryBroker]":
    from stratalog.testing.broker import TemporaryBroker  # noqa: PLC0415 - a run without brokers imports none

    directory = places.mktemp("broker") / "data"
    with TemporaryBroker(settings, directory=directory, tls=tls, users=users) as started:
        yield started
