"""A topic's columns are fixed: the source refuses a user's schema with one clear error before it opens the bucket."""

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from stratalog.spark.source import StratalogSource, StratalogStreamReader


def test_a_users_schema_is_refused() -> None:
    options = {"tier.url": "file:///nowhere", "subscribe": "t", "columns": "value,offset"}
    source = StratalogSource(options)
    wrong = StructType([StructField("value", StringType()), StructField("offset", LongType())])
    says = "columns are value, offset: name none"
    with pytest.raises(ValueError, match=says):
        source.reader(wrong)
    with pytest.raises(ValueError, match=says):
        source.streamReader(wrong).initialOffset()
    for right in (source.schema(), StructType()):
        source.reader(right)
        assert isinstance(source.streamReader(right), StratalogStreamReader)
