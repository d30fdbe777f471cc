"""Every API this broker serves: one module each, opened by its versions and what each changed.

In: a `Call`. Out: the answer's body. Handlers translate between the wire and the parts; they decide nothing.
"""

from stratalog.broker.api import Api
from stratalog.broker.apis import (
    api_versions,
    create_topics,
    delete_groups,
    delete_topics,
    describe_cluster,
    describe_configs,
    describe_groups,
    fetch,
    find_coordinator,
    heartbeat,
    init_producer_id,
    join_group,
    leave_group,
    list_groups,
    list_offsets,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    produce,
    sync_group,
)

_MODULES = (
    produce,
    fetch,
    list_offsets,
    metadata,
    offset_commit,
    offset_fetch,
    find_coordinator,
    join_group,
    heartbeat,
    leave_group,
    sync_group,
    api_versions,
    create_topics,
    delete_topics,
    init_producer_id,
    describe_configs,
    describe_cluster,
    describe_groups,
    list_groups,
    delete_groups,
    offset_delete,
)

APIS: dict[int, Api] = {module.API.key: module.API for module in _MODULES}
