"""Log directories: claim, survey and write them, and handle directories that are no partition's."""
