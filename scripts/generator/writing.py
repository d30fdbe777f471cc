"""Functions that write structs, as Python text.

In: structs and versions. Out: straight-line functions, one for each struct and layout. It reads no message.

Neighbours of fixed size are one `struct` call, with the length of the next field where that has a fixed size, too. A
response drops what its version lacks. A request refuses it, unless the schema says that it may be ignored.
"""

from scripts.generator.classes import default_of
from scripts.generator.functions import Functions, local
from scripts.generator.reading import holds_records
from scripts.generator.schemas import FIXED, RECORD, Field, Message, StructType, layout, snake

__all__ = ["write_message", "write_record"]


def write_message(functions: Functions, message: Message, version: int) -> str:
    """Return the name of the function that writes a whole message of this version, and write it where it is new."""
    key = (
        "write",
        message.name,
        layout(message.top, version, flexible=message.flexible.has(version)),
    )
    if key not in functions.names:
        name = f"_write_{snake(message.name)}_{version}"
        functions.names[key] = name
        lines = _Lines(functions, message, version)
        lines.struct(message.top)
        body = list(lines.lines)
        if holds_records(message.top):
            body.insert(0, f"cuts: {functions.use('Cuts')} = []")
            body.append(f"return {functions.use('spliced')}(out, cuts)")
        else:
            body.append("return [out]")
        functions.text.append(
            f"def {name}(out: bytearray, item: {message.top.name}) -> list[Buffer]:\n"
            + "".join(f"    {line}\n" for line in body)
        )
    return functions.names[key]


def write_record(functions: Functions, record: Message, version: int) -> str:
    """Do as `write_message`, for a record. A value that the version lacks is an error of the caller."""
    return _Lines(functions, record, version).struct_function(record.top)


class _Lines:
    """The statements that write one struct, `item`, to `out`."""

    def __init__(
        self, functions: Functions, message: Message, version: int, out: str = "out"
    ) -> None:
        """Fields go to the bytearray `out`. It is another one for a tagged field, which is written where not null."""
        self.lines: list[str] = []
        self._functions = functions
        self._message = message
        self._version = version
        self._flexible = message.flexible.has(version)
        self._out = out
        self._run: list[tuple[str, str]] = []

    def struct(self, struct: StructType) -> None:
        """Write every field, then the tagged ones."""
        here = [field for field in struct.fields if field.versions.has(self._version)]
        if self._message.side != "response":
            self._refuse([field for field in struct.fields if field not in here])
        for field in here:
            if field.tag < 0:
                self._field(field)
        if self._flexible:
            self._tags([field for field in here if field.tag >= 0])
        self._flush()

    def tagged(self, field: Field) -> None:
        """Write the content of a tagged field."""
        self._field(field)
        self._flush()

    def _refuse(self, absent: list[Field]) -> None:
        for field in absent:
            if field.ignorable:
                continue
            if self._message.side == RECORD:
                error = f'AssertionError("{self._message.name}: this version has no {field.name}")'
            else:
                unsupported = self._functions.use("unsupported_field")
                error = f'{unsupported}("{self._message.name}", "{field.name}")'
            self.lines += [f"if {self._differs(field)}:", f"    raise {error}"]

    def _differs(self, field: Field) -> str:
        """Return the test whether a field is not its default."""
        value, default = f"item.{field.name}", default_of(field)
        if default == "None":
            return f"{value} is not None"
        if default in ("()", '""', 'b""', "False"):
            return value
        if field.struct is not None:  # nearly always the very same object
            return f"{value} is not {default} and {value} != {default}"
        return f"not {value}" if default == "True" else f"{value} != {default}"

    def _flush(self) -> None:
        run, self._run = self._run, []
        if not run:
            return
        letters = "".join(letter for letter, _ in run)
        values = ", ".join(value for letter, value in run if letter != "x")
        if letters == "x":
            self.lines.append(f"{self._out}.append(0)")
        else:
            self.lines.append(
                f"{self._out} += {self._functions.layout(letters, 'write')}({values})"
            )

    def _field(self, field: Field) -> None:
        if field.array:
            self._array(field)
        elif field.struct is not None:
            self._nested(field)
        elif field.kind == "uuid":
            self._run.append(("U", f"item.{field.name}.bytes"))
        elif field.kind in FIXED:
            self._run.append((FIXED[field.kind], f"item.{field.name}"))
        elif field.kind == "records":
            self._records(field)
        else:
            self._bytes(field)

    def _nullable(self, field: Field) -> bool:
        return self._out == "out" and field.nullable.has(self._version)

    def _not_null(self, field: Field) -> None:
        """A field that has null in other versions only."""
        if field.nullable.last >= field.nullable.first and not field.nullable.has(self._version):
            self.lines.append(
                f'assert item.{field.name} is not None, "{field.name} must not be null"'
            )

    def _bytes(self, field: Field) -> None:
        name, value = local(field.name), f"item.{field.name}"
        encode = ".encode()" if field.kind == "string" else ""
        self._not_null(field)
        if self._flexible:
            if self._nullable(field):
                self._flush()
            else:
                self.lines.append(f"{name} = {value}{encode}")
            size = self._size(f"len({name}) + 1")
            lines = [*size, f"{self._out} += {name}"]
            if self._nullable(field):
                lines.insert(0, f"{name} = {value}{encode}")
            self._maybe_null(field, lines)
            return
        letter = "h" if field.kind == "string" else "i"
        if self._nullable(field):
            encoded = f"None if {value} is None else {value}{encode}" if encode else value
            self.lines.append(f"{name} = {encoded}")
            self._run.append((letter, f"-1 if {name} is None else len({name})"))
            self._flush()
            self.lines += [f"if {name}:", f"    {self._out} += {name}"]
        else:
            self.lines.append(f"{name} = {value}{encode}")
            self._run.append((letter, f"len({name})"))
            self._flush()
            self.lines.append(f"{self._out} += {name}")

    def _size(self, size: str) -> list[str]:
        """Return the lines that write pending fields, and a compact length, which nearly always has one byte."""
        encode = self._functions.use("encode_unsigned", "stratalog.wire.varint")
        run, self._run = self._run, []
        short, before = f"{self._out}.append(size)", ""
        if run:
            layout = self._functions.layout
            letters = "".join(letter for letter, _ in run)
            values = ", ".join(value for letter, value in run if letter != "x")
            short = f"{self._out} += {layout(letters + 'B', 'write')}({values}, size)"
            before = f"{layout(letters, 'write')}({values}) + "
        return [
            f"size = {size}",
            "if size < 128:",
            f"    {short}",
            "else:",
            f"    {self._out} += {before}{encode}(size)",
        ]

    def _maybe_null(self, field: Field, lines: list[str]) -> None:
        if self._nullable(field):
            self.lines += [f"if item.{field.name} is None:", f"    {self._out}.append(0)", "else:"]
            lines = ["    " + line for line in lines]
        self.lines += lines

    def _array(self, field: Field) -> None:
        """Write an array. Most of those that may be empty are."""
        value = f"item.{field.name}"
        self._not_null(field)
        nullable = self._nullable(field)
        if self._flexible:
            self._flush()
        else:
            count = f"-1 if {value} is None else len({value})" if nullable else f"len({value})"
            self._run.append(("i", count))
            self._flush()
        if field.struct is not None:
            lines = self._size(f"len({value}) + 1") if self._flexible else []
            cuts = ", cuts" if holds_records(field.struct) else ""
            lines.append(f"{self._array_function(field.struct)}({self._out}, {value}{cuts})")
        else:
            many = {"string": "strings", "uuid": "uuids"}.get(field.kind, "numbers")
            write = self._functions.use(f"write_{'compact_' if self._flexible else ''}{many}")
            letter = f', "{FIXED[field.kind]}"' if many == "numbers" else ""
            lines = [f"{write}({self._out}, {value}{letter})"]
        self.lines += [f"if {value}:", *("    " + line for line in lines)]
        if self._flexible:
            # Where None is not allowed, len() refuses it.
            empty = f"0 if {value} is None else 1" if nullable else f"len({value}) + 1"
            self.lines += ["else:", f"    {self._out}.append({empty})"]

    def _records(self, field: Field) -> None:
        self._flush()
        write = self._functions.use("write_compact_records" if self._flexible else "write_records")
        self.lines.append(f"{write}({self._out}, item.{field.name}, cuts)")

    def _nested(self, field: Field) -> None:
        assert field.struct is not None
        value = f"item.{field.name}"
        self._not_null(field)
        self._flush()
        call = f"{self.struct_function(field.struct)}({self._out}, {value})"
        if self._nullable(field):
            self.lines += [
                f"if {value} is None:",
                f"    {self._out}.append(0xFF)",
                "else:",
                f"    {self._out}.append(1)",
                f"    {call}",
            ]
        else:
            self.lines.append(call)

    def _tags(self, tagged: list[Field]) -> None:
        self._run.append(("x", ""))
        self._flush()
        if not tagged:
            return
        # The count is one byte: no struct has as many as 127 tags of its own.
        start = ["tags = len(out) - 1"]
        if len(tagged) > 1:
            self.lines += start
            start = []
        for field in sorted(tagged, key=lambda one: one.tag):
            assert not field.nullable.has(self._version) or default_of(field) == "None", field.name
            inner = _Lines(self._functions, self._message, self._version, "whole")
            inner.tagged(field)
            self.lines += [
                f"if {self._differs(field)}:",
                *("    " + line for line in start),
                "    whole = bytearray()",
                *("    " + line for line in inner.lines),
                "    out[tags] += 1",
                f"    {self._functions.use('write_tag')}(out, {field.tag}, whole)",
            ]

    def _array_function(self, struct: StructType) -> str:
        functions = self._functions
        key = ("write array", struct.name, layout(struct, self._version, flexible=self._flexible))
        if key not in functions.names:
            name = f"_write_{snake(struct.name)}_array_{self._version}"
            functions.names[key] = name
            lines = _Lines(functions, self._message, self._version)
            lines.struct(struct)
            cuts = f", cuts: {functions.use('Cuts')}" if holds_records(struct) else ""
            functions.text.append(
                f"def {name}(out: bytearray, items: Sequence[{struct.name}]{cuts}) -> None:\n"
                "    for item in items:\n"
                + "".join(f"        {line}\n" for line in lines.lines or ["pass"])
            )
        return functions.names[key]

    def struct_function(self, struct: StructType) -> str:
        functions = self._functions
        key = ("write one", struct.name, layout(struct, self._version, flexible=self._flexible))
        if key not in functions.names:
            name = f"_write_{snake(struct.name)}_{self._version}"
            functions.names[key] = name
            lines = _Lines(functions, self._message, self._version)
            lines.struct(struct)
            functions.text.append(
                f"def {name}(out: bytearray, item: {struct.name}) -> None:\n"
                + "".join(f"    {line}\n" for line in lines.lines)
            )
        return functions.names[key]
