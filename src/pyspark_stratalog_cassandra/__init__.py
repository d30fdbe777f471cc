"""What Spark finds by itself: it imports every module called `pyspark_…` and registers its `DefaultSource`.

In: nothing. Out: the data source `stratalog_cassandra`. Nothing else lives here.
"""

from stratalog.spark.cassandra import CassandraSource as DefaultSource

__all__ = ["DefaultSource"]
