# ruff: noqa: D103 - a table is described by its comment, where Spark keeps it
"""The access log as visitors' sessions: the visits, the sessions as they close, all sessions recomputed.

In: a topic of log lines. Out: two streaming tables, which add only new lines at each update, and two views, which Spark
recomputes from all of history. Never here: the parsing of lines, the definition of a session.
"""

from typing import Any

import sessions as rules
from parse import with_columns
from pyspark import pipelines as dp
from topic import records, session


def setting(name: str) -> Any:
    """Return a setting of this pipeline from the specification or `--conf`."""
    return session().conf.get(f"sessions.{name}")


def all_sessions() -> Any:
    return rules.sessions(session().read.table("visits"), setting("gap"))


@dp.table(comment="One row per good line, with what its session needs to know")
def visits() -> Any:
    return with_columns(records()).where("NOT bad").select(*rules.VISITS)


@dp.table(comment="Sessions, each once, as soon as it is closed")
def sessions() -> Any:
    # In SQL, since `withWatermark` would ask at once for a table that is not there yet (Spark 4.2).
    visits = session().sql(
        f"SELECT * FROM STREAM visits WATERMARK time DELAY OF INTERVAL {setting('delay')}"  # noqa: S608 - the user's own
    )
    return rules.sessions(visits, setting("gap"))


@dp.materialized_view(comment="All sessions from all of history, the open ones too")
def sessions_in_history() -> Any:
    return all_sessions()


@dp.materialized_view(
    comment="Closed sessions as history has them and `sessions` has not: lines came after the watermark"
)
def revised() -> Any:
    spark = session()
    history = rules.closed(
        all_sessions(), spark.read.table("visits"), setting("gap"), setting("delay")
    )
    return history.exceptAll(spark.read.table("sessions"))
