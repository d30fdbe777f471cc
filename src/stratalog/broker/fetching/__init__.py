"""The parts of one fetch: gather its records, and build the answer. `apis/fetch.py` waits between them."""
