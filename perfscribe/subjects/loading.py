"""Loads and runs a subject's code in the measuring process: imported as the course does, its output limited."""

from __future__ import annotations

import ast
import contextlib
import errno
import functools
import importlib
import importlib.machinery
import importlib.metadata
import importlib.util
import json
import os
import platform
import resource
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import CodeType, ModuleType
from typing import IO, Any

from packaging.utils import canonicalize_name

from perfscribe.base.cells import Unsupported
from perfscribe.instruments.correctness import WrongResult
from perfscribe.subjects import VARIABLE, checkout, cuda_stubs, has_module, module_name, project, remedy, roots
from perfscribe.subjects.adapter_file import AdapterFile

MOST_PRINTED_MIB = 1024  # also limits files that the code writes: a compiler's header takes 100 and more
SHOWN_BYTES = 2000  # of its last output, for the job's log


class LeftEarly(RuntimeError):
    """A subject's code called sys.exit, as argparse does; the message has its last printed line."""


class _Project(importlib.metadata.Distribution):
    """Makes a folder's project look installed: the course's package reads its version on import."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        named = project(folder).get("project")
        named = named if isinstance(named, dict) else {}
        self.text = f"Name: {named.get('name', '')}\nVersion: {named.get('version', '0')}\n"

    def read_text(self, filename: str) -> str | None:
        return self.text if filename == "METADATA" else None

    def locate_file(self, path: Any) -> Path:
        return Path(self.folder, path)


class _Projects(importlib.metadata.DistributionFinder):
    """Finder of these projects; appended last, so that installed packages take precedence."""

    def __init__(self, folders: Iterable[Path]) -> None:
        self.projects = [_Project(folder) for folder in folders if (folder / "pyproject.toml").is_file()]

    def find_distributions(self, context: Any = None) -> Iterator[_Project]:
        name = getattr(context, "name", None)
        for distribution in self.projects:
            if name is None or canonicalize_name(name) == canonicalize_name(distribution.name):
                yield distribution


class _Loader(importlib.machinery.SourceFileLoader):
    """Loads an adapter file for one kernel, ignoring errors of statements that the kernel does not need."""

    def __init__(self, name: str, path: Path, kernel: str) -> None:
        super().__init__(name, str(path))
        self.kernel = kernel

    def get_code(self, fullname: str) -> CodeType:
        """Compile the source without a bytecode file, as all kernels would share it."""
        tree = AdapterFile(ast.parse(self.get_data(self.path), self.path)).tolerant(self.kernel)
        return compile(tree, self.path, "exec", dont_inherit=True)


def adapters(subject: str, kernel: str) -> list[Callable[..., Any] | None]:
    """Return the kernel's adapters, in the order of KERNELS; None for one that is not implemented.

    The first makes an object: global torch settings that change while it runs are restored, as for the file's import.
    """
    path = Path(json.loads(os.environ[VARIABLE])[subject])
    new = [folder for folder in roots(path) if str(folder) not in sys.path]
    sys.path[:0] = map(str, new)
    sys.meta_path.append(_Projects(new))
    file, name = AdapterFile(ast.parse(path.read_bytes(), path.name)), module_name(path)
    with _importing(path):
        module = _module(name, path, kernel)
    make, *others = (getattr(module, adapter) if adapter else None for adapter in file.written(kernel))
    return [None if make is None else _making(make, path), *others]


def _module(name: str, path: Path, kernel: str) -> ModuleType:
    parent, _, _ = name.rpartition(".")
    if parent:
        importlib.import_module(parent)
    loaded = sys.modules.get(name)
    if loaded is not None and getattr(loaded.__loader__, "kernel", None) == kernel:
        return loaded
    spec = importlib.util.spec_from_file_location(name, path, loader=_Loader(name, path, kernel))
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _making(make: Callable[..., Any], path: Path) -> Callable[..., Any]:
    @functools.wraps(make)
    def make_and_check(*args: Any, **kwargs: Any) -> Any:
        with _importing(path):
            result = make(*args, **kwargs)
        if result is None:
            raise WrongResult(f"{make.__name__} returned None ({_place(path, make)})")
        return result

    return make_and_check


def _place(path: Path, function: Callable[..., Any]) -> str:
    code = getattr(function, "__code__", None)
    return f"{path.name}:{code.co_firstlineno}" if code else path.name


@contextlib.contextmanager
def _importing(path: Path) -> Iterator[None]:
    """Imitate pytest: run in the checkout's folder, without arguments. Restores torch's global settings afterwards.

    Only the first cell of a process imports the modules, so a setting left behind would depend on the order of cells.
    """
    import torch

    if not torch.cuda.is_available():
        cuda_stubs.install()
    settings: list[tuple[Callable[[], Any], Callable[[Any], Any]]] = [
        (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
        (torch.get_default_dtype, torch.set_default_dtype),
        (torch.get_default_device, torch.set_default_device),
        (torch.is_grad_enabled, torch.set_grad_enabled),
        (torch.is_anomaly_enabled, lambda on: torch.autograd.set_detect_anomaly(on)),
        (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
        (torch.get_num_threads, torch.set_num_threads),
        *(
            (functools.partial(getattr, owner, name), functools.partial(setattr, owner, name))
            for owner, name in _flags(torch)
        ),
    ]
    before, random_state, arguments = [get() for get, _ in settings], torch.get_rng_state(), sys.argv
    sys.argv = [str(path)]
    try:
        with contextlib.chdir(checkout(path)):
            yield
    finally:
        sys.argv = arguments
        torch.set_rng_state(random_state)
        for (get, put), value in zip(settings, before, strict=True):
            if get() != value:
                put(value)


def _flags(torch: Any) -> list[tuple[Any, str]]:
    cudnn = torch.backends.cudnn
    return [(cudnn, "allow_tf32"), (cudnn, "benchmark"), (cudnn, "deterministic")]


@contextlib.contextmanager
def subjects_code() -> Iterator[None]:
    """Run a subject's code in this block; its output goes to a temporary file of limited size, its end to the log.

    Raises Unsupported for NotImplementedError or a missing package, WrongResult for too much output.
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
            reason = (
                f"raises NotImplementedError: {text}"
                if (text := str(error).rstrip("."))
                else "raises NotImplementedError"
            )
            raise Unsupported(reason) from error
        except SystemExit as error:
            raise LeftEarly(f"sys.exit({error.code!r}) ({_line(error)}): {_last_printed(printed)}") from None
        except OSError as error:
            if error.errno == errno.EFBIG:
                raise WrongResult(f"printed more than {MOST_PRINTED_MIB} MiB") from None
            _locate(error)
            raise
        except Exception as error:
            if isinstance(error, ModuleNotFoundError) and (missing := _missing(error)):
                raise Unsupported(f"not checked: {missing}") from error
            _locate(error)
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


def _missing(error: ModuleNotFoundError) -> str:
    """Return the package that is not installed and its remedy; "" if the missing module is the subject's."""
    top = (error.name or "").partition(".")[0]
    paths = [Path(path) for path in json.loads(os.environ[VARIABLE]).values()]
    return "" if not top or any(has_module(path, top) for path in paths) else remedy([top])


def _locate(error: Exception) -> None:
    """Append the subject's file and line to the error's message, in the attribute that its type prints."""
    line = _line(error)
    if isinstance(error, SyntaxError):
        error.msg = f"{error.msg} for Python {platform.python_version()}"
    elif not line:
        return
    elif isinstance(error, ImportError):
        error.msg = f"{error.msg} ({line})"
    elif isinstance(error, OSError) and error.strerror:
        error.strerror = f"{error.strerror} ({line})"
    elif isinstance(text := error.args[0] if error.args else "", str):
        error.args = (f"{text} ({line})".lstrip(), *error.args[1:])


def _line(error: BaseException) -> str:
    """File and line of the traceback's last frame in a subject's checkout; "" if there is none."""
    named = json.loads(os.environ[VARIABLE]).values()
    tops = [folder for path in named for folder in (checkout(Path(path)), *roots(Path(path)))]
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        for top in tops:
            if (file := Path(frame.filename)).is_relative_to(top) and "site-packages" not in file.parts:
                return f"{file.relative_to(top)}:{frame.lineno}"
    return ""


def _last_printed(printed: IO[bytes]) -> str:
    _flush()
    printed.seek(max(0, printed.seek(0, os.SEEK_END) - SHOWN_BYTES))
    lines = printed.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "nothing was printed"


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
