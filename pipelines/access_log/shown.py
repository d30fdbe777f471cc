"""Print the answers on a terminal.

In: answers. Out: tables of results, and the origins of the records. Never here: reading tables, deciding what counts.
"""

from answers import Answers
from rich.console import Console
from rich.markup import escape
from rich.table import Table


def show_answers(answers: Answers, console: Console) -> None:
    """Print the tables of results, and the origins of the records."""
    status = Table(title="Requests by status", title_justify="left")
    status.add_column("status")
    status.add_column("requests", justify="right")
    for code, count in answers.status.items():
        status.add_row(str(code), f"{count:,}")
    status.add_row("bad lines", f"{answers.bad_lines:,}")
    for reason, count in answers.bad_reasons.items():
        status.add_row(f"  {reason}", f"{count:,}")
    if answers.late_lines:
        status.add_row("of all, late", f"{answers.late_lines:,}")
    top = Table(title=f"Top paths of {answers.path_count:,}", title_justify="left")
    top.add_column("path", overflow="fold")
    top.add_column("requests", justify="right")
    top.add_column("errors", justify="right")
    for path in answers.paths[:8]:
        top.add_row(escape(path.name or "(none)"), f"{path.requests:,}", f"{path.errors:,}")
    console.print(status, top, sep="\n")
    console.print(
        f"{answers.records_out:,} records out: {answers.origins.get('bucket', 0):,} from the bucket, "
        f"{answers.origins.get('broker', 0):,} from the broker"
    )
