"""History written and removed: one partition's archiver, merging, spilling of manifests, expiry and grace."""
