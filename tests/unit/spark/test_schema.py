"""A topic's columns are what they are: a schema of somebody's own is one clear error, before anything is opened."""

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from stratalog.spark.source import StratalogSource, StratalogStreamReader


def test_a_schema_of_one_s_own_is_refused() -> None:
    options = {"tier.url": "file:///nowhere", "subscribe": "t", "columns": "value,offset"}
    source = StratalogSource(options)
    wrong = StructType([StructField("value", StringType()), StructField("offset", LongType())])
    says = "columns are value, offset: leave schema"
    with pytest.raises(ValueError, match=says):
        source.reader(wrong)
    with pytest.raises(ValueError, match=says):
        source.streamReader(wrong).initialOffset()
    for right in (source.schema(), StructType()):
        source.reader(right)
        assert isinstance(source.streamReader(right), StratalogStreamReader)
