"""Closed segments in object storage: segment objects, manifests, archiver, fetcher."""
