"""Names of the places in source code that allocate, the same on every machine: no absolute path, methods with class."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path, PurePath

PROJECT = Path(__file__).resolve().parents[3]
PACKAGE = "perfscribe"
LIBRARY_FOLDERS = ("site-packages", "dist-packages")


def place(file: str, function: str, line: int) -> str:
    """`file:function:line`, the file relative to the project or to the folder that libraries are installed in.

    A function of the project is named with its class, as perfscribe/models/transformer.py:Block.forward:120.
    """
    relative = relative_file(file)
    if relative.startswith(f"{PACKAGE}/"):
        function = _qualified(relative, function, line)
    return f"{relative}:{function}:{line}"


@cache
def relative_file(file: str) -> str:
    """The file without what is private to a machine; the base name where nothing else is known to be public."""
    path = PurePath(file)
    if not path.is_absolute():
        return path.as_posix()
    # Libraries first: the environment may lie in the project's folder.
    for folder in LIBRARY_FOLDERS:
        if folder in path.parts:
            return PurePath(*path.parts[_last(path, folder) + 1 :]).as_posix()
    if path.is_relative_to(PROJECT):
        return path.relative_to(PROJECT).as_posix()
    for folder in (PACKAGE, "torch"):
        if folder in path.parts:
            return PurePath(*path.parts[_last(path, folder) :]).as_posix()
    return path.name


def _last(path: PurePath, folder: str) -> int:
    """Where in the path the folder's name stands last."""
    return len(path.parts) - 1 - path.parts[::-1].index(folder)


@cache
def _qualified(relative: str, function: str, line: int) -> str:
    """The function's name with those of what holds it, by the project's source."""
    for first, last, qualified in reversed(_functions(relative)):
        if first <= line <= last and qualified.rpartition(".")[2] == function:
            return qualified
    return function


@cache
def _functions(relative: str) -> list[tuple[int, int, str]]:
    """(first line, last line, qualified name) of every function of a file, outer ones first."""
    path = PROJECT / relative
    if not path.is_file():
        return []
    return list(_walk(ast.parse(path.read_text(encoding="utf-8")), ()))


def _walk(node: ast.AST, holders: tuple[str, ...]) -> Iterator[tuple[int, int, str]]:
    for child in ast.iter_child_nodes(node):
        named = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
        inside = (*holders, child.name) if named else holders  # type: ignore[attr-defined]
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield child.lineno, child.end_lineno or child.lineno, ".".join(inside)
        yield from _walk(child, inside)
