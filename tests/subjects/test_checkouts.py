"""Checkouts in the shapes that students give them, right or with one fault, as their cells end."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from workspace import ROOT

from perfscribe.plan import plan

NAIVE = ROOT / "tests" / "subjects" / "naive"
Place = tuple[str, str, str]  # module, text that stands in it once, text to put there
Subject, Measured = Callable[..., Path], Callable[..., dict[str, Any]]
FLASH, DDP, SHARDING, FSDP = "flash_benchmarking", "ddp", "optimizer_state_sharding", "fsdp_accounting"
PYTORCH, TRITON = (f"get_flashattention_autograd_function_{name}" for name in ("pytorch", "triton"))

D_K = "d_scores.transpose(-2, -1) @ q.float()"
FORWARD = "def forward(ctx, q, k, v, is_causal=False):\n"
IN_CALL = "        p, sums = weights(q, k, is_causal)\n"
SAVED = "        ctx.save_for_backward(q, k, v, out, sums)\n"
IGNORES = ("flash", FORWARD, f"{FORWARD}        is_causal = False\n")
# Places that differ from the naive checkout, then the reason with which the first cell of attention fails.
FAULTY_KERNELS: dict[str, tuple[list[Place], str]] = {
    "wrong dK": (
        [("flash", D_K, f"{D_K} * 1.05")],
        r"dK off by 0\.05 at not causal, d 16, 64 tokens; allowed 0\.01; worst element \S+ in place of \S",
    ),
    "wrong sums": ([("flash", SAVED, SAVED.replace("sums", "sums + 0.1"))], r"log-sum-exp off by 0\.02\d* at not caus"),
    "wrong, and ignores is_causal": ([IGNORES, ("flash", D_K, f"{D_K} * 1.05")], r"dK off by 0\.05"),
    "saves two sums": (
        [("flash", SAVED, SAVED.replace("sums", "sums, sums")), ("flash", "out, _ = ctx", "out, *_ = ctx")],
        r"2 saved tensors of shape \(2, 64\) .*; expected the log-sum-exp",
    ),
    "raises": (
        [("flash", IN_CALL, "        raise RuntimeError('shape')\n")],
        r"RuntimeError: shape \(cs336_systems/flash\.py:19\)",
    ),
    "no Python": ([("flash", '"""Attention', '(:"""Attention')], r"SyntaxError: .* for Python .*flash\.py, line 1"),
    "prints": ([("flash", IN_CALL, '        while True: print("x" * 10_000)\n')], r"printed more than 1024 MiB"),
}


@pytest.mark.parametrize("fault", FAULTY_KERNELS)
def test_a_faulty_kernel_fails_with_the_fault_as_reason(fault: str, subject: Subject, measured: Measured) -> None:
    places, reason = FAULTY_KERNELS[fault]
    answer = measured(FLASH, subject(*places))
    assert answer["status"] == "failed" and re.match(reason, answer["reason"]), answer


def test_each_dtype_has_its_bound(subject: Subject, measured: Measured) -> None:
    place = ("flash", "v.float()).to", "v.float() * (1.05 if q.dtype.itemsize == 2 else 1)).to")
    answer = measured(FLASH, subject(place), replaced={"dtype": "bf16"})
    assert re.match(r"output off by 0\.05 .*; allowed 0\.02", answer["reason"]), answer


EXPERIMENTS = {"ddp": DDP, "fsdp": FSDP, "sharding": SHARDING}  # by module of the checkout
FAULTY_WRAPPERS: dict[str, tuple[Place, str]] = {
    "averages nothing": (
        ("ddp", "self.handles.append(dist.all_reduce(parameter.grad, async_op=True))", "pass"),
        r".*gradient of 0\.weight off by \S+ at rank \d, overlap_individual, after on_after_backward; allowed 0\.001",
    ),
    "a hook on a frozen parameter": (
        ("ddp", "if parameter.requires_grad:", "if True:"),
        r".*RuntimeError: .*require.* gradient.* \(cs336_systems/ddp\.py:\d+\)",
    ),
    "sums shards": (
        ("fsdp", "self.part(gradient) / dist.get_world_size()", "self.part(gradient)"),
        r".*change of \S+ in 3 steps off by (1|0\.99) at rank \d, yours\.fsdp, fp32; allowed 0\.001; worst",
    ),
    "each rank keeps its own update": (
        ("sharding", "            dist.broadcast(parameter.data, src=owner)", "            pass"),
        r".*change of \S+ off by 1 at rank \d, after 10 steps",
    ),
}


@pytest.mark.parametrize("fault", FAULTY_WRAPPERS)
def test_a_faulty_wrapper_fails_with_the_fault_as_reason(fault: str, subject: Subject, measured: Measured) -> None:
    place, reason = FAULTY_WRAPPERS[fault]
    answer = measured(EXPERIMENTS[place[0]], subject(place))
    assert answer["status"] == "failed" and re.match(reason, answer["reason"]), answer


# What the handout allows a kernel in PyTorch: a place, and the remark that its row gets.
NOT_CAUSAL: dict[str, tuple[Place, str]] = {
    "ignores is_causal": (IGNORES, "ignores is_causal, as the handout allows in PyTorch"),
    "masks forward only": (
        ("flash", "ctx.is_causal = is_causal", "ctx.is_causal = False"),
        r"not right where is_causal, .* \(dQ off by",
    ),
    "has no causal mode": (
        ("flash", "        hidden =", "        raise NotImplementedError('not causal')\n        hidden ="),
        r"not right where is_causal, .* \(NotImplementedError: not causal\)",
    ),
}


@pytest.mark.parametrize("shape", NOT_CAUSAL)
def test_a_pytorch_kernel_need_not_mask(shape: str, subject: Subject, measured: Measured) -> None:
    place, remark = NOT_CAUSAL[shape]
    answer = measured(FLASH, subject(place))
    assert answer["status"] == "ok" and re.match(remark, answer["measurement"]["values"]["not_causal"]), answer


def test_a_triton_kernel_must_mask(subject: Subject, measured: Measured) -> None:
    own = f"\ndef {TRITON}():\n    return {PYTORCH}()\n"
    text = (NAIVE / ADAPTERS).read_text() + own
    answer = measured(FLASH, subject(IGNORES, **{ADAPTERS: text}), replaced={"kernel": "flash_triton"})
    assert re.match(r"output off by \S+ at causal", answer["reason"]), answer


# Files that a checkout has besides, or instead of, the naive one's; how its cell ends.
OK = ("ok", "")
PYPROJECT, ADAPTERS, KERNEL = "pyproject.toml", "tests/adapters.py", "cs336_systems/flash.py"
RIGHT = (NAIVE / KERNEL).read_text()
PROJECT = '[project]\nname = "cs336-systems"\n'
ARGPARSE = "import argparse\nargparse.ArgumentParser().parse_args({})\n"
SHAPES: dict[str, tuple[dict[str, str], tuple[str, str]]] = {
    "[tool.uv.sources] elsewhere": (
        {
            PYPROJECT: PROJECT + '[tool.uv.sources]\ncs336-basics = { path = "../a1", editable = true }\n',
            "../a1/pyproject.toml": '[project]\nname = "cs336_basics"\nversion = "1"\n',
            "../a1/cs336_basics/__init__.py": "from importlib.metadata import version\nV = version('cs336_basics')\n",
            KERNEL: "import cs336_basics\nassert cs336_basics.V == '1'\n" + RIGHT,
        },
        OK,
    ),
    "a workspace": (
        {
            PYPROJECT: PROJECT + '[tool.uv.workspace]\nmembers = ["packages/*"]\n',
            "packages/basics/src/cs336_basics/__init__.py": "",
            KERNEL: "import cs336_basics\n" + RIGHT,
        },
        OK,
    ),
    "basics that are nowhere": (
        {KERNEL: "import cs336_basics\n" + RIGHT},
        ("unsupported", r"not checked: cs336_basics is not in the checkout: \[tool\.uv\.sources\] of pyproject"),
    ),
    "a package that is not installed": (
        {KERNEL: "import no_such_package.inside\n" + RIGHT},
        ("unsupported", r"not checked: no_such_package is missing here: \S*python -m pip install no_such_package$"),
    ),
    "a module of its own that is not there": (
        {KERNEL: "import cs336_systems.tiles\n" + RIGHT},
        ("failed", r"ModuleNotFoundError: No module named 'cs336_systems\.tiles' \(cs336_systems/flash\.py:1\)"),
    ),
    "one import statement for two modules, one of which raises": (
        {
            "cs336_systems/ddp.py": ARGPARSE.format(["x"]),
            ADAPTERS: f"from cs336_systems import flash, ddp\n\ndef {PYTORCH}():\n    return flash.FlashAttention\n",
        },
        OK,
    ),
    "argparse at import": ({KERNEL: ARGPARSE.format("") + RIGHT}, OK),
    "sys.exit at import": (
        {KERNEL: "import sys\nprint('no GPU')\nsys.exit(3)\n"},
        ("failed", r"LeftEarly: sys\.exit\(3\) \(cs336_systems/flash\.py:3\): no GPU"),
    ),
    "a relative path": ({KERNEL: "SEEN = open('data/a.txt').read()\n" + RIGHT, "data/a.txt": "a"}, OK),
    "NVTX and CUDA events": (
        {KERNEL: RIGHT.replace(IN_CALL, f"        with torch.cuda.nvtx.range('s'): torch.cuda.Event(True)\n{IN_CALL}")},
        OK,
    ),
    "an adapter that returns None": (
        {ADAPTERS: f"def {PYTORCH}():\n    kernel = None\n    return kernel\n"},
        ("failed", rf"{PYTORCH} returned None \(adapters\.py:1\)"),
    ),
    "a kernel that is not written": (
        {KERNEL: RIGHT.replace("class Flash", "raise NotImplementedError\n\nclass Flash")},
        ("unsupported", "raises NotImplementedError"),
    ),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_checkout_is_loaded_as_its_course_loads_it(shape: str, subject: Subject, measured: Measured) -> None:
    files, (status, reason) = SHAPES[shape]
    answer = measured(FLASH, subject(**files))
    assert answer["status"] == status and re.match(reason, answer["reason"]), answer


def test_settings_made_at_import_hold_for_no_cell(subject: Subject, measured: Measured, tmp_path: Path) -> None:
    """They would hold for a process's first cell only, and for ours next to it."""
    seen = tmp_path / "seen"
    call = f"        open({str(seen)!r}, 'a').write(torch.get_float32_matmul_precision() + ' ')\n{IN_CALL}"
    settings = "import torch\ntorch.set_float32_matmul_precision('high')\ntorch.set_default_device('meta')\n"
    answer = measured(FLASH, subject(**{KERNEL: settings + RIGHT.replace(IN_CALL, call)}))
    assert answer["status"] == "ok" and set(seen.read_text().split()) == {"highest"}, answer


SHARDED = """
import types
import torch
import torch.distributed as dist

class ShardedOptimizer(BASE):
    def __init__(self, params, cls, **kw):
        self.every = list(params)
        mine = cls(self.every[dist.get_rank() :: dist.get_world_size()], **kw)
        self.held = HELD

    def step(self, closure=None, **kw):
        GET.step()
        for i, p in enumerate(self.every):
            dist.broadcast(p.data, i % dist.get_world_size())
"""
HOLDERS = {
    "a subclass that never calls super().__init__": ("torch.optim.Optimizer", "mine", "self.held"),
    "a closure in an object in a list in a dict": (
        "object",
        "{'of': [types.SimpleNamespace(get=lambda: mine)]}",
        "self.held['of'][0].get()",
    ),
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_a_sharded_optimizers_state_is_found_wherever_it_is(holder: str, subject: Subject, measured: Measured) -> None:
    base, held, get = HOLDERS[holder]
    code = SHARDED.replace("BASE", base).replace("HELD", held).replace("GET", get)
    answer = measured(SHARDING, subject(**{"cs336_systems/sharding.py": code}))
    assert answer["status"] == "ok", answer
    series = answer["measurement"]["series"]
    whole, part = (series[f"{name}_before_step_bytes"][2] for name in ("unsharded", "subject"))
    assert whole / 3 < part < whole
    assert {"subject_step_ms", "subject_optimizer_ms", "sharded_step_ms"} <= set(answer["measurement"]["samples"])


def test_a_wrapper_may_train_a_copy_and_have_the_adapters_of_2026(subject: Subject, measured: Measured) -> None:
    holds = "self.module, self.handles = module, []"
    copies = ("ddp", holds, f"import copy\n        module = copy.deepcopy(module)\n        {holds}")
    text = (NAIVE / ADAPTERS).read_text().replace("ddp_individual_parameters", "ddp")
    answer = measured(DDP, subject(copies, **{ADAPTERS: text}), kernel="ddp_individual")
    assert answer["status"] == "ok", answer
    assert answer["measurement"]["values"]["yours.overlap_individual_early_all_reduces"] > 0


@pytest.mark.parametrize(("triton", "why"), [(False, ""), (True, "; the Triton kernel needs a GPU")])
def test_cells_of_a_subject_without_kernels_say_why(triton: bool, why: str, subject: Subject) -> None:
    text = re.sub(r"(?m)^    .*$", "    raise NotImplementedError", (NAIVE / ADAPTERS).read_text())
    text += f"def {TRITON}():\n    return object\n" if triton else ""
    units = plan.build({"subject": str(subject(**{ADAPTERS: text}))}, "tiny", ROOT).units
    skipped = {
        (cell["factors"]["kernel"], cell["skip"])
        for unit in units.values()
        for cell in unit.get("cells", [])
        if "subject" in cell["factors"]
    }
    assert skipped == {
        ("flash_pytorch", f"{PYTORCH} is not written{why}"),
        ("ddp_individual", "get_ddp_individual_parameters is not written"),
        ("ddp_bucketed", "get_ddp_bucketed is not written"),
        ("sharded_optimizer", "get_sharded_optimizer is not written"),
    }
