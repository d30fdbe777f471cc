"""The broker: an asyncio shell around the pure packages.

In: requests, changes of the metadata. Out: answers; partitions on disk and in the bucket. It hosts partitions, and
lets the pure packages decide.
"""
