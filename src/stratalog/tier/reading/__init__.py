"""Read history: manifests of old segments, cached ranges of objects, records of a span."""
