"""Changes of offsets: reset a group's, and delete the records below some.

In: a form of one of our pages. Out: a preview, or the change. The preview's offsets travel in its form: what a
person saw is what happens.
"""

from collections.abc import Mapping
from typing import Final

from stratalog.client.admin import commit_offsets, delete_group, delete_records, fetch_offsets
from stratalog.client.calls import TopicInfo
from stratalog.console.cluster import Span
from stratalog.console.page import Context, Page, PageRequest, missing, path_of
from stratalog.console.pages.changes import (
    change_page,
    confirmed,
    existing_topic,
    field,
    guarded,
    is_final,
)
from stratalog.console.pages.groups import existing_group
from stratalog.console.pages.positions import epoch_ms, offset_of, positions_of, written
from stratalog.errors import ErrorCode, Rejected, UserError
from stratalog.wire.ids import TopicPartition

__all__ = ["delete_group_page", "delete_records_page", "reset_group"]

_TO: Final = ("the beginning", "the end", "an offset", "a time")


@guarded
async def delete_records_page(context: Context, request: PageRequest, name: str) -> Page:
    """Delete the records below an offset of each partition (`/topics/NAME/delete-records`)."""
    topic = await existing_topic(context, name)
    if isinstance(topic, Page):
        return topic
    title, back = f"Delete records of {name}", path_of("topics", name)
    if confirmed(request, name):
        await _delete(context, topic, positions_of("offsets", request.form.get("offsets", "")))
        return Page("change.html", title, {}, redirect=back)
    form = request.form
    fields = _fields(form, "Delete records before")
    if not request.is_post:
        return change_page(title, back, fields=fields, is_deletion=True)
    spans = await _spans(context, topic, form.get("partition", ""))
    before = await _targets(context, topic, form, spans)
    preview = [
        {
            "what": f"partition {index}",
            "before": f"begins at {spans[index].start}",
            "after": f"begins at {offset}: {offset - spans[index].start} records are deleted",
        }
        for index, offset in sorted(before.items())
    ]
    return change_page(
        title,
        back,
        fields=fields,
        preview=preview,
        kept={"offsets": written(before)},
        confirm=name,
        is_deletion=True,
        warning="Deleted records do not come back, neither from a disk nor from the bucket.",
    )


def _fields(form: Mapping[str, str], label: str) -> list[dict[str, object]]:
    return [
        field("partition", "Partition", form.get("partition", ""), note="empty: all of them"),
        field("to", label, form.get("to", ""), options=_TO),
        field("value", "Offset, or time in UTC", form.get("value", "")),
    ]


async def _spans(context: Context, topic: TopicInfo, partition: str) -> dict[int, Span]:
    """Return the range of each chosen partition. Raises UserError."""
    found = {key.partition: span for key, span in (await context.cluster.spans([topic])).items()}
    text = partition.strip()
    if not text:
        return found
    if not text.isdecimal() or len(text) > 9 or int(text) not in found:
        raise UserError(
            f"partition: {partition[:40]!r} is none of {topic.name}'s that has a leader"
        )
    return {int(text): found[int(text)]}


async def _targets(
    context: Context, topic: TopicInfo, form: Mapping[str, str], spans: Mapping[int, Span]
) -> dict[int, int]:
    """Return the offset that the form means in each partition, within its range. Raises UserError."""
    where, value = form.get("to", ""), form.get("value", "").strip()
    if where == "the beginning":
        return {index: span.start for index, span in spans.items()}
    if where == "the end":
        return {index: span.end for index, span in spans.items()}
    if where == "a time":
        found = await context.cluster.offsets([topic], epoch_ms(value))
        at = {index: found.get(TopicPartition(topic.name, index), -1) for index in spans}
        return {index: offset if offset >= 0 else spans[index].end for index, offset in at.items()}
    if where != "an offset":
        raise UserError(f"to: {where[:40]!r} is not accepted; accepted: {', '.join(_TO)}")
    offset = offset_of("offset", value)
    return {index: min(max(offset, span.start), span.end) for index, span in spans.items()}


async def _delete(context: Context, topic: TopicInfo, before: Mapping[int, int]) -> None:
    by_leader: dict[int, dict[TopicPartition, int]] = {}
    for index, offset in before.items():
        one = topic.partitions.get(index)
        if one is None or one.leader < 0:
            raise UserError(f"nothing was deleted: {topic.name}-{index} has no leader")
        by_leader.setdefault(one.leader, {})[TopicPartition(topic.name, index)] = offset
    client = await context.cluster.client()
    for leader, wanted in by_leader.items():
        for key, code in (await client.call(delete_records(wanted), leader)).items():
            if code:
                raise Rejected(code, f"{key}: {code.name}")


@guarded
async def reset_group(context: Context, request: PageRequest, name: str) -> Page:
    """Reset a group's offsets of a topic (`/groups/NAME/reset`)."""
    client = await context.cluster.client()
    group = await existing_group(client, name)
    if group is None:
        return missing(f"group {name[:249]} does not exist", "see the groups' page")
    title, back = f"Reset offsets of {name}", path_of("groups", name)
    if group.members:
        raise UserError(f"group {name} has {len(group.members)} member(s): stop them first")
    committed = await client.on_coordinator(name, fetch_offsets(name))
    form = request.form
    topics = tuple(sorted({key.topic for key in committed}))
    topic_name = form.get("topic", "")
    fields = [field("topic", "Topic", topic_name, options=topics), *_fields(form, "To")]
    if not request.is_post:
        return change_page(title, back, fields=fields)
    topic = await existing_topic(context, topic_name)
    if isinstance(topic, Page):
        return topic
    if is_final(request):
        offsets = positions_of("offsets", form.get("offsets", ""))
        wanted = {TopicPartition(topic_name, index): offset for index, offset in offsets.items()}
        await client.on_coordinator(name, commit_offsets(name, wanted))
        return Page("change.html", title, {}, redirect=back)
    spans = await _spans(context, topic, form.get("partition", ""))
    after = await _targets(context, topic, form, spans)
    preview = [
        {
            "what": f"{topic_name}-{index}",
            "before": committed.get(TopicPartition(topic_name, index)),
            "after": f"{offset}: {spans[index].end - offset} records to read",
        }
        for index, offset in sorted(after.items())
    ]
    kept = {"topic": topic_name, "offsets": written(after)}
    return change_page(title, back, fields=fields, preview=preview, kept=kept)


@guarded
async def delete_group_page(context: Context, request: PageRequest, name: str) -> Page:
    """Delete a group without members (`/groups/NAME/delete`)."""
    client = await context.cluster.client()
    group = await existing_group(client, name)
    if group is None:
        return missing(f"group {name[:249]} does not exist", "see the groups' page")
    title, back = f"Delete {name}", path_of("groups", name)
    if confirmed(request, name):
        deleted = await client.on_coordinator(name, delete_group(name))
        if deleted.error is not ErrorCode.none:
            raise Rejected(deleted.error, deleted.message or f"group {name}: {deleted.error.name}")
        return Page("change.html", title, {}, redirect=path_of("groups"))
    committed = await client.on_coordinator(name, fetch_offsets(name))
    preview = [
        {"what": "members", "before": len(group.members), "after": "none"},
        {"what": "committed offsets", "before": len(committed), "after": "none"},
    ]
    return change_page(
        title,
        back,
        fields=[],
        preview=preview,
        confirm=name,
        is_deletion=True,
        warning="A consumer of this name then begins where its auto.offset.reset says.",
    )
