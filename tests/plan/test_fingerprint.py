"""Fingerprints: what counts and what does not, and that they do not depend on the Python that computes them."""

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from perfscribe.base import registry
from perfscribe.plan import fingerprint as fp
from perfscribe.plan.cache import Memory
from perfscribe.plan.fingerprint import Sources

ROOT = Path(__file__).resolve().parents[2]
FIXTURE = ROOT / "tests" / "fixtures" / "fingerprint_module"
# Of a module that nobody edits: a change here means that every site measures all its cells again.
COMMITTED = "cc216a9b7a38a8f1"


def fingerprint(module: str, root: Path) -> str:
    """Fingerprint of the files as they are now, without a cache."""
    return Sources(root).fingerprint(module)


@pytest.fixture
def project(tmp_path):
    """Writes modules of a small project, packages by the name of their folder, and gives its root."""

    def write(texts: dict[str, str] | None = None, **modules: str) -> Path:
        for name, text in {**(texts or {}), **modules}.items():
            path = tmp_path / "perfscribe" / f"{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            for folder in path.relative_to(tmp_path).parents[:-1]:
                (tmp_path / folder / "__init__.py").touch()
            path.write_text(text, encoding="utf-8", newline="")
        return tmp_path

    return write


@pytest.mark.parametrize(
    ("statement", "reached"),
    [
        ("import perfscribe.other as short, os", {"perfscribe.other"}),
        ("from perfscribe import no_such_module, other", {"perfscribe.other"}),
        ("from perfscribe.other import *", {"perfscribe.other"}),
        ("from .other import NAME as short", {"perfscribe.other"}),
        ("class A:\n    async def run(self):\n        if True:\n            from . import other", {"perfscribe.other"}),
        ("from perfscribe.folder import leaf", {"perfscribe.folder", "perfscribe.folder.leaf", "perfscribe.other"}),
        ("import json, torch\nfrom numpy import perfscribe", set()),
    ],
)
def test_closure_follows_every_form_of_import(project, statement, reached):
    leaf = "def f():\n    from ..other import NAME"
    root = project({"folder/leaf": leaf}, main=statement, other="NAME = 1", unrelated="")
    assert set(Sources(root).closure("perfscribe.main")) - {"perfscribe"} == {"perfscribe.main"} | reached


def test_what_a_name_stands_for_counts(project):
    root = project(first="def f(): return 1\ndef g(): return 2", second="def f(): return 3")
    prints = set()
    imports = ("from .first import f", "from .second import f", "from .first import g as f", "from . import first as f")
    for text in imports:
        project(main=f"from . import first, second\n{text}\nf()")
        prints.add(fingerprint("perfscribe.main", root))
    assert len(prints) == len(imports)


def test_libraries_are_those_of_the_whole_closure(project):
    main = "import os.path, json as j\nimport torch.nn as nn\nfrom . import kernel\nfrom __future__ import annotations"
    root = project(main=main, kernel="def f():\n    import numpy as np, h5py._hl\n    from torch import Tensor")
    assert Sources(root).libraries("perfscribe.main") == ["h5py", "numpy", "torch"]


def test_what_was_found_in_a_text_is_kept_from_run_to_run(project, tmp_path, monkeypatch):
    kernel = "import math\ndef run(q, k): return q @ k / math.sqrt(2.0)"
    root = project(main="import numpy\ndef run(): from . import kernel", kernel=kernel, other="import json")
    kept = tmp_path / "kept" / "code.json"

    def ask(method="a") -> tuple[str, list[str]]:
        memory = Memory(kept, method)
        code = Sources(root, memory.recall)
        answer = code.fingerprint("perfscribe.main"), code.libraries("perfscribe.main")
        memory.save()
        return answer

    first = ask()
    with monkeypatch.context() as patch:
        patch.setattr(fp, "_parsed", lambda *_: pytest.fail("read again"))
        assert ask() == first
    file = root / "perfscribe" / "kernel.py"
    stamp = file.stat().st_mtime_ns
    project(kernel=kernel.replace("@", "*"))
    os.utime(file, ns=(stamp, stamp))
    assert ask() == (fingerprint("perfscribe.main", root), ["numpy"]) != first
    project(kernel=kernel)
    kept.write_text(kept.read_text().replace('"numpy"', '"scipy"'))
    assert ask() == first  # what was damaged is not believed
    assert ask("another method") == first


def test_committed_fingerprint():
    assert fingerprint("perfscribe.fixed", FIXTURE) == COMMITTED
    assert "perfscribe.reached" in Sources(FIXTURE).closure("perfscribe.fixed")


def test_code_that_is_fingerprinted_takes_from_levels_only_what_stands_in_the_plan():
    for path in (ROOT / "perfscribe" / "experiments").rglob("*.py"):
        if path.name != "levels.py":
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            for base, name, _ in fp.imports_of(ast.parse(path.read_text()), module, is_package=False):
                assert name != "levels" and (not base.endswith(".levels") or name == "SHOWN"), (path, base, name)


def interpreter(version: str) -> str | None:
    """A Python of this version, from PATH or from pyenv's versions in the home folder."""
    pyenv = sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python{version}"))
    for path in (shutil.which(f"python{version}"), *map(str, pyenv)):
        # a pyenv shim fails where its version is not chosen
        if path and subprocess.run([path, "-I", "-S", "-c", ""], capture_output=True).returncode == 0:
            return path
    return None


# Without site-packages: a fingerprint needs the standard library alone.
ASK = """
import json, sys
from pathlib import Path
root, fixture, *modules = sys.argv[1:]
sys.path.insert(0, root)
from perfscribe.plan.fingerprint import Sources
answer = {module: Sources(Path(root)).fingerprint(module) for module in modules}
print(json.dumps([Sources(Path(fixture)).fingerprint("perfscribe.fixed"), answer]))
"""


def test_every_python_gives_the_same_fingerprints():
    measure, show = registry.module_name("end_to_end", "measure"), registry.module_name("attention", "show")
    modules = measure, show, "perfscribe.report.report"
    expected = [COMMITTED, {module: fingerprint(module, ROOT) for module in modules}]
    others = {"3.11", "3.12", "3.13"} - {"{}.{}".format(*sys.version_info)}
    pythons = {version: path for version in others if (path := interpreter(version))}
    if not pythons:
        pytest.skip("no other Python on PATH or among pyenv's versions")
    for version, path in pythons.items():
        command = [path, "-I", "-S", "-c", ASK, str(ROOT), str(FIXTURE), *modules]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert answer.returncode == 0, answer.stderr
        assert json.loads(answer.stdout) == expected, f"Python {version} and {sys.version.split()[0]} differ"
