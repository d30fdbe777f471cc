"""A topic's columns are what they are: a schema of somebody's own is one clear error, before anything is opened."""

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from stratalog.spark.source import StratalogSource


def test_a_schema_of_one_s_own_is_refused() -> None:
    options = {"tier.url": "file:///nowhere", "subscribe": "t", "columns": "value,offset"}
    source = StratalogSource(options)
    wrong = StructType([StructField("value", StringType()), StructField("offset", LongType())])
    for take in (source.reader, source.streamReader):
        with pytest.raises(ValueError, match="columns are value, offset: leave schema"):
            take(wrong)
        take(source.schema())
        take(StructType())
