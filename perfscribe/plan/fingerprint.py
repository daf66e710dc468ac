"""Fingerprints of source code: what a unit's result depends on, without comments and formatting.

A fingerprint is the SHA-256 of the syntax tree, without docstrings, of a module and of every project module that it
imports, directly or indirectly, at the top or inside a function. Location and name of a module do not count: imports of
project modules are replaced by that module's digest and the names bound. The tree is serialised here, since the output
of ast.dump and ast.unparse differs between Python 3.11, 3.12 and 3.13 (ast.unparse: the quotes of f-strings). Imports
only the standard library, so that any Python can compute a fingerprint.
"""

import ast
import hashlib
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

PACKAGE = "perfscribe"
# Syntax tree fields without effect: the u of u"text", and type comments.
IDLE_FIELDS = frozenset({"kind", "type_comment", "type_ignores"})


def module_path(module: str, root: Path) -> Path | None:
    """File of a dotted module name below root; None if there is none."""
    base = root.joinpath(*module.split("."))
    for path in (base.with_suffix(".py"), base / "__init__.py"):
        if path.is_file():
            return path
    return None


def _is_planned(module: str) -> bool:
    """Return whether fingerprints omit a module: levels.py, as the plan has its cells; a new one reruns no others."""
    return module.endswith(".levels")


def with_parents(module: str) -> Iterator[str]:
    """Yield a dotted name and its parent packages, whose code runs on import."""
    parts = module.split(".")
    for end in range(1, len(parts) + 1):
        yield ".".join(parts[:end])


# An import: module, object ("" for the module itself), bound name.
Import = tuple[str, str, str]


def imports_of(tree: ast.Module, module: str, is_package: bool) -> Iterator[Import]:
    """Yield the imports of a module; relative ones resolved to absolute names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "", alias.asname or alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                anchor = module.split(".") if is_package else module.split(".")[:-1]
                anchor = anchor[: len(anchor) - node.level + 1]
                base = ".".join([*anchor, *([base] if base else [])])
            yield from ((base, alias.name, alias.asname or alias.name) for alias in node.names)


def method() -> str:
    """Return this file's digest and the Python version; analyses cached under another value are not reused."""
    algorithm = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:16]
    return f"{algorithm} {sys.version_info.major}.{sys.version_info.minor}"


@cache
def _parsed(source: str, path: Path) -> ast.Module:
    """Parse a file; callers share the tree and must not change it."""
    return ast.parse(source, filename=str(path))


# recall(what, source, find) returns find()'s result for a source text, or a cached one for the same arguments.
Recall = Callable[[str, str, Callable[[], Any]], Any]
_CACHE: dict[tuple[str, str], Any] = {}


def _recall_here(what: str, source: str, find: Callable[[], Any]) -> Any:
    """Cache a result for the life of this process."""
    # Keyed by content: two edits within a tick of the file system's clock have the same mtime.
    if (what, source) not in _CACHE:
        _CACHE[what, source] = find()
    return _CACHE[what, source]


class Sources:
    """Modules of a project: each file is located, read and parsed once per plan.

    root: folder of the project. recall: cache of results per source text; default: in this process.
    """

    def __init__(self, root: Path, recall: Recall = _recall_here) -> None:
        self.root, self._recall = root, recall
        self._path: Callable[[str], Path | None] = cache(lambda module: module_path(module, root))
        self._text: Callable[[Path], str] = cache(lambda path: path.read_text(encoding="utf-8"))
        self._imported: dict[str, tuple[Import, ...]] = {}
        self._closures: dict[str, dict[str, Path]] = {}
        self._digests: dict[str, bytes] = {}

    def _imports(self, module: str, path: Path) -> tuple[Import, ...]:
        if module not in self._imported:
            source, is_package = self._text(path), path.name == "__init__.py"
            what = f"imports of {'package' if is_package else 'module'} {module}"
            imports = self._recall(what, source, lambda: list(imports_of(_parsed(source, path), module, is_package)))
            self._imported[module] = tuple((base, name, bound) for base, name, bound in imports)
        return self._imported[module]

    def _bindings(self, module: str, path: Path) -> bytes:
        """Names bound by imports of project modules, each with the digest of its module."""
        bound = set()
        for base, name, alias in self._imports(module, path):
            whole = f"{base}.{name}" if name and self._path(f"{base}.{name}") else base
            source = self._path(whole) if whole.split(".")[0] == PACKAGE and not _is_planned(whole) else None
            if source is not None:
                digest = self._digest(whole, source).hex()
                bound.add(f"{digest} {'' if whole != base else name} {alias if name else ''}")
        return "\n".join(sorted(bound)).encode()

    def _digest(self, module: str, path: Path) -> bytes:
        if module not in self._digests:
            source = self._text(path)
            digest = self._recall("digest", source, lambda: digest_of(_parsed(source, path)))
            self._digests[module] = bytes.fromhex(digest)
        return self._digests[module]

    def closure(self, module: str) -> dict[str, Path]:
        """Map dotted names of the project modules that the module needs, itself included, to files; no levels.py.

        Raises ValueError if the module does not exist.
        """
        if module in self._closures:
            return self._closures[module]
        if self._path(module) is None:
            raise ValueError(f"{module}: no such module below {self.root}")
        paths: dict[str, Path] = {}
        waiting = [module]
        while waiting:
            name = waiting.pop()
            path = None if name in paths or _is_planned(name) else self._path(name)
            if path is None:
                continue
            paths[name] = path
            for base, part, _ in self._imports(name, path):
                if base.split(".")[0] == PACKAGE:
                    waiting.extend([base, f"{base}.{part}"] if part else [base])
            waiting.extend(with_parents(name))
        self._closures[module] = paths
        return paths

    def libraries(self, module: str) -> list[str]:
        """Sorted top-level names of the third-party packages imported by the module's import closure."""
        names: set[str] = set()
        for name, path in self.closure(module).items():
            names.update(base.split(".")[0] for base, *_ in self._imports(name, path))
        return sorted(names - set(sys.stdlib_module_names) - {PACKAGE, ""})

    def fingerprint(self, module: str) -> str:
        """16 hex digits of the code of the module's closure: they change with it, not with comments or formatting.

        Ignores data files, native libraries and imports by computed names.
        """
        parts = set()
        for name, path in self.closure(module).items():
            if (digest := self._digest(name, path)) != NOTHING:
                parts.add(hashlib.sha256(digest + self._bindings(name, path)).digest())
        return hashlib.sha256(b"".join(sorted(parts))).hexdigest()[:16]


def _is_idle(part: object, parent: ast.AST) -> bool:
    """Return whether a list member does not count: pass, docstring, project import, empty piece of an f-string.

    Python 3.12.1 adds such a piece for the nested format of f"{x:{y}}"; 3.11 and 3.13 do not.
    """
    if isinstance(part, ast.Expr):
        return isinstance(part.value, ast.Constant) and isinstance(part.value.value, str)
    if isinstance(part, ast.Constant):
        return isinstance(parent, ast.JoinedStr) and part.value == ""
    return isinstance(part, ast.Pass) or _is_of_the_project(part)


def _is_of_the_project(part: object) -> bool:
    """Return whether a statement imports from the project, whose names _bindings digests, or from __future__."""
    if isinstance(part, ast.ImportFrom):
        return part.level > 0 or (part.module or "").split(".")[0] in (PACKAGE, "__future__")
    return isinstance(part, ast.Import) and all(alias.name.split(".")[0] == PACKAGE for alias in part.names)


def _fields(node: ast.AST) -> Iterator[tuple[str, object]]:
    """Yield names and values of fields that count; skips empty ones, as only later Pythons have some (type_params)."""
    for name, value in ast.iter_fields(node):
        if isinstance(value, list):
            value = [part for part in value if not _is_idle(part, node)]
        if name not in IDLE_FIELDS and value is not None and value != []:
            yield name, value


def _as_text(value: object) -> str:
    """Serialise a syntax tree without positions."""
    if isinstance(value, ast.AST):
        fields = ", ".join(f"{name}={_as_text(inner)}" for name, inner in _fields(value))
        return f"{type(value).__name__}({fields})"
    if isinstance(value, list):
        return f"[{', '.join(map(_as_text, value))}]"
    return ascii(value)  # not repr, which escapes according to the version's Unicode tables


def digest_of(tree: ast.Module) -> str:
    """64 hex digits of what source code does, ignoring comments, docstrings, formatting and project imports."""
    return hashlib.sha256(_as_text(ast.Module(body=tree.body, type_ignores=[])).encode()).hexdigest()


# Digest of a module without code, such as a package's __init__.py: it does not count.
NOTHING = bytes.fromhex(digest_of(ast.parse("")))


def digest_files(paths: list[Path]) -> dict[str, str]:
    """16 hex digits of each file's bytes, by file name; 'absent' for a missing file."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path.is_file() else "absent" for path in paths
    }
