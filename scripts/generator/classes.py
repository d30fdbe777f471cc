"""The classes of a message, as Python text.

In: structs. Out: one `msgspec.Struct` each, and Python types, defaults and sizes of fields. It reads no bytes.
"""

from scripts.generator.schemas import RECORD, Field, Message, StructType, snake

from stratalog.wire.budget import ARRAY_BYTES, ITEM_BYTES, NUMBER_BYTES, STRING_BYTES, UUID_BYTES

__all__ = ["class_text", "default_of", "item_bytes", "python_type"]

_PYTHON = {
    "bool": "bool",
    "float64": "float",
    "string": "str",
    "bytes": "bytes",
    "uuid": "UUID",
}
_ZERO = {"string": '""', "bytes": 'b""', "uuid": "ZERO_ID", "bool": "False", "float64": "0.0"}
_OBJECT_BYTES = {
    "string": STRING_BYTES,
    "bytes": STRING_BYTES,
    "records": 184,  # a memoryview
    "uuid": UUID_BYTES,
    "bool": 0,
    "int8": 0,  # all of them exist already
}
_STRUCT_BYTES = 32


def python_type(field: Field, message: Message) -> str:
    """Return the annotation of a field; null is part of it where any version has null."""
    if field.kind == "records":
        # A client produces one buffer; a broker answers with as many as the log has.
        whole = "memoryview" if message.side == "request" else "memoryview | Sequence[Buffer]"
    else:
        one = field.struct.name if field.struct else _PYTHON.get(field.kind, "int")
        # A record's arrays become part of values that are compared and hashed.
        many = f"tuple[{one}, ...]" if message.side == RECORD else f"Sequence[{one}]"
        whole = many if field.array else one
    nullable = field.nullable.last >= field.nullable.first
    return f"{whole} | None" if nullable else whole


def default_of(field: Field) -> str:
    """Return the value of the field in a version without it, as Python text."""
    if field.default is not None:
        return field.default
    if field.array:
        return "()"
    if field.struct:
        return default_object(field.struct)
    return _ZERO.get(field.kind, "0")


def default_object(struct: StructType) -> str:
    """Return the name of the object of a class that has every field's default."""
    return f"NO_{snake(struct.name).upper()}"


def is_optional(field: Field, struct: StructType) -> bool:
    """Return whether a caller may leave the field out: the schema has a default, or a version lacks the field."""
    return (
        field.default is not None
        or field.tag >= 0
        or lacks(field, struct)
        or field.name == "throttle_time_ms"
    )


def lacks(field: Field, struct: StructType) -> bool:
    """Return whether a version that has the struct lacks the field."""
    here, all_of = field.versions, struct.versions
    return here.first > all_of.first or here.last < all_of.last


def class_text(struct: StructType, message: Message) -> str:
    """Return the class."""
    base = "Struct"
    if struct is message.top and message.side == "request":
        base = f'Request["{message.name.removesuffix("Request")}Response"]'
    lines = [f"class {struct.name}({base}, frozen=True, kw_only=True, gc=False):"]
    if struct is message.top:
        numbered = message.side == RECORD and message.key >= 0
        number = f"Number {message.key}, versions" if numbered else "Versions"
        lines += [f'    """{number} {struct.versions.text()}."""', ""]
        if message.side == "request":
            lines += [f"    KEY: ClassVar[int] = {message.key}", ""]
    for field in struct.fields:
        line = f"    {field.name}: {python_type(field, message)}"
        if is_optional(field, struct):
            line += f" = {default_of(field)}"
        if lacks(field, struct):
            line += f"  # {field.versions.text()}"
        lines.append(line)
    if not struct.fields:
        lines.append("    pass")
    if _is_default(struct, message):
        given = [
            f"{one.name}={default_of(one)}" for one in struct.fields if not is_optional(one, struct)
        ]
        lines += ["", "", f"{default_object(struct)} = {struct.name}({', '.join(given)})"]
    return "\n".join(lines) + "\n"


def _is_default(struct: StructType, message: Message) -> bool:
    """Return whether an object of a class is the default of a field."""
    return any(
        field.struct is struct and not field.array and is_optional(field, other)
        for other in message.structs
        for field in other.fields
    )


def item_bytes(struct: StructType, version: int) -> int:
    """Return the memory of one object of this version with its fields and the first item of each array of structs."""
    size = _STRUCT_BYTES + ITEM_BYTES * len(struct.fields)
    for field in struct.fields:
        if not field.versions.has(version) or field.tag >= 0:
            continue
        if field.array:
            size += ARRAY_BYTES
            if field.struct:
                size += ITEM_BYTES + item_bytes(field.struct, version)
        elif not field.struct:  # whose own function charges it
            size += _OBJECT_BYTES.get(field.kind, NUMBER_BYTES)
    return size
