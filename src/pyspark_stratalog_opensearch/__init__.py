"""What Spark finds by itself: it imports every module called `pyspark_…` and registers its `DefaultSource`.

In: nothing. Out: the data source `stratalog_opensearch`. Nothing else lives here.
"""

from stratalog.spark.opensearch import OpenSearchSource as DefaultSource

__all__ = ["DefaultSource"]
