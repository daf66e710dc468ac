"""Checkouts in the shapes that students give them, right and wrong of each, as their cells end."""

import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perfscribe.plan import plan

ROOT = Path(__file__).resolve().parents[2]
Measured = Callable[..., dict[str, Any]]
FLASH, DDP, SHARDING = "flash_benchmarking", "ddp", "optimizer_state_sharding"
OK = ("ok", "")

# An attention that ignores is_causal, as the handout lets the PyTorch version.
ATTENTION = """
import torch

def scores(q, k, is_causal):
    found = q @ k.mT / q.shape[-1] ** 0.5
    return found.masked_fill(torch.ones_like(found, dtype=torch.bool).triu(1), -1e6) if is_causal else found

class Flash(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, is_causal=False):
        is_causal = MASKED
        s = scores(q, k, is_causal)
        o, lse = torch.softmax(s, -1) @ v, s.logsumexp(-1)
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.is_causal = is_causal and MASKED_BACK
        return o

    @staticmethod
    def backward(ctx, do):
        q, k, v, o, lse = ctx.saved_tensors
        p = torch.exp(scores(q, k, ctx.is_causal) - lse[..., None])
        ds = p * (do @ v.mT - (o * do).sum(-1, keepdim=True)) / q.shape[-1] ** 0.5
        return ds @ k * SCALE, ds.mT @ q, p.mT @ do, None
"""
PYTORCH, TRITON = (f"get_flashattention_autograd_function_{one}" for one in ("pytorch", "triton"))


def attention(masked: str = "is_causal", back: str = "True", scale: str = "1") -> str:
    return ATTENTION.replace("MASKED_BACK", back).replace("MASKED", masked).replace("SCALE", scale)


def adapter(name: str, module: str, gives: str, arguments: str = "") -> str:
    return f"def {name}({arguments}):\n    from {module} import {gives.split('(')[0]}\n    return {gives}\n"


def flash(code: str, name: str = PYTORCH) -> dict[str, str]:
    return {"cs336_systems/flash.py": code, "tests/adapters.py": adapter(name, "cs336_systems.flash", "Flash")}


@pytest.fixture
def checkout(tmp_path: Path) -> Callable[[dict[str, str]], Path]:
    """The adapter file of a checkout with these files."""

    def write(files: dict[str, str]) -> Path:
        top = tmp_path / "a2"
        for name, text in {"pyproject.toml": '[project]\nname = "cs336-systems"\n', **files}.items():
            (top / name).parent.mkdir(parents=True, exist_ok=True)
            (top / name).write_text(textwrap.dedent(text).lstrip())
        return top / "tests" / "adapters.py"

    return write


# By shape: files, experiment, levels of the cell, status and what its reason, or its remark, begins with.
FLASHES = {
    "masks": (attention(), OK, ""),
    "ignores is_causal": (attention("False"), OK, "ignores is_causal, as the handout allows in PyTorch"),
    "masks forward alone": (attention(back="False"), OK, "not right where is_causal, .* (dQ off by"),
    "has no causal mode": (
        attention("is_causal and no()") + "\ndef no():\n    raise NotImplementedError('not causal')\n",
        OK,
        r"not right where is_causal, .* \(NotImplementedError: not causal\)",
    ),
    "wrong, and ignores is_causal": (attention("False", scale="1.1"), ("failed", "dQ off by 0.1"), ""),
    "saves two": (
        attention().replace("o, lse)", "o, lse, lse)", 1).replace("o, lse = ctx", "o, lse, _ = ctx"),
        ("failed", r"2 saved tensors of shape \(2, 64\) .*; expected the log-sum-exp"),
        "",
    ),
}


@pytest.mark.parametrize("shape", FLASHES)
def test_a_pytorch_kernel_is_judged_as_the_handout_asks(shape: str, checkout: Any, measured: Measured) -> None:
    code, (status, reason), remark = FLASHES[shape]
    answer = measured(FLASH, checkout(flash(code)))
    assert answer["status"] == status and re.match(reason, answer["reason"]), answer
    values = answer.get("measurement", {}).get("values", {})
    assert re.match(remark.replace("(dQ", r"\(dQ"), values.get("not_causal", "")), values
    assert ("not_causal" in values) == bool(remark)


def test_a_triton_kernel_must_mask(checkout: Any, measured: Measured) -> None:
    files = flash(attention("False"))
    files["tests/adapters.py"] += adapter(TRITON, "cs336_systems.flash", "Flash")
    answer = measured(FLASH, checkout(files), replaced={"kernel": "flash_triton"})
    assert re.match(r"output off by \S+ at causal", answer["reason"]), answer


# Shapes of a checkout, right (OK) or with a fault of its own: files beside a right attention, what its cell ends as.
ONLY = f"def {PYTORCH}():\n    return Flash\n"
TOP = f"from cs336_systems.flash import Flash\n{ONLY}"
OTHERS = """
def get_ddp(module):
    return DDP(module)

def ddp_on_after_backward(ddp_model, optimizer):
    pass
"""
SHAPES: dict[str, tuple[dict[str, str], tuple[str, str]]] = {
    "[tool.uv.sources] elsewhere": (
        {
            "pyproject.toml": '[tool.uv.sources]\ncs336-basics = { path = "../a1", editable = true }\n',
            "../a1/pyproject.toml": '[project]\nname = "cs336_basics"\nversion = "1"\n',
            "../a1/cs336_basics/__init__.py": "from importlib.metadata import version\nV = version('cs336_basics')\n",
            "cs336_systems/flash.py": "import cs336_basics\nassert cs336_basics.V == '1'\n" + attention(),
        },
        OK,
    ),
    "sources with the package inside a folder of its name": (
        {
            "pyproject.toml": '[tool.uv.sources]\ncs336-basics = { path = "./cs336_basics" }\n',
            "cs336_basics/cs336_basics/__init__.py": "",
            "cs336_basics/cs336_basics/network.py": "",
            "cs336_systems/flash.py": "import cs336_basics.network\n" + attention(),
        },
        OK,
    ),
    "a workspace": (
        {
            "pyproject.toml": '[tool.uv.workspace]\nmembers = ["packages/*"]\n',
            "packages/basics/src/cs336_basics/__init__.py": "",
            "cs336_systems/flash.py": "import cs336_basics\n" + attention(),
        },
        OK,
    ),
    "no project file that can be read": ({"pyproject.toml": "[project\n"}, OK),
    "basics that are nowhere": (
        {"cs336_systems/flash.py": "import cs336_basics\n" + attention()},
        ("unsupported", r"not checked: cs336_basics is not in the checkout: \[tool\.uv\.sources\] of pyproject"),
    ),
    "a package that is not installed": (
        {"cs336_systems/flash.py": "import no_such_package.inside\n" + attention()},
        ("unsupported", r"not checked: no_such_package is missing here: \S*python -m pip install no_such_package$"),
    ),
    "a module of its own that is not there": (
        {"cs336_systems/flash.py": "import cs336_systems.tiles\n" + attention()},
        ("failed", r"ModuleNotFoundError: No module named 'cs336_systems\.tiles' \(cs336_systems/flash\.py:1\)"),
    ),
    "another kernel's import that breaks": (
        {"cs336_systems/ddp.py": "", "tests/adapters.py": f"from cs336_systems.ddp import DDP\n{TOP}{OTHERS}"},
        OK,
    ),
    "one import statement for two modules, one of which raises": (
        {
            "cs336_systems/ddp.py": "import argparse\nargparse.ArgumentParser().parse_args(['x'])\n",
            "tests/adapters.py": f"from cs336_systems import flash, ddp\nFlash = flash.Flash\n{ONLY}",
        },
        OK,
    ),
    "its own import that breaks": (
        {"tests/adapters.py": f"from cs336_systems.flash import Tiles\n{ONLY.replace('Flash', 'Tiles')}"},
        ("failed", r"ImportError: cannot import name 'Tiles' from .* \(tests/adapters\.py:1\)"),
    ),
    "argparse at import": (
        {"cs336_systems/flash.py": "import argparse\nargparse.ArgumentParser().parse_args()\n" + attention()},
        OK,
    ),
    "sys.exit at import": (
        {"cs336_systems/flash.py": "import sys\nprint('no GPU')\nsys.exit(3)\n" + attention()},
        ("failed", r"LeftEarly: sys\.exit\(3\) \(cs336_systems/flash\.py:3\): no GPU"),
    ),
    "a relative path": (
        {"cs336_systems/flash.py": "SEEN = open('data/a.txt').read()\n" + attention(), "data/a.txt": "a"},
        OK,
    ),
    "a relative path to nothing": (
        {"cs336_systems/flash.py": "SEEN = open('data/a.txt').read()\n" + attention()},
        ("failed", r"FileNotFoundError: .*No such file or directory \(cs336_systems/flash\.py:1\): 'data/a\.txt'"),
    ),
    "NVTX and CUDA events": (
        {
            "cs336_systems/flash.py": attention().replace(
                "        s = scores",
                "        with torch.cuda.nvtx.range('s'): torch.cuda.Event(True).record()\n        s = scores",
            )
        },
        OK,
    ),
    "an adapter that returns None": (
        {"tests/adapters.py": f"def {PYTORCH}():\n    found = None\n    return found\n"},
        ("failed", rf"{PYTORCH} returned None \(adapters\.py:1\)"),
    ),
    "syntax of a later Python": (
        {"cs336_systems/flash.py": "def f(:\n" + attention()},
        ("failed", r"SyntaxError: .* for Python 3\.\d+\.\d+ \(flash\.py, line 1\)"),
    ),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_checkout_is_loaded_as_its_course_loads_it(shape: str, checkout: Any, measured: Measured) -> None:
    files, (status, reason) = SHAPES[shape]
    answer = measured(FLASH, checkout(flash(attention()) | files))
    assert answer["status"] == status and re.match(reason, answer["reason"]), answer


def test_settings_made_at_import_hold_for_no_cell(checkout: Any, measured: Measured, tmp_path: Path) -> None:
    """They would hold for a process's first cell alone, and for ours beside it."""
    seen = str(tmp_path / "seen")
    text = f"        open({seen!r}, 'a').write(torch.get_float32_matmul_precision() + ' ')\n        s = scores"
    code = "import torch\ntorch.set_float32_matmul_precision('high')\ntorch.set_default_device('meta')\n"
    assert measured(FLASH, checkout(flash(code + attention().replace("        s = scores", text))))["status"] == "ok"
    assert set((tmp_path / "seen").read_text().split()) == {"highest"}


SHARDED = """
import torch
import torch.distributed as dist

class Sharded(BASE):
    def __init__(self, params, cls, **kw):
        self.every = list(params)
        n, r = dist.get_world_size(), dist.get_rank()
        HOLD(cls(self.every[r::n], **kw))

    def step(self, closure=None, **kw):
        GET.step()
        for i, p in enumerate(self.every):
            dist.broadcast(p.data, i % dist.get_world_size())
"""
HOLDERS = {
    "an attribute": ("object", "self.inner = (", "self.inner"),
    "a subclass that never calls super().__init__": ("torch.optim.Optimizer", "self.inner = (", "self.inner"),
    "a dict": ("object", "self.by = dict(mine=", "self.by['mine']"),
    "an object in a list": ("object", "from types import SimpleNamespace as N; self.by = [N(of=", "self.by[0].of"),
    "a closure": ("object", "self.get = (lambda one: lambda: one)(", "self.get()"),
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_a_sharded_optimizers_state_is_found_wherever_it_is(holder: str, checkout: Any, measured: Measured) -> None:
    base, hold, get = HOLDERS[holder]
    close = ")" * (hold.count("(") - hold.count(")")) + ("]" if "[" in hold else "")
    code = SHARDED.replace("BASE", base).replace("GET", get)
    code = code.replace("HOLD(cls(self.every[r::n], **kw))", f"{hold}cls(self.every[r::n], **kw){close}")
    files = {
        "cs336_systems/opt.py": code,
        "tests/adapters.py": adapter("get_sharded_optimizer", "cs336_systems.opt", "Sharded(p, c, **kw)", "p, c, **kw"),
    }
    answer = measured(SHARDING, checkout(files))
    assert answer["status"] == "ok", answer
    series = answer["measurement"]["series"]
    whole, part = (series[f"{one}_before_step_bytes"][2] for one in ("unsharded", "subject"))
    assert whole / 3 < part < whole


WRAPPER = """
import copy
import torch
import torch.distributed as dist

class DDP(torch.nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module, self.handles = MODULE, []
        for p in self.module.parameters():
            dist.broadcast(p.data, 0)
            if TRAINED:
                p.register_post_accumulate_grad_hook(self.send)

    def send(self, p):
        p.grad.div_(DIVISOR)
        self.handles.append(dist.all_reduce(p.grad, async_op=True))

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    def finish(self):
        while self.handles:
            self.handles.pop().wait()
"""
YEARS = {
    "2026": ("get_ddp", "ddp_on_after_backward"),
    "2025": ("get_ddp_individual_parameters", "ddp_individual_parameters_on_after_backward"),
}
# By shape: module, which parameters get a hook, divisor, what its cell ends as.
WRAPPERS = {
    "right": ("module", "p.requires_grad", "dist.get_world_size()", OK),
    "trains a copy of its own": ("copy.deepcopy(module)", "p.requires_grad", "dist.get_world_size()", OK),
    "averages nothing in its copy": (
        "copy.deepcopy(module)",
        "p.requires_grad",
        "1",
        ("failed", r".*gradient of \S+ off by 1 at rank \d"),
    ),
    "a hook on a frozen parameter": (
        "module",
        "True",
        "dist.get_world_size()",
        ("failed", r".*RuntimeError: .*require.* gradient.* \(cs336_systems/ddp\.py:\d+\)"),
    ),
}


def ddp(code: str, year: str) -> dict[str, str]:
    """Both years' adapters, those of the other not written."""
    get, after = YEARS[year]
    others = [f"def {one}(*_):\n    raise NotImplementedError\n" for names in YEARS.values() for one in names]
    own = adapter(get, "cs336_systems.ddp", "DDP(module)", "module")
    own += f"def {after}(model, optimizer):\n    model.finish()\n"
    return {"cs336_systems/ddp.py": code, "tests/adapters.py": "".join(others) + own}


@pytest.mark.parametrize("shape", WRAPPERS)
def test_a_wrapper_is_judged_as_the_courses_tests_do(shape: str, checkout: Any, measured: Measured) -> None:
    module, trained, divisor, (status, reason) = WRAPPERS[shape]
    code = WRAPPER.replace("MODULE", module).replace("TRAINED", trained).replace("DIVISOR", divisor)
    year = "2026" if shape == "right" else "2025"
    answer = measured(DDP, checkout(ddp(code, year)))
    assert answer["status"] == status and re.match(reason, answer["reason"]), answer
    if status == "ok":
        values = answer["measurement"]["values"]
        assert values["yours.overlap_individual_early_all_reduces"] > 0


NOTHING = "".join(f"def {one}(*_):\n    raise NotImplementedError\n" for one in (PYTORCH, *YEARS["2025"]))
TRITON_ALONE = NOTHING + f"def {TRITON}():\n    return object\n"


@pytest.mark.parametrize(("text", "why"), [(NOTHING, ""), (TRITON_ALONE, "; the Triton kernel needs a GPU")])
def test_a_subject_of_which_nothing_is_measured_has_cells_that_say_why(text: str, why: str, checkout: Any) -> None:
    cells = plan.build({"subject": str(checkout({"tests/adapters.py": text}))}, "tiny", ROOT).units
    skipped = {
        (cell["factors"]["kernel"], cell["skip"])
        for unit in cells.values()
        for cell in unit.get("cells", [])
        if "subject" in cell["factors"]
    }
    assert skipped == {
        ("flash_pytorch", f"{PYTORCH} is not written{why}"),
        ("ddp_individual", "get_ddp_individual_parameters is not written"),
        ("ddp_bucketed", "get_ddp_bucketed is not written"),
        ("sharded_optimizer", "get_sharded_optimizer is not written"),
    }
