"""The failure of a property of transactions."""


class Broken(AssertionError):
    """A property does not hold."""
