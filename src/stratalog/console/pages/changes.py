"""Changes: each shows first what will happen, and a deletion asks for the name of what goes.

In: a form of one of our pages. Out: the form again with a preview, or the change and the page that shows it. It changes
exactly what the preview showed: offsets travel in the form. Without --allow-changes it changes nothing.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from stratalog.client.admin import alter_configs
from stratalog.client.calls import TOPIC, ConfigEntry, NewTopic, TopicInfo
from stratalog.console.page import Context, Page, PageRequest, failed, missing, path_of
from stratalog.console.pages.topics import tiered_bytes
from stratalog.console.shown import visible
from stratalog.errors import ErrorCode, Rejected, UserError

__all__ = [
    "alter_topic",
    "change_page",
    "confirmed",
    "delete_topic",
    "field",
    "guarded",
    "new_topic",
]

_SETTINGS_MAX: Final = 50
_DYNAMIC_OF_TOPIC: Final = 1

_OURS: Final = {"token", "step", "confirm"}

Change = Callable[..., Awaitable[Page]]


def guarded(change: Change) -> Change:
    """Refuse a page of changes where the console was started without them."""

    async def page(context: Context, request: PageRequest, *names: str) -> Page:
        if not context.allow_changes:
            return failed(
                403,
                "this console changes nothing",
                "start it with --allow-changes to allow changes",
            )
        return await change(context, request, *names)

    return page


def field(
    name: str,
    label: str,
    value: str,
    *,
    options: tuple[str, ...] = (),
    note: str = "",
    rows: int = 1,
) -> dict[str, Any]:
    """Return a field of a form; with `options` a choice, with several `rows` a text area."""
    return {
        "name": name,
        "label": label,
        "value": value,
        "options": list(options),
        "note": note,
        "rows": rows,
    }


def change_page(  # noqa: PLR0913 - the parts of the page
    title: str,
    back: str,
    *,
    fields: list[dict[str, Any]],
    preview: list[dict[str, Any]] | None = None,
    kept: Mapping[str, str] | None = None,
    confirm: str = "",
    is_deletion: bool = False,
    warning: str = "",
) -> Page:
    """Return the page of a change: its form, or its preview with a button that does it.

    `kept` are values that the button sends along; `confirm` is the name that a person must type.
    """
    data = {
        "back": back,
        "fields": fields,
        "preview": preview,
        "kept": {name: text for name, text in (kept or {}).items() if name not in _OURS},
        "confirm": confirm,
        "is_deletion": is_deletion,
        "warning": warning,
    }
    return Page("change.html", title, data)


def is_final(request: PageRequest) -> bool:
    """Return whether the button of a preview was pressed."""
    return request.is_post and request.form.get("step") == "do"


def confirmed(request: PageRequest, name: str) -> bool:
    """Return whether a deletion's button was pressed. Raises UserError unless the name was typed."""
    if not is_final(request):
        return False
    if request.form.get("confirm", "") not in {name, visible(name)}:
        raise UserError(
            f"nothing was deleted: type {name} to confirm, not {request.form.get('confirm', '')[:60]!r}"
        )
    return True


@guarded
async def new_topic(context: Context, request: PageRequest) -> Page:
    """Create a topic (`/new-topic`)."""
    form = request.form
    fields = [
        field("name", "Name", form.get("name", "")),
        field("partitions", "Partitions", form.get("partitions", ""), note="empty: the default"),
        field("replicas", "Replicas", form.get("replicas", ""), note="empty: the default"),
        field(
            "settings", "Settings", form.get("settings", ""), note="NAME=VALUE, one a line", rows=4
        ),
    ]
    title = "Create a topic"
    if not request.is_post:
        return change_page(title, path_of("topics"), fields=fields)
    wanted = NewTopic(
        form.get("name", "").strip(),
        _count(form, "partitions"),
        _count(form, "replicas"),
        _settings(form.get("settings", "")),
    )
    client = await context.cluster.client()
    (found,) = await client.create_topics([wanted], validate_only=not is_final(request))
    if found.error:
        raise Rejected(found.error, found.message or f"topic {wanted.name}: {found.error.name}")
    if is_final(request):
        context.cluster.forget()
        return Page("change.html", title, {}, redirect=path_of("topics", wanted.name))
    partitions = found.partitions if found.partitions > 0 else wanted.partitions
    replicas = (
        found.replication_factor if found.replication_factor > 0 else wanted.replication_factor
    )
    preview = [
        _row("topic", None, wanted.name),
        _row("partitions", None, partitions if partitions > 0 else "the default"),
        _row("replicas of each", None, replicas if replicas > 0 else "the default"),
        *(_row(name, None, value) for name, value in wanted.configs.items()),
    ]
    return change_page(title, path_of("topics"), fields=fields, preview=preview, kept=form)


def _row(what: str, before: object, after: object) -> dict[str, Any]:
    return {"what": what, "before": before, "after": after}


def _count(form: Mapping[str, str], name: str) -> int:
    text = form.get(name, "").strip()
    if not text:
        return -1
    if not text.isdecimal() or len(text) > 9 or not 0 < int(text) <= 100_000:
        raise UserError(f"{name}: {text[:40]!r} is not accepted; accepted: 1 to 100000, or nothing")
    return int(text)


def _settings(text: str) -> dict[str, str]:
    found = {}
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if not line.strip():
            continue
        if not equals or not name.strip():
            raise UserError(f"settings: {line[:60]!r} is not accepted; accepted: NAME=VALUE")
        found[name.strip()] = value.strip()
    if len(found) > _SETTINGS_MAX:
        raise UserError(f"settings: at most {_SETTINGS_MAX} at a time")
    return found


async def existing_topic(context: Context, name: str) -> TopicInfo | Page:
    """Return a topic, or the page that says that there is none."""
    found = await context.cluster.topic(name)
    return found or missing(f"topic {name[:249]} does not exist", "see the topics' page")


@guarded
async def alter_topic(context: Context, request: PageRequest, name: str) -> Page:
    """Change a setting of a topic, or reset it to its default (`/topics/NAME/alter`)."""
    client = await context.cluster.client()
    (found,) = await client.describe_configs([(TOPIC, name)])
    if found.error is ErrorCode.unknown_topic_or_partition:
        return missing(f"topic {name[:249]} does not exist", "see the topics' page")
    if found.error:
        raise Rejected(found.error, found.message or f"topic {name}: {found.error.name}")
    entries = {one.name: one for one in found.entries if not one.read_only}
    back, title = path_of("topics", name), f"Change a setting of {name}"
    form = request.form if request.is_post else request.query
    setting, value = form.get("setting", ""), form.get("value", "")
    resets = form.get("how") == "the default"
    chosen = entries.get(setting)
    fields = [
        field("setting", "Setting", setting, options=tuple(sorted(entries))),
        field("value", "New value", value or _text(chosen)),
        field("how", "Take", form.get("how", ""), options=("the new value", "the default")),
    ]
    if not request.is_post:
        return change_page(title, back, fields=fields)
    if chosen is None:
        raise UserError(f"setting: {setting[:60]!r} is none that a topic may change")
    wanted = {setting: None if resets else value}
    changed = await client.on_controller(
        alter_configs(TOPIC, name, wanted, validate_only=not is_final(request))
    )
    if changed.error:
        raise Rejected(changed.error, changed.message or changed.error.name)
    if is_final(request):
        return Page("change.html", title, {}, redirect=back)
    after = "the default" if resets else value
    if resets and chosen.source != _DYNAMIC_OF_TOPIC:
        after = "the default, as now"
    return change_page(
        title, back, fields=fields, preview=[_row(setting, _text(chosen), after)], kept=form
    )


def _text(entry: ConfigEntry | None) -> str:
    return "" if entry is None or entry.sensitive else entry.value or ""


@guarded
async def delete_topic(context: Context, request: PageRequest, name: str) -> Page:
    """Delete a topic (`/topics/NAME/delete`)."""
    cluster = context.cluster
    topic = await existing_topic(context, name)
    if isinstance(topic, Page):
        return topic
    title, back = f"Delete {name}", path_of("topics", name)
    if confirmed(request, name):
        (deleted,) = await (await cluster.client()).delete_topics([name])
        if deleted.error:
            raise Rejected(deleted.error, deleted.message or f"topic {name}: {deleted.error.name}")
        cluster.forget()
        return Page("change.html", title, {}, redirect=path_of("topics"))
    spans = await cluster.spans([topic])
    sizes = await cluster.sizes()
    size = sum(bytes_of for key, bytes_of in sizes.items() if key.topic == name)
    preview = [
        _row("partitions", len(topic.partitions), "none"),
        _row("records", sum(one.end - one.start for one in spans.values()), "none"),
        _row("bytes on disk", size, "none"),
    ]
    if context.history is not None:
        in_bucket, _ = await tiered_bytes(context, name)
        bucket_size = "not known" if in_bucket is None else sum(in_bucket.values())
        preview.append(_row("bytes in the bucket", bucket_size, "none"))
    return change_page(
        title,
        back,
        fields=[],
        preview=preview,
        confirm=name,
        is_deletion=True,
        warning="The topic, its records and its objects in the bucket are deleted for good.",
    )
