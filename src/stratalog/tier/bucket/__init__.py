"""Ownership of the bucket and of its newest versions: claims, topics, manifest commits, leases, the cluster's state."""
