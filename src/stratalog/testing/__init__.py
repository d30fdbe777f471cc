"""A real broker inside a test, or several that form a cluster: pytest's fixture `broker`, and the classes behind it.

In: settings. Out: an address that any Kafka client can use, and ways to make a broker fail. Each broker has its own
port, directory and thread, and touches nothing else.

The first use of a name imports it: pytest loads the plugin in every run, and most runs need no broker.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from stratalog.testing.broker import TemporaryBroker
    from stratalog.testing.temporary_cluster import TemporaryCluster, cluster

__all__ = ["TemporaryBroker", "TemporaryCluster", "cluster"]

_MODULES: Final = {
    "TemporaryBroker": "stratalog.testing.broker",
    "TemporaryCluster": "stratalog.testing.temporary_cluster",
    "cluster": "stratalog.testing.temporary_cluster",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    return getattr(import_module(_MODULES[name]), name)
