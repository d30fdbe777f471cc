"""Kafka's contract without a JVM fleet: producers' batches in, the same bytes out, from disk, bucket or Spark."""
