"""Spark's Python daemon with the source already imported: workers are forked from it and start with nothing to load.

In: `spark.python.daemon.module=stratalog.spark.worker_daemon`. Out: what `pyspark.daemon` does. Never here: threads,
open files or connections, which would not survive the fork.

One update of a pipeline starts a dozen workers, most of them to plan a read, and each would import the same modules.
"""

import pyspark.sql.worker.plan_data_source_read
import pyspark.worker  # noqa: F401 - for the workers
from pyspark.daemon import manager

import pyspark_stratalog  # noqa: F401 - for the workers

if __name__ == "__main__":
    manager()
