"""Further targets for the good lines, beside the pipeline's own tables: `./run --sink NAME`.

In: a sink's name. Out: the function that opens it. The run starts a sink (then its files are in the run's directory,
and nothing stays), or uses the user's own (then the rows stay). Never here: the rows, which are `parsed` of
`transformations/tables.py`. Topic, partition and offset identify a row, so a repeated write is still one row.
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
