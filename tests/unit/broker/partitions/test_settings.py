"""The settings of partitions' logs by their topics."""

from uuid import UUID

import pytest

from stratalog.broker.partitions.settings import log_configs
from stratalog.config import BrokerConfig
from stratalog.metadata.image import Image, Topic


@pytest.mark.parametrize("name", ["__consumer_offsets", "__transaction_state"])
def test_the_logs_of_coordinators_are_state_and_equal_settings_are_shared(name: str) -> None:
    config_of = log_configs(Image(), 1, BrokerConfig.load({})[0])
    topics = [Topic(UUID(int=number), one) for number, one in enumerate((name, "t", "u"))]
    state, plain, other = map(config_of, topics)
    assert state.is_state
    assert not plain.is_state
    assert plain is other
