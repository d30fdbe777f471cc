"""Where the good lines go beside the pipeline's own tables: `./run --sink NAME`.

In: a sink's name. Out: what opens it. A sink is started by us (then all of it lies in the run's directory, and nothing
stays) or is the user's own (then what was written stays). Never here: what is written; that is `parsed` of
`transformations/tables.py`, where topic, partition and offset name a row: written again, it is still one row.
"""

from sinks.cassandra import cassandra
from sinks.delta import delta
from sinks.opensearch import opensearch
from sinks.sink import OpenSink

__all__ = ["SINKS"]

SINKS: dict[str, OpenSink] = {
    "cassandra": cassandra,
    "delta": delta,
    "opensearch": opensearch,
}
