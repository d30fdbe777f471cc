"""The Spark data sources: the only code that imports pyspark.

In: Spark's calls. Out: tasks, rows, records.
"""
