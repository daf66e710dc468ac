"""Fingerprints of source code: what a unit's result depends on, comments and formatting left out.

A fingerprint is the SHA-256 of the syntax tree, without docstrings, of a module and of every project module that it
imports, directly or through others, at the top or inside a function. The tree is written down here, since the texts of
ast.dump and ast.unparse differ between Python 3.11, 3.12 and 3.13 (ast.unparse: the quotes of f-strings). This file
imports the standard library alone, so that any Python can compute a fingerprint.
"""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path

PACKAGE = "perfscribe"
# Fields of syntax tree nodes that change nothing: the u of u"text", and type comments.
IDLE_FIELDS = frozenset({"kind", "type_comment", "type_ignores"})
# Their results stand in the plan, so their source text need not count: a new level measures its own cells alone.
PLANNED_FUNCTIONS = frozenset({"cells", "datasets"})


def module_path(module: str, root: Path) -> Path | None:
    """The file of a dotted module name below root, or None where there is none."""
    base = root.joinpath(*module.split("."))
    for path in (base.with_suffix(".py"), base / "__init__.py"):
        if path.is_file():
            return path
    return None


def _parents(module: str) -> Iterator[str]:
    parts = module.split(".")
    for end in range(1, len(parts) + 1):
        yield ".".join(parts[:end])


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """All statements of a body and of the bodies in it; expressions, most of a tree, are passed over."""
    for statement in body:
        yield statement
        yield from _statements([inner for part in _parts(statement) for inner in part])


def _parts(node: ast.AST) -> Iterator[list[ast.stmt]]:
    for name in ("body", "orelse", "finalbody"):
        yield getattr(node, name, [])
    for name in ("handlers", "cases"):
        for part in getattr(node, name, []):
            yield part.body


def _imports(tree: ast.Module, module: str, is_package: bool) -> Iterator[str]:
    for node in _statements(tree.body):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                anchor = module.split(".") if is_package else module.split(".")[:-1]
                anchor = anchor[: len(anchor) - node.level + 1]
                base = ".".join([*anchor, *([base] if base else [])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


@cache
def _parsed(source: str, path: Path) -> ast.Module:
    """The syntax tree, which nobody may change."""
    return ast.parse(source, filename=str(path))


@cache
def _imports_of(source: str, path: Path, module: str) -> tuple[str, ...]:
    return tuple(_imports(_parsed(source, path), module, path.name == "__init__.py"))


def _imported_names(path: Path, module: str) -> tuple[str, ...]:
    """Dotted names that the module's import statements may refer to, names of functions among them."""
    # Kept by content: two edits within a tick of the file system's clock leave the same time stamp.
    return _imports_of(path.read_text(encoding="utf-8"), path, module)


def import_closure(module: str, root: Path) -> dict[str, Path]:
    """Every project module that the module needs, itself among them: file by dotted name.

    Raises ValueError where the module does not exist.
    """
    if module_path(module, root) is None:
        raise ValueError(f"{module}: no such module below {root}")
    found: dict[str, Path] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        path = module_path(name, root)
        if name in found or path is None:
            continue
        found[name] = path
        waiting.extend(imported for imported in _imported_names(path, name) if imported.split(".")[0] == PACKAGE)
        waiting.extend(_parents(name))  # importing a module runs the code of the packages that hold it
    return found


def libraries(module: str, root: Path) -> list[str]:
    """Top-level names of the third-party packages that the module's import closure imports, sorted."""
    names: set[str] = set()
    for name, path in import_closure(module, root).items():
        for imported in _imported_names(path, name):
            names.add(imported.split(".")[0])
    return sorted(names - set(sys.stdlib_module_names) - {PACKAGE, ""})


def _is_idle(part: object, parent: ast.AST) -> bool:
    """Whether a member of a node's list does nothing: pass, a docstring, an empty piece of an f-string.

    3.12 fills the empty format of f"{x:}" with such a piece, 3.11 leaves it out.
    """
    if isinstance(part, ast.Expr):
        return isinstance(part.value, ast.Constant) and isinstance(part.value.value, str)
    if isinstance(part, ast.Constant):
        return isinstance(parent, ast.JoinedStr) and part.value == ""
    return isinstance(part, ast.Pass)


def _fields(node: ast.AST) -> Iterator[tuple[str, object]]:
    """The node's fields that mean something. Those that later versions add (type_params) are empty where unused."""
    for name, value in ast.iter_fields(node):
        if isinstance(value, list):
            value = [part for part in value if not _is_idle(part, node)]
        if name not in IDLE_FIELDS and value is not None and value != []:
            yield name, value


def _write(value: object, out: list[str]) -> None:
    """Append a syntax tree as text without positions, piece by piece."""
    if isinstance(value, ast.AST):
        out.append(f"{type(value).__name__}(")
        separator = ""
        for name, inner in _fields(value):
            out.append(f"{separator}{name}=")
            _write(inner, out)
            separator = ", "
        out.append(")")
    elif isinstance(value, list):
        out.append("[")
        for number, inner in enumerate(value):
            out.append(", " if number else "")
            _write(inner, out)
        out.append("]")
    else:
        out.append(ascii(value))  # not repr: which characters it escapes depends on the version's Unicode tables


def normalised(tree: ast.Module, leave_out: Collection[str] = ()) -> str:
    """What source code says: no comments, docstrings, formatting, none of the top-level functions of leave_out."""
    kept = [
        node
        for node in tree.body
        if not (isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name in leave_out)
    ]
    out: list[str] = []
    _write(ast.Module(body=kept, type_ignores=[]), out)
    return "".join(out)


@cache
def _digest(source: str, path: Path, leave_out: frozenset[str]) -> bytes:
    return hashlib.sha256(normalised(_parsed(source, path), leave_out).encode()).digest()


def fingerprint(module: str, root: Path, leave_out: Collection[str] = PLANNED_FUNCTIONS) -> str:
    """16 hex digits that change when, and only when, code that the module's results depend on changes.

    leave_out: names of top-level functions of the module itself that do not count.
    Not seen: data files, native libraries, imports by computed names.
    """
    whole = hashlib.sha256()
    for name, path in sorted(import_closure(module, root).items()):
        own = frozenset(leave_out) if name == module else frozenset()
        whole.update(name.encode() + b"\0" + _digest(path.read_text(encoding="utf-8"), path, own))
    return whole.hexdigest()[:16]


def digest_files(paths: list[Path]) -> dict[str, str]:
    """16 hex digits of each file's bytes, by file name; a file that is missing has the digest 'absent'."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path.is_file() else "absent" for path in paths
    }
