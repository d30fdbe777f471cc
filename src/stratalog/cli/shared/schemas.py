"""A schema registry by its URL, for commands that show records.

In: a URL. Out: `Schemas` that ask it. It asks nothing before the first record with a schema.
"""

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from stratalog.client.schemas import Schemas

RegistryUrl = Annotated[
    str,
    typer.Option(
        "--registry",
        metavar="URL",
        envvar="STRATA_REGISTRY",
        show_envvar=False,
        help="Decode Avro, Protobuf and JSON by this schema registry.",
    ),
]
SCHEMA_BYTES_MAX = 4 << 20


def schemas_at(url: str, *, timeout_s: float = 10.0) -> "Schemas":
    """Return the schemas of the registry at a URL. Raises UserError for a URL that is none."""
    from functools import partial

    from stratalog.adapters.http_request import ask, checked_url
    from stratalog.adapters.protoc import compile_proto
    from stratalog.client.schemas import Schemas

    root = checked_url(url, "--registry").rstrip("/")
    get = partial(ask, timeout_s=timeout_s, bytes_max=SCHEMA_BYTES_MAX)
    return Schemas(lambda path: get(root + path), compile_proto)
