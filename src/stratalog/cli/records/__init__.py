"""`strata produce` and `strata consume`: records into a topic and out of one."""
