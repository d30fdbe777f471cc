"""Write and remove history: one partition's archiver, merging, spilling of manifests, expiry and grace."""
