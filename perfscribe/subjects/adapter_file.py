"""An adapter file as a syntax tree: which adapters are implemented, and which statements each kernel needs.

A kernel's digest covers only these statements. All other statements run, too, but their errors are ignored.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from perfscribe.subjects import KERNELS, OPTIONAL

DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
IMPORTS = (ast.Import, ast.ImportFrom)
FUTURE = "__future__"


class AdapterFile:
    """Statements of an adapter file; an import of several names is split into one statement per name."""

    def __init__(self, tree: ast.Module) -> None:
        self.statements = [statement for node in tree.body for statement in _apart(node)]
        self.defined: dict[str, list[ast.stmt]] = {}  # lists, since import a.b and import a.c both bind a
        self.always: list[ast.stmt] = []  # statements that do more than bind names, or bind unknown ones (import *)
        for node in self.statements:
            names = list(_names(node))
            for name in names:
                self.defined.setdefault(name, []).append(node)
            self.always += [node] if "*" in names or not _only_binds(node) else []

    def written(self, kernel: str) -> list[str]:
        """Names of the kernel's adapters, in the order of KERNELS; "" for one that is not implemented."""
        return [next((name for name in names if self.is_written(name)), "") for names in KERNELS[kernel]]

    def lacking(self, kernel: str) -> str:
        """Name of the first required adapter that is not implemented; "" if all are."""
        pairs = zip(KERNELS[kernel], self.written(kernel), strict=True)
        return next((names[0] for names, written in pairs if not written and names[0] != OPTIONAL), "")

    def is_written(self, function: str) -> bool:
        """Return whether its body is not just `raise NotImplementedError` or, for a get_ function, `pass`."""
        node = self.defined.get(function, [None])[-1]
        if not isinstance(node, ast.FunctionDef):
            return node is not None
        body = [part for part in node.body if not (isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant))]
        first = body[0] if body else ast.Pass()
        if isinstance(first, ast.Raise) and first.exc:
            return "NotImplementedError" not in ast.unparse(first.exc)
        return not function.startswith("get_") or ast.unparse(first) not in ("pass", "return", "return None")

    def needed(self, functions: Iterable[str]) -> list[ast.stmt]:
        """Statements that these functions need: those that always run, and all that bind a name used by them."""
        nodes: dict[str, list[ast.stmt]] = {}
        waiting = [*functions, *_used(self.always)]
        while waiting:
            name = waiting.pop()
            if name in self.defined and name not in nodes:
                nodes[name] = self.defined[name]
                waiting += _used(nodes[name])
        used = dict.fromkeys(node for name in sorted(nodes) for node in nodes[name])
        return [*self.always, *used]

    def tolerant(self, kernel: str) -> ast.Module:
        """Return the file with each statement that the kernel does not need in a `try` that ignores its errors."""
        needed = set(map(id, self.needed(filter(None, self.written(kernel)))))
        body = [node if id(node) in needed or _is_future(node) else _tried(node) for node in self.statements]
        return ast.Module(body=body, type_ignores=[])


def _is_future(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == FUTURE


def _tried(node: ast.stmt) -> ast.stmt:
    kinds = ast.Tuple(elts=[ast.Name(id=name, ctx=ast.Load()) for name in ("Exception", "SystemExit")], ctx=ast.Load())
    handler = ast.ExceptHandler(type=kinds, name=None, body=[ast.Pass()])
    tried = ast.Try(body=[node], handlers=[handler], orelse=[], finalbody=[])
    return ast.fix_missing_locations(ast.copy_location(tried, node))


def _apart(node: ast.stmt) -> Iterator[ast.stmt]:
    """Split an import of several names into one import per name."""
    if isinstance(node, ast.Import) and node.names[1:]:
        yield from (ast.copy_location(ast.Import(names=[alias]), node) for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.names[1:] and node.module != FUTURE:
        for alias in node.names:
            yield ast.copy_location(ast.ImportFrom(module=node.module, names=[alias], level=node.level), node)
    else:
        yield node


def _used(nodes: Iterable[ast.stmt]) -> list[str]:
    return [child.id for node in nodes for child in ast.walk(node) if isinstance(child, ast.Name)]


def _only_binds(node: ast.AST) -> bool:
    """Return whether the statement, nested ones included, does nothing but bind names."""
    kinds = (ast.stmt, ast.excepthandler, ast.match_case)
    parts = [child for child in ast.iter_child_nodes(node) if isinstance(child, kinds)]
    if parts and not isinstance(node, DEFINITIONS):
        return all(map(_only_binds, parts))
    return isinstance(node, ast.Pass) or (isinstance(node, ast.stmt) and any(_names(node)))


def _names(node: ast.stmt) -> Iterator[str]:
    """Names that a top-level statement binds; for other kinds of statements, names that it stores."""
    if isinstance(node, DEFINITIONS):
        yield node.name
    elif isinstance(node, IMPORTS):
        yield from ((alias.asname or alias.name).split(".")[0] for alias in node.names)
    else:
        for child in ast.walk(node):
            if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
                yield child.id
            elif isinstance(child, (*DEFINITIONS, *IMPORTS)):
                yield from _names(child)
