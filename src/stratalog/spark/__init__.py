"""The Spark data source: the only code that imports pyspark."""
