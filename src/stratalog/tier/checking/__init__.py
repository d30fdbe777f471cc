"""Checks of a bucket's objects against its manifests, and of a store against the rules that the tier needs."""
