"""The subjects of a config: which kernels each has, and a digest of the code behind each of them.

The code is read, never run. A digest covers the adapters of one kernel, what they name in their file, and every module
of the checkout that these import, directly or through others: an edit of another kernel's module does not change it.
Not seen: libraries, files that are no Python, imports by computed names.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from perfscribe.base.cells import Cell
from perfscribe.plan.fingerprint import Import, Sources, digest_of, imports_of, module_path, with_parents
from perfscribe.subjects import KERNELS, REQUIRED, YOURS, module_name, roots

DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
IMPORTS = (ast.Import, ast.ImportFrom)


@dataclass(frozen=True)
class Subject:
    """kernels: digest of the code of each kernel that it has. lacking: adapters that it has not written, by kernel.

    missing: packages that these kernels import and that this Python does not have. broken: files that are no Python.
    """

    name: str
    kernels: Mapping[str, str]
    lacking: Mapping[str, str]
    missing: Sequence[str]
    broken: Sequence[str]


def paths(config: Mapping[str, Any], root: Path) -> dict[str, Path]:
    """Adapter files by name; ValueError with one line where there are some that are none."""
    named = dict(config.get("subjects") or {})
    if YOURS in named:
        raise ValueError(f"config: subjects.{YOURS}: your own code is the key subject")
    if "ours" in named:
        raise ValueError("config: subjects.ours: ours are the implementations beside it; take another name")
    named |= {YOURS: config["subject"]} if config.get("subject") else {}
    found = {name: (root / Path(str(path)).expanduser()).resolve() for name, path in named.items()}
    wrong = [
        f"{_key(name)}: {path} is {'a folder' if path.is_dir() else 'no file'}"
        for name, path in found.items()
        if not path.is_file()
    ]
    if wrong:
        raise ValueError(f"config: {'; '.join(wrong)}; expected the course's tests/adapters.py")
    return found


def _key(name: str) -> str:
    return "subject" if name == YOURS else f"subjects.{name}"


def read(name: str, adapters: Path) -> Subject:
    """The kernels of an adapter file. One that is no Python counts as having all: measuring them says what is wrong.

    ValueError: it has not one adapter, written or not, so that nothing of it would be measured.
    """
    code = Code(adapters)
    known = {one for functions in KERNELS.values() for names in functions for one in names}
    if adapters not in code.broken and known.isdisjoint(code.defined):
        raise ValueError(f"config: {_key(name)}: {adapters} has none of the course's adapters, such as get_ddp")
    digests, lacking = {}, {}
    for kernel, functions in KERNELS.items():
        written = [next((one for one in names if code.is_written(one)), "") for names in functions]
        if all(written[:REQUIRED]):
            try:
                digests[kernel] = code.digest(filter(None, written))
            except RecursionError:
                raise ValueError(f"subject: {adapters}: nested too deep") from None
        else:
            lacking[kernel] = next(names[0] for names, one in zip(functions, written, strict=True) if not one)
    return Subject(name, digests, lacking, sorted(code.missing), [path.name for path in code.broken])


def cells(experiment: str, of: Sequence[Cell], subjects: Iterable[Subject], sources: Sources) -> list[Cell]:
    """The cells of the subjects beside these of ours, by the experiment's subject.py; none where it has none.

    The factor `code` is a digest of their code and of what measures it.
    """
    module = f"perfscribe.experiments.{experiment}.subject"
    subjects = list(subjects)
    if not subjects or module_path(module, sources.root) is None:
        return []
    ours = sources.fingerprint(module)
    found = []
    for subject in subjects:
        chosen = [one for one in of if not one.skip]
        for cell in importlib.import_module(module).cells(chosen, subject.name, subject.kernels):
            code = _code(ours, subject, cell.factors["kernel"])
            found.append(replace(cell, factors={**cell.factors, "subject": subject.name, "code": code}))
    return found


def _code(ours: str, subject: Subject, kernel: str) -> str:
    text = f"{ours} {subject.kernels[kernel]}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def is_planned(experiment: str, factors: Mapping[str, Any], adapters: Path, sources: Sources) -> bool:
    """Whether the code of a subject's cell is what its factors say, or was edited since."""
    try:
        ours = sources.fingerprint(f"perfscribe.experiments.{experiment}.subject")
        return _code(ours, read(factors["subject"], adapters), factors["kernel"]) == str(factors["code"])
    except (ValueError, KeyError):  # no file, no adapters, not this one
        return False


class Code:
    """The modules of a checkout, each parsed once."""

    def __init__(self, adapters: Path) -> None:
        self.adapters, self.roots, self.module = adapters, roots(adapters), module_name(adapters)
        self._trees: dict[Path, ast.Module] = {}
        self.broken: list[Path] = []  # files that are no Python
        self.missing: set[str] = set()  # packages that the kernels of which there is a digest import, and are not here
        self.tree = self._parse(adapters)
        self.defined: dict[str, list[ast.stmt]] = {}  # several: import a.b and import a.c both bind a
        self.always: list[ast.stmt] = []  # statements that do more than bind names, or bind any, as import * does
        for node in self.tree.body:
            names = list(_names(node))
            for name in names:
                self.defined.setdefault(name, []).append(node)
            self.always += [node] if "*" in names or not _only_binds(node) else []

    def is_written(self, function: str) -> bool:
        """Whether it is there and more than `raise NotImplementedError`."""
        if self.adapters in self.broken:
            return True
        node = self.defined.get(function, [None])[-1]
        if not isinstance(node, ast.FunctionDef):
            return node is not None
        body = [one for one in node.body if not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant))]
        first = body[0] if body else None
        return first is not None and not (
            isinstance(first, ast.Raise) and first.exc and "NotImplementedError" in ast.unparse(first.exc)
        )

    def digest(self, functions: Iterable[str]) -> str:
        """16 hex digits of what these functions of the adapter file run, and of what keeps them from being imported.

        The latter may be any import of the file: once a missing package or a broken module is mended, they run.
        """
        nodes: dict[str, list[ast.stmt]] = {}
        waiting = [*functions, *_used(self.always)]
        while waiting:
            name = waiting.pop()
            if name in self.defined and name not in nodes:
                nodes[name] = self.defined[name]
                waiting += _used(nodes[name])
        used = dict.fromkeys(node for name in sorted(nodes) for node in nodes[name])
        own = ast.Module(body=[*self.always, *used], type_ignores=[])
        imports = ast.Module(body=[one for one in self.tree.body if isinstance(one, IMPORTS)], type_ignores=[])
        said, obstacles = self._closure(own)
        text = "\n".join([*sorted(said), *sorted(obstacles | self._closure(imports)[1])])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def _closure(self, own: ast.Module) -> tuple[set[str], set[str]]:
        """What these statements of the adapter file say, and each module that they import: digest and imports.

        Then the packages among these that are not here, and the files that are no Python.
        """
        found: dict[Path | None, str] = {}
        libraries: set[str] = set()
        waiting: list[tuple[str, Path | None]] = [(self.module, None)]
        while waiting:
            module, path = waiting.pop()
            if path in found or (path is not None and module == self.module):
                continue
            tree = own if path is None else self._parse(path)
            imports = list(imports_of(tree, module, path is not None and path.name == "__init__.py"))
            found[path] = f"{digest_of(tree)} {imports}"
            waiting += self._files(imports)
            tops = {base.split(".")[0] for base, *_ in imports} - {""}
            inside = {top for top in tops for root in self.roots if module_path(top, root) or (root / top).is_dir()}
            libraries |= tops - inside
        missing = {one for one in libraries - sys.stdlib_module_names if importlib.util.find_spec(one) is None}
        self.missing |= missing
        return set(found.values()), missing | {path.name for path in self.broken if path in found}

    def _files(self, imports: Iterable[Import]) -> Iterator[tuple[str, Path]]:
        for base, name, _ in imports:
            for dotted in with_parents(f"{base}.{name}" if name else base):
                paths = (module_path(dotted, root) for root in self.roots)
                if path := next(filter(None, paths), None):
                    yield dotted, path

    def _parse(self, path: Path) -> ast.Module:
        if path not in self._trees:
            try:
                content = path.read_bytes()
            except OSError as error:
                raise ValueError(f"subject: {path}: {error.strerror}") from None
            try:
                self._trees[path] = ast.parse(content, filename=path.name)
            except (SyntaxError, ValueError, RecursionError, MemoryError):  # the latter two of the compiler's stack
                digest = ast.Constant(hashlib.sha256(content).hexdigest())
                self._trees[path] = ast.Module(body=[ast.Expr(digest)], type_ignores=[])
                self.broken.append(path)
        return self._trees[path]


def _used(nodes: Iterable[ast.stmt]) -> list[str]:
    """The names in these statements."""
    return [one.id for node in nodes for one in ast.walk(node) if isinstance(one, ast.Name)]


def _only_binds(node: ast.AST) -> bool:
    """Whether a statement, and each one that is run with it, binds names and does nothing else."""
    parts = [
        one for one in ast.iter_child_nodes(node) if isinstance(one, (ast.stmt, ast.excepthandler, ast.match_case))
    ]
    if parts and not isinstance(node, DEFINITIONS):
        return all(map(_only_binds, parts))
    return isinstance(node, ast.Pass) or (isinstance(node, ast.stmt) and any(_names(node)))


def _names(node: ast.stmt) -> Iterator[str]:
    """What a statement of the file's top level binds; where it is none of the known kinds, what it stores."""
    if isinstance(node, DEFINITIONS):
        yield node.name
    elif isinstance(node, IMPORTS):
        yield from ((alias.asname or alias.name).split(".")[0] for alias in node.names)
    else:
        for one in ast.walk(node):
            if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store):
                yield one.id
            elif isinstance(one, (*DEFINITIONS, *IMPORTS)):
                yield from _names(one)
