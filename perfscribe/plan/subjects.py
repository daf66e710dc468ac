"""Subjects of a config: the kernels that each has, and a digest of each kernel's code.

The code is read, never run. A digest covers the adapters of one kernel, the names they use in their file, and every
checkout module that these import, directly or indirectly. Edits of another kernel's module do not change it, and import
errors there do not stop the kernel (adapter_file.py). Ignores libraries, non-Python files, imports by computed names.
"""

import ast
import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from perfscribe.base import registry
from perfscribe.base.cells import Cell
from perfscribe.plan.fingerprint import Import, Sources, digest_of, imports_of, module_path, with_parents
from perfscribe.subjects import FLASH, KERNELS, YOURS, has_module, module_name, roots
from perfscribe.subjects.adapter_file import AdapterFile


@dataclass(frozen=True)
class Subject:
    """Kernels of one subject, with code digests. lacking: name of an unimplemented adapter, by kernel.

    missing: packages that these kernels import and this Python lacks. broken: files with syntax errors.
    """

    name: str
    kernels: Mapping[str, str]
    lacking: Mapping[str, str]
    missing: Sequence[str]
    broken: Sequence[str]


def paths(config: Mapping[str, Any], root: Path) -> dict[str, Path]:
    """Adapter files by subject name; ValueError (one line) if a path is not a Python file."""
    named = dict(config.get("subjects") or {})
    if YOURS in named:
        raise ValueError(f"config: subjects.{YOURS}: your own code is the key subject")
    if "ours" in named:
        raise ValueError("config: subjects.ours: ours are the implementations beside it; take another name")
    named |= {YOURS: config["subject"]} if config.get("subject") else {}
    adapters = {name: (root / Path(str(path)).expanduser()).resolve() for name, path in named.items()}
    wrong = [
        f"{_key(name)}: {path} is {_what(path)}"
        for name, path in adapters.items()
        if not path.is_file() or path.suffix != ".py"
    ]
    if wrong:
        raise ValueError(f"config: {'; '.join(wrong)}; expected the course's tests/adapters.py")
    return adapters


def _what(path: Path) -> str:
    return "a folder" if path.is_dir() else "no Python file" if path.is_file() else "no file"


def _key(name: str) -> str:
    return "subject" if name == YOURS else f"subjects.{name}"


def read(name: str, adapters: Path) -> Subject:
    """Read an adapter file. One with a syntax error counts as having all kernels: measuring them reports the error.

    Raises ValueError if it has no adapter, implemented or not, as nothing could be measured.
    """
    code = Code(adapters)
    known = {adapter for functions in KERNELS.values() for names in functions for adapter in names}
    is_broken = adapters in code.broken
    if not is_broken and (adapters.name.startswith("test_") or known.isdisjoint(code.file.defined)):
        raise ValueError(f"config: {_key(name)}: {adapters} has none of the course's adapters, such as get_ddp")
    digests, lacking = {}, {}
    for kernel in KERNELS:
        if not is_broken and (missing := code.file.lacking(kernel)):
            lacking[kernel] = missing
            continue
        try:
            digests[kernel] = code.digest(kernel)
        except RecursionError:
            raise ValueError(f"subject: {adapters}: nested too deep") from None
    return Subject(name, digests, lacking, sorted(code.missing), [path.name for path in code.broken])


def cells(experiment: str, grid: Sequence[Cell], subjects: Iterable[Subject], sources: Sources) -> list[Cell]:
    """Cells of the subjects, from the experiment's subject.py; none if it has no such module.

    The factor `code` is a digest of the subject's code and of the code that measures it. Kernels that a subject has not
    implemented have cells, too, which are skipped with that reason.
    """
    module = registry.module_name(experiment, "subject", sources.root)
    subjects = list(subjects)
    if not subjects or module_path(module, sources.root) is None:
        return []
    ours = sources.fingerprint(module)
    planned = []
    for subject in subjects:
        chosen = [cell for cell in grid if not cell.skip]
        for cell in importlib.import_module(module).cells(chosen, subject.name, KERNELS):
            skip = not_written(subject, cell.factors["kernel"])
            code = _digest(f"{ours} {skip}") if skip else _code(ours, subject, cell.factors["kernel"])
            factors = {**cell.factors, "subject": subject.name, "code": code}
            planned.append(replace(cell, factors=factors, skip=skip))
    return planned


def not_written(subject: Subject, kernel: str) -> str:
    """Reason why the kernel is not measured; "" if it is."""
    if kernel in subject.kernels:
        return ""
    on_gpu = FLASH["cuda"]
    why = f"{subject.lacking[kernel]} is not written"
    return f"{why}; the Triton kernel needs a GPU" if kernel == FLASH["cpu"] and on_gpu in subject.kernels else why


def _code(ours: str, subject: Subject, kernel: str) -> str:
    return _digest(f"{ours} {subject.kernels[kernel]}")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def is_planned(experiment: str, factors: Mapping[str, Any], adapters: Path, sources: Sources) -> bool:
    """Return whether the code of a subject's cell still has the digest in its factors."""
    try:
        ours = sources.fingerprint(registry.module_name(experiment, "subject", sources.root))
        return _code(ours, read(factors["subject"], adapters), factors["kernel"]) == str(factors["code"])
    except (ValueError, KeyError):  # no file, no adapters, not this one
        return False


class Code:
    """Digests of a subject's kernels; each module that they reach is parsed once."""

    def __init__(self, adapters: Path) -> None:
        self.adapters, self.roots, self.module = adapters, roots(adapters), module_name(adapters)
        self._trees: dict[Path, ast.Module] = {}
        self.broken: list[Path] = []  # files with syntax errors
        self.missing: set[str] = set()  # packages that digested kernels import and that are not installed
        self.file = AdapterFile(self._parse(adapters))

    def digest(self, kernel: str) -> str:
        """Return a hash (16 hex digits) of the code that the kernel's adapters use, and of the imports that fail."""
        statements = self.file.needed(filter(None, self.file.written(kernel)))
        digests, obstacles = self._closure(ast.Module(body=statements, type_ignores=[]))
        return _digest("\n".join([*sorted(digests), *sorted(obstacles)]))

    def _closure(self, statements: ast.Module) -> tuple[set[str], set[str]]:
        """Digest and imports of these adapter statements and of each module that they import; then the obstacles.

        Obstacles are packages that are not installed and files with syntax errors.
        """
        digests: dict[Path | None, str] = {}
        libraries: set[str] = set()
        waiting: list[tuple[str, Path | None]] = [(self.module, None)]
        while waiting:
            module, path = waiting.pop()
            if path in digests or (path is not None and module == self.module):
                continue
            tree = statements if path is None else self._parse(path)
            imports = list(imports_of(tree, module, path is not None and path.name == "__init__.py"))
            digests[path] = f"{digest_of(tree)} {imports}"
            waiting += self._files(imports)
            tops = {base.split(".")[0] for base, *_ in imports} - {""}
            libraries |= {top for top in tops if not has_module(self.adapters, top)}
        missing = {name for name in libraries - sys.stdlib_module_names if importlib.util.find_spec(name) is None}
        self.missing |= missing
        return set(digests.values()), missing | {path.name for path in self.broken if path in digests}

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
            except (SyntaxError, ValueError, RecursionError, MemoryError):  # last two: the compiler's stack
                digest = ast.Constant(hashlib.sha256(content).hexdigest())
                self._trees[path] = ast.Module(body=[ast.Expr(digest)], type_ignores=[])
                self.broken.append(path)
        return self._trees[path]
