"""The console: what a node is doing, over HTTP. In: a running node, requests. Out: metrics and health as text."""
