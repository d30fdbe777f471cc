"""Replication between brokers: what a leader does for its followers, and what a follower does for its leaders."""
