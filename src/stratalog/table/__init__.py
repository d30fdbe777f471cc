"""A topic as one table, tail and history: options in; exact ranges, tasks and Arrow record batches out. No Spark."""
