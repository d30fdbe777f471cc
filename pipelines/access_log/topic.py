"""The topic of log lines as a stream, as a pipeline's configuration names it.

In: a session whose configuration has `stratalog.subscribe` and the log's location
(`stratalog.kafka.bootstrap.servers`, `stratalog.tier.url`, one or both), and a secured broker's options. Out: its
records from the first on, each with its origin (`parse.PARTS`). Never here: the lines' fields, tables.
"""

from typing import Any

from parse import PARTS
from pyspark.sql import SparkSession

from stratalog.errors import UserError

WHERE = ("kafka.bootstrap.servers", "tier.url")
SECURITY = (
    "kafka.security.protocol",
    "kafka.ssl.truststore.location",
    "kafka.ssl.keystore.location",
    "kafka.ssl.keystore.password",
    "kafka.sasl.mechanism",
    "kafka.sasl.jaas.config",
)
"""Options of a secured broker that the configuration may have; secrets by reference."""


def session() -> Any:
    """Return the session of the run that is importing this file."""
    active = SparkSession.getActiveSession()
    assert active is not None
    return active


def records() -> Any:
    """Return a streaming frame of the topic's records. Raises UserError where the configuration does not locate the
    log.
    """
    spark = session()
    reader = spark.readStream.format(spark.conf.get("stratalog.format", "stratalog"))
    where = {option: spark.conf.get(f"stratalog.{option}") for option in WHERE}
    if not any(where.values()):
        raise UserError(
            "the configuration does not say where the log is: --conf stratalog.kafka.bootstrap.servers=HOST:PORT, "
            "--conf stratalog.tier.url=URL, or both"
        )
    given = {option: spark.conf.get(f"stratalog.{option}", "") for option in SECURITY}
    for option, value in (where | given).items():
        if value:
            reader = reader.option(option, value)
    return (
        reader.option("subscribe", spark.conf.get("stratalog.subscribe"))
        .option("startingOffsets", "earliest")
        .option("includeOrigin", "true")
        .load()
        .select("value", *PARTS)
    )
