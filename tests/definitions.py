"""The names that a module of Python defines, and those that it uses.

In: syntax trees. Out: names. It knows no rule about them: `test_tidy.py` does.
"""

import ast
import re
from collections.abc import Iterable, Iterator


def used_names(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Names that code reads, also those in strings: annotations, entry points, names for `getattr`."""
    for node in nodes:
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.keyword(arg=str(name)):
                yield name
            case ast.Constant(value=str(text)):
                yield from re.findall(r"\w+", text)


def class_bases(trees: Iterable[ast.Module]) -> dict[str, list[str]]:
    """Return the bases of each class of these modules."""
    return {
        node.name: [ast.unparse(base) for base in node.bases]
        for tree in trees
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    }


def called_by_us(tree: ast.Module, bases: dict[str, list[str]]) -> Iterator[tuple[str, int]]:
    """Return functions and methods with their lines; no method of a class with a library's base, which may call it.

    `bases`: those of each class of the product.
    """

    def is_ours(name: str) -> bool:
        return name in bases and all(is_ours(base) for base in bases[name])

    for node in tree.body:
        members = [node]
        if isinstance(node, ast.ClassDef):
            members = node.body if is_ours(node.name) else []
        for member in members:
            if not isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if not (member.name.startswith("__") or registered(member)):
                yield member.name, member.lineno


def registered(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether a decorator with a call, such as a command's, registers the function."""
    return any(isinstance(decorator, ast.Call) for decorator in function.decorator_list)


def defined_names(node: ast.stmt) -> list[str]:
    """Names that a statement of a module binds; what a decorator registers is in use already."""
    match node:
        case (
            ast.FunctionDef(name=name, decorator_list=[])
            | ast.AsyncFunctionDef(name=name, decorator_list=[])
        ):
            return [name]
        case ast.ClassDef(name=name):
            return [name]
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            return [] if name.startswith("__") else [name]
        case _:
            return []
