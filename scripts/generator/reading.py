"""Functions that read structs, as Python text.

In: structs and versions. Out: straight-line functions, one for each struct and layout. It writes no message.

Neighbours of fixed size are one `struct` call, with the length of the next field. Positions only grow, so a slice that
is cut short shows at the end: the outermost function compares the last position with the size.
"""

from scripts.generator.classes import default_of, item_bytes, python_type
from scripts.generator.functions import Functions, local, size_of
from scripts.generator.schemas import FIXED, RECORD, Field, Message, StructType, layout, snake

from stratalog.wire.budget import ITEM_BYTES

__all__ = ["holds_records", "read_message", "read_record"]


def read_message(functions: Functions, message: Message, version: int) -> str:
    """Return the name of the function that reads a whole message of this version, and write it where it is new."""
    flexible = message.flexible.has(version)
    key = ("read", message.name, layout(message.top, version, flexible=flexible))
    if key not in functions.names:
        name = f"_read_{snake(message.name)}_{version}"
        functions.names[key] = name
        lines = _Lines(functions, message, version)
        lines.struct(message.top)
        kind = "memoryview" if lines.views else "bytes"
        size = item_bytes(message.top, version)
        # A view copies only fields that are charged separately.
        whole = f"{size}" if lines.views else f"{size} + len(data)"
        functions.text.append(
            f"def {name}(data: {kind}, position: int, budget: DecodeBudget) -> {message.top.name}:\n"
            f"    budget.charged += {whole}\n"
            "    if budget.charged > budget.allowed:\n"
            f"        raise {functions.use('OverBudget', 'stratalog.wire.budget')}(budget.allowed)\n"
            + "".join(f"    {line}\n" for line in lines.lines)
            + ("" if lines.ended else "".join(f"    {line}\n" for line in lines.check_end()))
            + f"    return {lines.made}\n"
        )
    return functions.names[key]


def read_record(functions: Functions, record: Message, version: int) -> str:
    """Do as `read_message`, for a record. The record's reader also returns its end, which may lie past the data's."""
    return _Lines(functions, record, version).struct_function(record.top)


def holds_records(struct: StructType) -> bool:
    """Return whether a struct has a records field at any depth."""
    return any(
        one.kind == "records" or (one.struct is not None and holds_records(one.struct))
        for one in struct.fields
    )


class _Lines:
    """The statements that read one struct, which `made` then makes."""

    def __init__(
        self, functions: Functions, message: Message, version: int, *, declared: bool = False
    ) -> None:
        """`declared`: the fields' variables have their annotations already."""
        self.lines: list[str] = []
        self.made = ""
        self.ended = False
        self._declared = declared
        self._empty = "()" if message.side == RECORD else "[]"
        self.views = holds_records(message.top)
        self._functions = functions
        self._message = message
        self._version = version
        self._flexible = message.flexible.has(version)
        self._run: list[tuple[str, str]] = []

    def struct(self, struct: StructType) -> None:
        """Read every field, then the tagged ones."""
        here = [field for field in struct.fields if field.versions.has(self._version)]
        for field in here:
            if field.tag < 0:
                self._field(field)
        tagged = [field for field in here if field.tag >= 0]
        if self._flexible:
            top = struct is self._message.top and self._message.side != RECORD
            self._tags(tagged, top=top)
        self._flush()
        values = ", ".join(f"{field.name}={self._value(field)}" for field in here)
        self.made = f"{struct.name}({values})"

    def check_end(self) -> list[str]:
        """Return the lines that refuse a message of which the last field is cut short."""
        error = self._functions.use("past_end")
        return ["if position > len(data):", f"    raise {error}(position, len(data))"]

    def tagged(self, field: Field) -> None:
        """Read the content of a tagged field."""
        if field.array and field.struct is not None:
            self.lines.append(f"budget.charge({item_bytes(field.struct, self._version)})")
        self._field(field)
        self._flush()
        if field.kind == "uuid" and not field.array:
            name = local(field.name)
            made = self._functions.use("topic_id_of", "stratalog.wire.ids")
            self.lines.append(f"{name} = {made}({name})")

    def _declare(self, field: Field, value: str) -> None:
        annotation = "" if self._declared else f": {python_type(field, self._message)}"
        self.lines.append(f"{local(field.name)}{annotation} = {value}")

    def _value(self, field: Field) -> str:
        name = local(field.name)
        if field.kind == "uuid" and not field.array and field.tag < 0:
            return f"{self._functions.use('topic_id_of', 'stratalog.wire.ids')}({name})"
        return name

    def _flush(self, *, behind: int = 0) -> None:
        """Read the values of fixed size that wait; the position stays so many bytes `behind` their end."""
        run, self._run = self._run, []
        if not run:
            return
        letters = "".join(letter for letter, _ in run)
        names = ", ".join(name for _, name in run)
        if letters == "B":
            self.lines.append(f"{names} = data[position]")
        else:
            read = self._functions.layout(letters, "read")
            self.lines.append(
                f"{names if len(run) > 1 else f'({names},)'} = {read}(data, position)"
            )
        if step := size_of(letters) - behind:
            self.lines.append(f"position += {step}")

    def _field(self, field: Field) -> None:
        if field.array:
            self._array(field)
        elif field.struct is not None:
            self._nested(field)
        elif field.kind in FIXED:
            self._run.append((FIXED[field.kind], local(field.name)))
        else:
            self._bytes(field)

    def _bytes(self, field: Field) -> None:
        """Read a string, bytes or records."""
        if self._flexible:
            self._compact_bytes(field)
            return
        name = local(field.name)
        self._run.append(("h" if field.kind == "string" else "i", "size"))
        self._flush()
        indent = ""
        if field.nullable.has(self._version):
            self._declare(field, "None")
            self.lines.append("if size >= 0:")
            indent = "    "
        else:
            self.lines.append("if size < 0:")
            self.lines.append(f'    raise {self._functions.use("null_field")}("{field.name}")')
        lines = []
        if self.views and field.kind != "records":
            lines += ["if size > 127:", "    budget.charge(size)"]
        lines += [
            "end = position + size",
            f"{name} = {self._piece(field.kind, 'position:end')}",
            "position = end",
        ]
        self.lines += [indent + line for line in lines]

    def _compact_bytes(self, field: Field) -> None:
        """Read a field with a compact length. Until its content is read, the position is that of the length's last
        byte.
        """
        name, nullable = local(field.name), field.nullable.has(self._version)
        self._run.append(("B", "size"))
        self._flush(behind=1)
        if field.kind == "records":  # nearly always between 127 and 16,384 bytes, or far more
            read = self._functions.use("read_longer_size")
            lines = [
                "if size > 127:",
                "    position += 1",
                "    high = data[position]",
                "    if 0 < high < 128:",
                "        size = size & 127 | high << 7",
                "    else:",
                f"        size, position = {read}(data, position - 1)",
            ]
        elif nullable:
            read = self._functions.use("read_longer_size")
            lines = ["if size > 127:", f"    size, position = {read}(data, position)"]
        else:
            read = self._functions.use("read_long_size")
            lines = [
                "if not 0 < size < 128:",
                f'    size, position = {read}(data, position, size, "{field.name}")',
            ]
        if self.views and field.kind != "records":
            lines.append("    budget.charge(size)")  # the copied part of a view
        lines.append(f"{name} = {self._piece(field.kind, 'position + 1 : position + size')}")
        if nullable:
            self._declare(field, "None")
            self.lines += ["if size:", *("    " + line for line in lines)]
            self.lines += ["    position += size", "else:", "    position += 1"]
        else:
            self.lines += [*lines, "position += size"]

    def _piece(self, kind: str, cut: str) -> str:
        if kind == "records":
            return f"data[{cut}]"
        copied = f"data[{cut}]{'.tobytes()' if self.views else ''}"
        return f"{copied}.decode()" if kind == "string" else copied

    def _array(self, field: Field) -> None:
        """Read an array. Most of those that may be empty are, and cost no call."""
        name = local(field.name)
        self._run.append(("B" if self._flexible else "i", "count"))
        self._flush()
        lines = []
        if field.struct is not None:
            count = "count"
            if self._flexible:
                read = self._functions.use("read_unsigned", "stratalog.wire.varint")
                lines += ["if count > 127:", f"    count, position = {read}(data, position - 1)"]
                count = "count - 1"
            call = f"{self._array_function(field, field.struct)}(data, position, {count}, budget)"
        else:
            many = {"string": "strings", "uuid": "uuids"}.get(field.kind, "numbers")
            read = self._functions.use(f"read_{'compact_' if self._flexible else ''}{many}")
            letter = f'"{FIXED[field.kind]}", ' if many == "numbers" else ""
            call = f'{read}(data, position, count, {letter}budget, "{field.name}")'
        lines.append(f"{name}, position = {call}")
        nullable = field.nullable.has(self._version)
        if nullable:
            self._declare(field, "None")
        self.lines.append(f"if count == {int(self._flexible)}:")
        if nullable or self._declared:
            self.lines.append(f"    {name} = {self._empty}")
        else:
            self.lines.append(f"    {name}: {python_type(field, self._message)} = {self._empty}")
        if nullable:
            self.lines.append(f"elif count{'' if self._flexible else ' >= 0'}:")
        else:
            self.lines.append("else:")
        self.lines += ["    " + line for line in lines]

    def _nested(self, field: Field) -> None:
        """Read a struct that is not in an array."""
        assert field.struct is not None
        name = local(field.name)
        call = f"{self.struct_function(field.struct)}(data, position, budget)"
        if field.nullable.has(self._version) and field.tag < 0:
            # KIP-893: a negative byte is null.
            self._run.append(("b", "size"))
            self._flush()
            self._declare(field, "None")
            self.lines.append("if size >= 0:")
            self.lines.append(f"    {name}, position = {call}")
        else:
            self._flush()
            self.lines.append(f"{name}, position = {call}")

    def _tags(self, tagged: list[Field], *, top: bool) -> None:
        """Read the section of tagged fields. Where it has none, its own byte proves that the data reach here."""
        self.ended = top
        end = [f"    {line}" for line in self.check_end()] if top else []
        self._run.append(("B", "tags"))
        self._flush()
        use = self._functions.use
        if not tagged:
            self.lines.append("if tags:")
            self.lines.append(f"    position = {use('skip_tags')}(data, position, tags, budget)")
            self.lines += end
            return
        for field in tagged:
            self._declare(field, default_of(field))
        read = use("read_unsigned", "stratalog.wire.varint")
        self.lines += [
            "if tags:",
            f"    tags, position = {use('read_tag_count')}(data, position, tags, budget)",
            "    for _ in range(tags):",
            f"        tag, position = {read}(data, position)",
            f"        size, position = {read}(data, position)",
            "        whole = position + size",
        ]
        for index, field in enumerate(tagged):
            self.lines.append(f"        {'if' if index == 0 else 'elif'} tag == {field.tag}:")
            inner = _Lines(self._functions, self._message, self._version, declared=True)
            inner.tagged(field)
            self.lines += [f"            {line}" for line in inner.lines]
        self.lines += [
            "        else:",
            "            position = whole",
            "        if position != whole:",
            f"            raise {use('bad_tag')}(tag)",
            *end,
        ]

    def _array_function(self, field: Field, struct: StructType) -> str:
        """Return the function that reads an array of structs, and write it where it is new."""
        functions = self._functions
        key = ("array", struct.name, layout(struct, self._version, flexible=self._flexible))
        if key not in functions.names:
            name = f"_read_{snake(struct.name)}_array_{self._version}"
            functions.names[key] = name
            lines = _Lines(functions, self._message, self._version)
            lines.struct(struct)
            kind = "memoryview" if self.views else "bytes"
            charge = functions.use("charge_more_items")
            each = ITEM_BYTES + item_bytes(struct, self._version)
            many, made = f"list[{struct.name}]", "items"
            if self._message.side == RECORD:
                many, made = f"tuple[{struct.name}, ...]", "tuple(items)"
            functions.text.append(
                f"def {name}(data: {kind}, position: int, count: int, budget: DecodeBudget)"
                f" -> tuple[{many}, int]:\n"
                "    if count != 1:\n"
                f'        {charge}(count, len(data) - position, {each}, budget, "{field.name}")\n'
                "    items = []\n"
                "    left = count\n"
                "    while left:\n"
                "        left -= 1\n"
                + "".join(f"        {line}\n" for line in lines.lines)
                + f"        items.append({lines.made})\n"
                f"    return {made}, position\n"
            )
        return functions.names[key]

    def struct_function(self, struct: StructType) -> str:
        """Return the function that reads one struct, and write it where it is new."""
        functions = self._functions
        key = ("one", struct.name, layout(struct, self._version, flexible=self._flexible))
        if key not in functions.names:
            name = f"_read_{snake(struct.name)}_{self._version}"
            functions.names[key] = name
            lines = _Lines(functions, self._message, self._version)
            lines.struct(struct)
            kind = "memoryview" if self.views else "bytes"
            charged = f"    budget.charge({item_bytes(struct, self._version)})\n"
            if self._message.side == RECORD:  # The data are trusted.
                charged = ""
            functions.text.append(
                f"def {name}(data: {kind}, position: int, budget: DecodeBudget) -> tuple[{struct.name}, int]:\n"
                f"{charged}"
                + "".join(f"    {line}\n" for line in lines.lines)
                + f"    return {lines.made}, position\n"
            )
        return functions.names[key]
