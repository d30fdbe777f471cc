"""Register the data source with Spark, which imports every module named `pyspark_…` and its `DefaultSource`.

In: nothing. Out: the data source `stratalog_opensearch`. Nothing else lives here.
"""

from stratalog.spark.opensearch import OpenSearchSource as DefaultSource

__all__ = ["DefaultSource"]
