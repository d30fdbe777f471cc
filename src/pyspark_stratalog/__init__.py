"""What Spark finds by itself: it imports every module called `pyspark_…` and registers its `DefaultSource`.

In: nothing. Out: the data source `stratalog`. Nothing else lives here.
"""

from stratalog.spark.source import StratalogSource as DefaultSource

__all__ = ["DefaultSource"]
