"""Log directories: claimed, surveyed, written in order, with what lies in them besides partitions."""
