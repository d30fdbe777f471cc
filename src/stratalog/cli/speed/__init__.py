"""Commands that measure and plan: perf, bench, plan."""
