"""A subject's code in the process that measures it: imported as the course imports it, its prints bounded."""

from __future__ import annotations

import contextlib
import errno
import importlib
import importlib.metadata
import json
import os
import resource
import sys
import tempfile
import tomllib
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from packaging.utils import canonicalize_name

from perfscribe.base.cells import Unsupported
from perfscribe.subjects import KERNELS, VARIABLE, checkout, module_name, roots

MOST_PRINTED_MIB = 64  # also the largest file that the code may write, such as a compiled library
SHOWN_BYTES = 2000  # of what it printed last, for the job's log


class WrongResult(Exception):
    """A subject's result is not that of the reference; the text says where, by how much, and both values."""


class _Project(importlib.metadata.Distribution):
    """A folder's own project as if it were installed: the course's package reads its version on import."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8")).get("project", {})
        self.text = f"Name: {project.get('name', '')}\nVersion: {project.get('version', '0')}\n"

    def read_text(self, filename: str) -> str | None:
        return self.text if filename == "METADATA" else None

    def locate_file(self, path: Any) -> Path:
        return Path(self.folder, path)


class _Projects(importlib.metadata.DistributionFinder):
    """Last of the finders, so that what is installed goes first."""

    def __init__(self, folders: Iterable[Path]) -> None:
        self.projects = [_Project(folder) for folder in folders if (folder / "pyproject.toml").is_file()]

    def find_distributions(self, context: Any = None) -> Iterator[_Project]:
        name = getattr(context, "name", None)
        for project in self.projects:
            if name is None or canonicalize_name(name) == canonicalize_name(project.name):
                yield project


def adapters(subject: str, kernel: str) -> list[Callable[..., Any] | None]:
    """The kernel's adapters, in the order of KERNELS; None for one that the file leaves out."""
    path = Path(json.loads(os.environ[VARIABLE])[subject])
    new = [folder for folder in roots(path) if str(folder) not in sys.path]
    sys.path[:0] = map(str, new)
    sys.meta_path.append(_Projects(new))
    module = importlib.import_module(module_name(path))
    return [_written(module, names) for names in KERNELS[kernel]]


def _written(module: ModuleType, names: tuple[str, ...]) -> Callable[..., Any] | None:
    return next((getattr(module, name) for name in names if hasattr(module, name)), None)


@contextlib.contextmanager
def subjects_code() -> Iterator[None]:
    """Around all that runs a subject's code: what it prints goes to a bounded file, whose end the log gets.

    Unsupported: it raised NotImplementedError. WrongResult: it printed without end.
    """
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with tempfile.TemporaryFile() as printed:
        _flush()
        kept = [os.dup(1), os.dup(2)]
        for descriptor in (1, 2):
            os.dup2(printed.fileno(), descriptor)
        most = MOST_PRINTED_MIB << 20
        resource.setrlimit(resource.RLIMIT_FSIZE, (most if limits[1] < 0 else min(most, limits[1]), limits[1]))
        try:
            yield
        except NotImplementedError as error:
            raise Unsupported(f"raises NotImplementedError {error}".strip()) from error
        except OSError as error:
            if error.errno == errno.EFBIG:
                raise WrongResult(f"printed more than {MOST_PRINTED_MIB} MiB") from None
            raise
        except Exception as error:
            text = error.args[0] if error.args else ""
            if isinstance(text, str) and (line := _line(error)):
                error.args = (f"{text} ({line})".lstrip(), *error.args[1:])
            raise
        finally:
            _flush()
            for descriptor, before in zip((1, 2), kept, strict=True):
                os.dup2(before, descriptor)
                os.close(before)
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            printed.seek(max(0, printed.seek(0, os.SEEK_END) - SHOWN_BYTES))
            with contextlib.suppress(OSError):
                os.write(2, printed.read())


def _line(error: Exception) -> str:
    """The last line of a subject's checkout that it came through; nothing where it came through none."""
    tops = [checkout(Path(path)) for path in json.loads(os.environ[VARIABLE]).values()]
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        for top in tops:
            if (file := Path(frame.filename)).is_relative_to(top) and "site-packages" not in file.parts:
                return f"{file.relative_to(top)}:{frame.lineno}"
    return ""


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
