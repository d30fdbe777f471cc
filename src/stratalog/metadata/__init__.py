"""The cluster's metadata: an immutable image, the changes to it, its snapshots.

In: records of `__cluster_metadata`. Out: images and deltas. It never decides anything: `quorum` does.
"""
