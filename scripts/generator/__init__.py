"""Kafka's JSON schemas in, Python modules out: the parts of `generate_messages.py`."""
