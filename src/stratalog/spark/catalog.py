"""Options of a table in Spark's catalog: `CREATE TABLE … USING stratalog OPTIONS (…)`.

In: the options that Spark passes when it creates a table, and the table's schema when a query reads it. Out: the
options that the table was created with. It never parses an option.

Spark 4.2 hands a Python data source the table's options when the table is created and never again: a query passes the
table's schema and its own options alone (`PythonDataSourceV2.getTable` drops the properties). The catalog keeps the
schema that the source answers at creation, so the options travel in it, as metadata of the first column.
"""

from collections.abc import Mapping

from pyspark.sql.types import StructField, StructType

__all__ = ["is_table", "options_given", "options_kept", "with_options"]

_METADATA = "stratalog.options"
_PREFIX = "option."


def is_table(given: Mapping[str, str]) -> bool:
    """Return whether Spark creates a table: then it passes the table's properties, `provider` among them."""
    return "provider" in given


def options_given(given: Mapping[str, str]) -> dict[str, str]:
    """Return the options alone.

    While Spark creates a table, the names `option.NAME` are those of OPTIONS. All other names are properties: Spark's
    own (provider, owner, comment, location) and those of TBLPROPERTIES.
    """
    if not is_table(given):
        return dict(given)
    return {
        name[len(_PREFIX) :]: value
        for name, value in given.items()
        if name.lower().startswith(_PREFIX)
    }


def with_options(schema: StructType, options: Mapping[str, str]) -> StructType:
    """Return the schema for the catalog, with `options` as metadata of its first column."""
    first, *others = schema.fields
    metadata = {_METADATA: dict(options)}
    return StructType([StructField(first.name, first.dataType, metadata=metadata), *others])


def options_kept(schema: StructType) -> dict[str, str]:
    """Return the options that `with_options` put into a schema; none for a schema without them."""
    for field in schema.fields[:1]:
        return dict(field.metadata.get(_METADATA, {}))
    return {}
