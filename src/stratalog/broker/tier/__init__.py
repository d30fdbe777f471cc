"""The broker's side of the bucket: archiving, reads of history, uploads of the cluster's state, deleted topics."""
