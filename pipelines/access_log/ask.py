"""Ask the pipeline for its answers, and the bucket alone for the same.

In: a run's directory, its broker, bucket and sink. Out: answers from Spark. Raises UserError with Spark's own reason.
Never here: sessions; each question runs in a separate process.
"""

import json
from pathlib import Path

from answers import Answers, read_answers
from broker import Serving
from place import TOPIC, Place
from rich.console import Console
from sinks.sink import Sink
from spark_process import HEAP, MASTER, ask_spark

from stratalog.cli.pipeline import PipelineRun, shown_progress

HERE = Path(__file__).parent
SMALL_LOG_BYTES = 1 << 26


def java_options(log_bytes: int) -> str:
    """Return options for the quick compiler: a JVM that lives for seconds spends most of them compiling."""
    return "-XX:TieredStopAtLevel=1" if log_bytes < SMALL_LOG_BYTES else ""


def ask_pipeline(
    place: Place, broker: Serving, sink: Sink | None, options: str, console: Console
) -> Answers:
    """Run one update of the pipeline over bucket and broker, and into `sink`; return its answers."""
    conf = {
        "stratalog.kafka.bootstrap.servers": broker.address,
        "stratalog.tier.url": broker.tier_url,
        "stratalog.subscribe": TOPIC,
        **{f"stratalog.kafka.{name}": value for name, value in broker.secured.clients.items()},
    }
    if not place.stays:  # no later run continues from here, and a catalog on disk costs seconds
        conf["spark.sql.catalogImplementation"] = "in-memory"
    if sink is not None:
        conf |= sink.spark_conf
        conf["stratalog.sink.format"] = sink.format
        conf["stratalog.sink.options"] = json.dumps(dict(sink.options))
    run = PipelineRun(
        HERE, place.pipeline, conf=conf, master=MASTER, memory=HEAP, java_options=options
    )
    with shown_progress(console) as on_event:
        run.update(on_event)
    return read_answers(place.pipeline)


def ask_bucket(place: Place) -> dict[int | None, int]:
    """Return HTTP status -> requests (None -> bad lines) of all tiered records, from the bucket alone."""
    options = java_options(sum(place.bucket_sizes()))
    answer = ask_spark(
        "bucket_only.py", [place.tier_url, TOPIC], place.pipeline, java_options=options
    )
    return {None if name == "bad" else int(name): count for name, count in answer.items()}
