"""History read back: manifests of old segments, ranges of objects with their cache, records of a span."""
