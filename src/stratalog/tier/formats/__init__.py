"""The objects in the bucket as bytes: segments, indexes, manifests, envelopes, paths. It never opens a store."""
