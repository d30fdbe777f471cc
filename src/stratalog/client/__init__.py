"""Talking to brokers: a sans-I/O core with an asyncio shell and a blocking one."""
