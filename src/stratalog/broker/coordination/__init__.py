"""State machines on their logs: the cluster's metadata and the consumer groups."""
