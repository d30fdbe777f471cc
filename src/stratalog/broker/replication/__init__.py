"""Replication between brokers: a leader's side of fetches, and a follower's."""
