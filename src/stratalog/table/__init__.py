"""A topic as one table over tail and history, without Spark.

In: options. Out: exact ranges of offsets, tasks, and Arrow record batches.
"""
