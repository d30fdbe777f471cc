"""In-sync replicas, high watermarks and fetch sessions. Pure.

In: log end offsets of the leader and its followers, fetch requests. Out: high watermarks, changes of the ISR to
propose, the partitions to answer. It never reads a log and sends nothing.
"""
