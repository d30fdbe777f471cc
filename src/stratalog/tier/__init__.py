"""The tier: closed segments in object storage.

In: closed segments, retention, a store. Out: segment objects and manifest versions in the bucket; checked batches for
readers.
"""
