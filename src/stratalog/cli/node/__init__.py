"""Commands that start a node or prepare its directories: server, storage, restore, demo."""
