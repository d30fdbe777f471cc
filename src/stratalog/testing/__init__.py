"""A real broker inside a test: pytest's fixture `broker`, and the class behind it.

In: settings. Out: an address that any Kafka client can use, and ways to make the broker fail. Each broker has a port,
a directory and a thread of its own, and touches nothing else.

The class is imported when it is first used: pytest loads the plugin in every run, and most of them need no broker.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stratalog.testing.broker import TemporaryBroker

__all__ = ["TemporaryBroker"]


def __getattr__(name: str) -> Any:
    if name != "TemporaryBroker":
        raise AttributeError(f"module {__name__} has no attribute {name}")
    from stratalog.testing.broker import TemporaryBroker  # noqa: PLC0415 - as the module says

    return TemporaryBroker
