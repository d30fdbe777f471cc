"""`strata cluster info`: one look at a running cluster.

In: nothing but the cluster. Out: its id, controller, features, sizes, and one row for each broker. It changes nothing.
"""

from typing import Any

from stratalog.cli.shared.terminal import (
    DEFAULT_BOOTSTRAP,
    BootstrapServer,
    Json,
    connected,
    run,
    show,
    show_json,
)


def info(bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP, json: Json = False) -> None:
    """Show a running cluster: its id, controller, features and brokers, and how many topics it has.

    Example: strata cluster info -b localhost:9092
    """
    found = run(facts(bootstrap_server))
    if json:
        show_json(found)
        return
    brokers = found.pop("brokers")
    show([{"fact": name, "value": value} for name, value in found.items()], as_json=False)
    print()
    show(brokers, as_json=False)


async def facts(bootstrap: str) -> dict[str, Any]:
    """Return the facts by name, the brokers last. Raises Unavailable, Rejected."""
    from stratalog.cli.cluster.moving import brokers_of
    from stratalog.client.cluster_admin import finalized_features

    async with connected(bootstrap) as client:
        cluster = await client.metadata()
        registered = await brokers_of(client)
        features = await client.on_any(finalized_features())
    topics = [one for one in cluster.topics.values() if not one.error]
    partitions = [one for topic in topics for one in topic.partitions.values()]
    return {
        "cluster_id": cluster.cluster_id,
        "controller": cluster.controller_id,
        "features": features,
        "topics": sum(not one.is_internal for one in topics),
        "internal_topics": sum(one.is_internal for one in topics),
        "partitions": len(partitions),
        "without_leader": sum(one.leader < 0 for one in partitions),
        "under_replicated": sum(len(one.isr) < len(one.replicas) for one in partitions),
        "brokers": [
            {
                "id": node,
                "host": one.host,
                "port": one.port,
                "rack": one.rack,
                "state": "fenced" if one.is_fenced else "active",
            }
            for node, one in sorted(registered.items())
        ],
    }
