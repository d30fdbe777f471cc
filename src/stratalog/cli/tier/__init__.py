"""`strata tier`: commands about the bucket, without a broker."""
