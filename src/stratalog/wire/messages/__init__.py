"""The messages of Apache Kafka 4.3's protocol: one module of classes per API.

In: nothing. Out: `msgspec.Struct` classes. They never read or write bytes: the modules of `wire/codecs` do.

`scripts/generate_messages.py` writes both from the schemas in Kafka's jars. A class spans all versions of its message.
A comment names the versions of a field that others lack. In those it is the schema's default.

This module imports none of the others: an API takes no time and no memory until another module names it.
"""

from typing import ClassVar, Generic, TypeVar

from msgspec import Struct

__all__ = ["Request"]

ResponseT = TypeVar("ResponseT")


class Request(Struct, Generic[ResponseT], frozen=True, gc=False):
    """A request's body; `ResponseT` is the class of the response to it."""

    KEY: ClassVar[int]
