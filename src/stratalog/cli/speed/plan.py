"""`strata plan`: estimate the size of a planned cluster.

In: expected topics, brokers and prices. Out: estimates with their reasoning. It contacts no broker.
"""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from stratalog.cli.shared.terminal import Json, note, show, show_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stratalog.ops.planner import Comparison, Estimate, Topic

PRICE_MAX = 10**9
OVERHEAD_MAX = 100
OwnTopics = Annotated[
    list[str] | None,
    typer.Option(
        "--topic",
        metavar="NAME=VALUE,…",
        help="A separate topic; may be repeated: name, ingress, retention, partitions, rf, groups, segment, hotset, "
        "tiered=no. The other options give the values that are left out.",
    ),
]
VolumeOverhead = Annotated[
    float,
    typer.Option(
        "--volume-overhead",
        metavar="X",
        help="Raw bytes for each stored byte on volumes with their own redundancy.",
    ),
]
Downtime = Annotated[
    str,
    typer.Option(
        "--downtime",
        metavar="TIME",
        help="Time until a failed broker returns with its volume.",
    ),
]
Ingress = Annotated[
    str | None,
    typer.Option(
        "--ingress", metavar="RATE", help="Rate of producers, after compression: 100MB/s."
    ),
]
Partitions = Annotated[
    int, typer.Option("--partitions", min=1, metavar="N", help="Partitions of the topic.")
]
ReplicationFactor = Annotated[
    int,
    typer.Option("--replication-factor", metavar="N", min=1, help="Replicas of a partition."),
]
Brokers = Annotated[
    int, typer.Option("--brokers", min=1, metavar="N", help="Brokers of the cluster.")
]
LocalPrice = Annotated[
    float,
    typer.Option(
        "--local-price", metavar="PRICE", help="Price per GB and month on brokers' drives."
    ),
]
RemotePrice = Annotated[
    float,
    typer.Option("--remote-price", metavar="PRICE", help="Price per GB and month in the bucket."),
]


def plan(
    ingress: Ingress = None,
    retention: Annotated[
        str, typer.Option("--retention", metavar="TIME", help="How long records stay.")
    ] = "7d",
    partitions: Partitions = 100,
    replication_factor: ReplicationFactor = 3,
    consumer_groups: Annotated[
        int,
        typer.Option("--consumer-groups", metavar="N", min=0, help="Groups that read the tail."),
    ] = 1,
    segment: Annotated[
        str, typer.Option("--segment", metavar="BYTES", help="As in segment.bytes.")
    ] = "100MB",
    hotset: Annotated[
        str, typer.Option("--hotset", metavar="TIME", help="As in local.retention.ms.")
    ] = "0s",
    topic: OwnTopics = None,
    brokers: Brokers = 3,
    throttle: Annotated[
        str, typer.Option("--throttle", metavar="RATE", help="Rate of a rebalance, per broker.")
    ] = "10MB/s",
    local_price: LocalPrice = 0.08,
    remote_price: RemotePrice = 0.023,
    volume_overhead: VolumeOverhead = 1.25,
    downtime: Downtime = "10m",
    json: Json = False,
) -> None:
    """Plan network, disks, bucket, rebalancing and cost, with the reasoning shown.

    Example: strata plan --ingress 50MB/s --retention 30d --partitions 100
    """
    from stratalog.cli.shared.quantities import parse_duration_s
    from stratalog.errors import UserError
    from stratalog.ops import planner

    shared = {
        "ingress": ingress,
        "retention": retention,
        "partitions": str(partitions),
        "rf": str(replication_factor),
        "groups": str(consumer_groups),
        "segment": segment,
        "hotset": hotset,
        "tiered": "yes",
    }
    topics = [parsed_topic(text, shared) for text in topic or ["name=topic"]]
    most = max(found.replication_factor for found in topics)
    if most > brokers:
        raise UserError(
            f"a replication factor of {most} is not accepted; accepted: --brokers ({brokers}) or less"
        )
    for option, price in (("--local-price", local_price), ("--remote-price", remote_price)):
        if not 0 <= price < PRICE_MAX:
            raise UserError(f"{option}: {price} is not accepted; accepted: 0 to {PRICE_MAX}")
    if not 1 <= volume_overhead <= OVERHEAD_MAX:
        raise UserError(
            f"--volume-overhead: {volume_overhead} is not accepted; accepted: 1 to {OVERHEAD_MAX}"
        )
    cluster = planner.Cluster(
        brokers=brokers,
        throttle=positive_bytes(throttle, "--throttle"),
        local_price=local_price,
        remote_price=remote_price,
        volume_overhead=volume_overhead,
        downtime_s=parse_duration_s(downtime, "--downtime"),
    )
    print_plan(
        planner.plan(topics, cluster), planner.compare_replication(topics, cluster), as_json=json
    )


OPTIONS = {"rf": "--replication-factor", "groups": "--consumer-groups"}
"""The shared options that have another name than their setting in `--topic`."""


def parsed_topic(text: str, shared: "dict[str, str | None]") -> "Topic":
    """Return one topic from `name=value,…` over the shared options. Raises UserError, which names the option."""
    from stratalog.cli.shared.quantities import parse_duration_s
    from stratalog.errors import UserError
    from stratalog.ops.planner import Topic

    values: dict[str, str | None] = {"name": "topic", **shared}
    option = {name: OPTIONS.get(name, f"--{name}") for name in values}
    for item in text.split(","):
        name, equals, value = item.strip().partition("=")
        if not equals or name not in values:
            raise UserError(f"--topic: {item!r} is not one of {', '.join(values)} with =VALUE")
        values[name] = value
        option[name] = f"--topic {name}"
    values_given = {name: value for name, value in values.items() if value is not None}
    if "ingress" not in values_given:
        raise UserError("--ingress is missing: bytes a second from producers, such as 100MB/s")
    retention_s = parse_duration_s(values_given["retention"], option["retention"])
    if retention_s <= 0:
        given = values_given["retention"]
        raise UserError(f"{option['retention']}: {given!r} keeps nothing; accepted: more than 0s")
    if values_given["tiered"] not in {"yes", "no", "true", "false"}:
        given = values_given["tiered"]
        raise UserError(f"--topic tiered: {given!r} is not accepted; accepted: yes, no")
    return Topic(
        name=values_given["name"],
        ingress=positive_bytes(values_given["ingress"], option["ingress"]),
        retention_s=retention_s,
        partitions=whole(values_given["partitions"], option["partitions"], least=1),
        replication_factor=whole(values_given["rf"], option["rf"], least=1),
        consumer_groups=whole(values_given["groups"], option["groups"], least=0),
        segment_bytes=round(positive_bytes(values_given["segment"], option["segment"])),
        hotset_s=parse_duration_s(values_given["hotset"], option["hotset"]),
        tiered=values_given["tiered"] in {"yes", "true"},
    )


def positive_bytes(text: str, what: str) -> float:
    """Return bytes, or bytes a second, at least one. Raises UserError."""
    from stratalog.cli.shared.quantities import parse_bytes
    from stratalog.errors import UserError

    value = parse_bytes(text, what)
    if value < 1:
        raise UserError(f"{what}: {text!r} is less than a byte; accepted: 1 or more, such as 100MB")
    return value


def whole(text: str, what: str, *, least: int) -> int:
    """Return a whole number. Raises UserError."""
    from stratalog.errors import UserError

    if not (text.isascii() and text.isdecimal()) or len(text) > 9 or int(text) < least:
        raise UserError(f"{what}: {text!r} is no whole number from {least} to 999999999")
    return int(text)


def print_plan(
    estimates: "Sequence[Estimate]", comparison: "Sequence[Comparison]", *, as_json: bool
) -> None:
    """Print the estimates, then the comparison of replication."""
    from stratalog.cli.shared.quantities import quantity_text

    if as_json:
        show_json(
            {
                "estimates": [estimate_json(f) for f in estimates],
                "replication": [
                    {
                        "name": c.name,
                        "unit": c.unit,
                        "drives": c.drives,
                        "volumes": c.volumes,
                        "because": reason(c),
                    }
                    for c in comparison
                ],
            }
        )
        return
    show(
        [
            {"estimate": f.name, "value": quantity_text(f.value, f.unit), "because": reason(f)}
            for f in estimates
        ],
        as_json=False,
    )
    note("")
    show(
        [
            {
                "replication": c.name,
                "3 replicas on drives": quantity_text(c.drives, c.unit),
                "2 on protected volumes": quantity_text(c.volumes, c.unit),
                "because": reason(c),
            }
            for c in comparison
        ],
        as_json=False,
    )


def estimate_json(estimate: "Estimate") -> dict[str, Any]:
    """Return an estimate for JSON: its value plain, in its unit."""
    return {
        "name": estimate.name,
        "value": estimate.value,
        "unit": estimate.unit,
        "because": reason(estimate),
    }


def reason(estimate: "Estimate | Comparison") -> str:
    """Return an estimate's reasoning with its quantities written out."""
    from stratalog.cli.shared.quantities import quantity_text

    text = estimate.why
    for at, (value, unit) in enumerate(estimate.terms):
        text = text.replace(f"{{{at}}}", quantity_text(value, unit))
    return text
