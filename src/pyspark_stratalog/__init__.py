"""Register the data source `stratalog` with Spark, which imports every module named `pyspark_…` and its
`DefaultSource`.

In: nothing. Out: the data source `stratalog`. Nothing else lives here.
"""

from stratalog.spark.source import StratalogSource as DefaultSource

__all__ = ["DefaultSource"]
