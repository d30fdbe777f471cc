"""Spark's Python daemon, which imports the source before workers fork, so that workers import nothing.

In: `spark.python.daemon.module=stratalog.spark.worker_daemon`. Out: the behaviour of `pyspark.daemon`. It holds no
threads, open files or connections, which would not survive the fork.

One update of a pipeline starts a dozen workers, most of them to plan a read, and each would import the same modules.
"""

import pyspark.sql.worker.plan_data_source_read
import pyspark.worker  # noqa: F401 - for the workers
from pyspark.daemon import manager

import pyspark_stratalog  # noqa: F401 - for the workers

if __name__ == "__main__":
    manager()
