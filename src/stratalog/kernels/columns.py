"""The names of the columns that records become. In: nothing. Out: constants. It never loads Arrow or numba."""

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
"""Those of Spark's Kafka source, in its order."""
HEADERS, ORIGIN = "headers", "origin"
"""Two that are made where they are asked for."""
