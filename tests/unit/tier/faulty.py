"""A store wrapper that fails as told."""

from stratalog.errors import Unavailable

WRITES = ("put", "put_if_absent", "delete")


class FaultyStore:
    """Counts operations and asks `fault(operation, path)`: None, "before" (it did not happen) or "after" (it did)."""

    def __init__(self, store, fault=lambda operation, path: None):
        self.store = store
        self.url = store.url
        self.fault = fault
        self.calls = []

    def __getattr__(self, name):
        call = getattr(self.store, name)

        def wrapped(path, *arguments):
            self.calls.append((name, path, *arguments))
            fault = self.fault(name, path)
            if fault == "before":
                raise Unavailable(f"{name} {path}: timed out before")
            result = call(path, *arguments)
            if fault == "after":
                raise Unavailable(f"{name} {path}: timed out after")
            return result

        return wrapped

    def requests(self, name):
        return [call for call in self.calls if call[0] == name]
