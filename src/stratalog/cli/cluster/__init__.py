"""Commands about a running cluster: topics, settings, groups, segments."""
