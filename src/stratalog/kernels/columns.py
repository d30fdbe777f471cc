"""The names of the columns that records become. In: nothing. Out: constants. It never loads Arrow or numba."""

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
"""The columns of Spark's Kafka source, in its order."""
HEADERS, ORIGIN = "headers", "origin"
"""Two columns that exist only on request."""
