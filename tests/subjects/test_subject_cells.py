"""A subject's code that is right, wrong, leaks or prints, measured next to ours in the cell's child."""

import platform
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from shards import ShardJob
from unmeasured import subject_cells
from workspace import CHEAP

from perfscribe.base import files
from perfscribe.base.cells import Cell
from perfscribe.experiments.cs336.subjects import show
from perfscribe.plan import subjects
from perfscribe.plan.fingerprint import Sources
from perfscribe.records.records import Record
from perfscribe.subjects import KERNELS
from perfscribe.verbs import doctor

FLASH, DDP, SHARDING, FSDP = "flash_benchmarking", "ddp", "optimizer_state_sharding", "fsdp_accounting"
# By fault: status and reason of its cell.
ENDS = {
    "wrong_dk": (
        "failed",
        r"dK off by 0\.05 at not causal, d 16, 64 tokens; allowed 0\.01; worst element \S+ in place of \S",
    ),
    "wrong_sums": ("failed", r"log-sum-exp off by 0\.02\d* at not causal"),
    "wrong_in_bf16": ("failed", r"output off by 0\.05 .*; allowed 0\.02"),
    "raises": ("failed", r"RuntimeError: shape \(cs336_systems/flash\.py:19\)"),
    "no_python": ("failed", r"SyntaxError: .*flash\.py, line 1"),
    "prints": ("failed", r"printed more than 1024 MiB"),
    "not_written": ("unsupported", r"raises NotImplementedError"),
    "averages_nothing": (
        "failed",
        r".*gradient of 0\.weight off by \S+ at rank \d, overlap_individual, after on_after_backward; "
        r"allowed 0\.001; worst element \S+ in place of \S+",
    ),
    "sums_shards": (
        "failed",
        r".*change of \S+ in 3 steps off by (1|0\.99) at rank \d, yours\.fsdp, fp32; allowed 0\.001; worst",
    ),
    "updates_its_own": ("failed", r".*change of \S+ off by 1 at rank \d, after 10 steps"),
}
CELLS = {  # others are the first of attention
    "wrong_in_bf16": (FLASH, {"replaced": {"dtype": "bf16"}}),
    "averages_nothing": (DDP, {"kernel": "ddp_individual"}),
    "updates_its_own": (SHARDING, {}),
    "sums_shards": (FSDP, {}),
}

Subject, Measured = Callable[..., Path], Callable[..., dict[str, Any]]


@pytest.mark.parametrize("fault", ENDS)
def test_faulty_code_ends_as_its_cells_status(fault: str, subject: Subject, measured: Measured) -> None:
    status, reason = ENDS[fault]
    experiment, levels = CELLS.get(fault, (FLASH, {}))
    answer = measured(experiment, subject(fault), **levels)
    assert answer["status"] == status and re.match(reason, answer["reason"]), answer


def test_right_attention_is_timed_in_turns_with_ours(subject: Subject, measured: Measured) -> None:
    found = measured(FLASH, subject())["measurement"]
    passes = ("forward", "backward", "both")
    assert set(found["samples"]) == {f"{who}{one}_ms" for who in ("", "ours_") for one in passes}
    assert found["values"]["largest_relative_error"] < 1e-4
    assert found["values"]["kept_bytes"] == 0


def test_the_largest_error_is_of_all_checks(subject: Subject, measured: Measured) -> None:
    found = measured(FLASH, subject("off_without_mask"))["measurement"]
    assert 4e-3 < found["values"]["largest_relative_error"] < 1e-2


def test_memory_that_a_call_keeps_is_told(subject: Subject, measured: Measured) -> None:
    found = measured(FLASH, subject("leaks"), seq_len=128)["measurement"]
    assert found["values"]["kept_bytes"] == 128 * 128 * 4  # the matrix of one call


@pytest.mark.parametrize(("fault", "before_end"), [((), True), (("never_overlaps",), False)])
def test_buckets_that_never_overlap_are_seen_by_their_calls(
    fault: tuple[str, ...], before_end: bool, subject: Subject, measured: Measured
) -> None:
    variants = {"variants": "overlap_bucketed:1 yours.overlap_bucketed.1"}
    answer = measured(DDP, subject(*fault), replaced=variants, kernel="ddp_bucketed")
    assert answer["status"] == "ok", answer
    found = answer["measurement"]
    key = "yours.overlap_bucketed.1"
    counts = {name: found["values"][f"{key}_{name}"] for name in ("all_reduces", "early_all_reduces")}
    row = Record("ddp", {}, "ok", "", "measured", {"step_ms": [[1.0]]}, values=counts | {"all_reduces": 2})
    assert (show._with_ratio(row, row, "", "step_ms").values["remark"] == show.NO_REMARK) == before_end
    assert found["values"][f"{key}_all_reduces"] > 0
    assert len(found["samples"][f"{key}_step_ms"]) == len(found["samples"]["overlap_bucketed:1_step_ms"])


def test_sharded_state_is_counted_where_the_wrapper_holds_it(subject: Subject, measured: Measured) -> None:
    found = measured(SHARDING, subject())["measurement"]
    state = {name: found["series"][f"{name}_before_step_bytes"][2] for name in ("unsharded", "subject")}
    assert 0 < state["subject"] < state["unsharded"]
    assert {"subject_step_ms", "subject_optimizer_ms", "sharded_step_ms"} <= set(found["samples"])


@pytest.mark.parametrize(("fault", "told"), [((), False), (("keeps_weights",), True)])
def test_gathered_weights_that_are_not_freed_are_told(
    fault: tuple[str, ...], told: bool, subject: Subject, measured: Measured
) -> None:
    answer = measured(FSDP, subject(*fault), replaced={"turns": 1, "steps": 1})
    assert answer["status"] == "ok", answer
    found = answer["measurement"]
    share = found["values"]["yours.fsdp_gathered_share"]
    assert (0.8 < share < 1.2) if told else (0 < share < 0.2), share
    row = Record("ddp", {}, "ok", "", "measured", {"step_ms": [[1.0]]}, values={"gathered_share": share})
    assert (show._with_ratio(row, row, "", "step_ms").values["remark"] != show.NO_REMARK) == told
    held = {name: found["values"][f"{name}_before_step_bytes"] for name in ("torch_ddp", "fsdp", "yours.fsdp")}
    assert held["fsdp"] < 0.51 * held["torch_ddp"] and (held["yours.fsdp"] < 0.51 * held["torch_ddp"]) == (not told)
    assert {"yours.fsdp_step_ms", "yours.fsdp_tail_ms", "fsdp_step_ms"} <= set(found["samples"])


def test_an_edit_changes_the_cells_of_its_kernel_alone(subject: Subject) -> None:
    adapters = subject()

    def codes() -> dict[str, set[Any]]:
        found: dict[str, set[Any]] = {}
        for experiment in (FLASH, DDP, SHARDING):
            for cell in subject_cells(experiment, adapters):
                found.setdefault(str(cell["kernel"]), set()).add(cell["code"])
        return found

    before = codes()
    assert {kernel: len(of) for kernel, of in before.items()} == dict.fromkeys(
        ("flash_pytorch", "ddp_individual", "ddp_bucketed", "sharded_optimizer"), 1
    )
    for name, kernel in (("flash", "flash_pytorch"), ("buckets", "ddp_bucketed"), ("ddp", "ddp_individual")):
        path = adapters.parents[1] / "cs336_systems" / f"{name}.py"
        path.write_text(path.read_text() + "# a comment\n")
        assert codes() == before
        path.write_text(path.read_text() + "EDITED = True\n")
        after = codes()
        assert {one for one in before if after[one] != before[one]} == {kernel}
        before = after


def test_the_order_of_imports_is_seen(subject: Subject) -> None:
    adapters, codes = subject(), set()
    adapters.write_text(f"from cs336_systems import K\n\n\ndef {KERNELS['flash_pytorch'][0][0]}():\n    return K\n")
    for names in (("flash", "ddp"), ("ddp", "flash")):
        lines = "".join(f"from .{name} import {name} as K\n" for name in names)
        (adapters.parents[1] / "cs336_systems" / "__init__.py").write_text(lines)
        codes.add(subjects.read("yours", adapters).kernels["flash_pytorch"])
    assert len(codes) == 2


@pytest.mark.parametrize(
    ("imports", "names"),
    [
        ("from cs336_systems.flash import *", "FlashAttention"),
        ("import cs336_systems.flash\nimport cs336_systems.ddp", "cs336_systems.flash.FlashAttention"),
        ("from cs336_systems import flash\n\nflash.set_up()", "object"),
        ("from cs336_systems import flash\n\nfor SCALE in (1.0,):\n    flash.scale = SCALE", "object"),
    ],
)
def test_an_edit_is_seen_however_it_is_imported(subject: Subject, imports: str, names: str) -> None:
    adapters = subject()
    adapters.write_text(f"{imports}\n\n\ndef {KERNELS['flash_pytorch'][0][0]}():\n    return {names}\n")
    before = subjects.read("yours", adapters).kernels
    path = adapters.parents[1] / "cs336_systems" / "flash.py"
    path.write_text(path.read_text() + "EDITED = True\n")
    after = subjects.read("yours", adapters).kernels
    assert list(before) == list(after) == ["flash_pytorch"] and before != after


@pytest.mark.parametrize("obstacle", ["def (", "import no_such_package", "1 / 0"])
def test_what_breaks_an_import_is_in_the_code_of_the_kernels_that_need_it(subject: Subject, obstacle: str) -> None:
    """Cells that failed by it are due once it is mended; others run without it, also where it is imported first."""
    adapters = subject()
    path = adapters.parents[1] / "cs336_systems" / "ddp.py"
    text, lazy = path.read_text(), adapters.read_text()
    for top in "", "from cs336_systems.ddp import DDPIndividual\n\n":
        adapters.write_text(lazy.replace("import annotations\n", f"import annotations\n{top}"))
        path.write_text(text)
        right = subjects.read("yours", adapters).kernels
        path.write_text(f"{obstacle}\n{text}")
        broken = subjects.read("yours", adapters).kernels
        assert {one for one in right if broken[one] != right[one]} == {"ddp_individual"}


def test_an_edit_during_a_run_is_left_to_the_next(subject: Subject, tmp_path: Path) -> None:
    """Taking it back would bring its figures, or its failure, under the name of the code before."""
    adapters, name = subject(), "perfscribe.experiments.cs336.probe.subject"
    job = ShardJob(tmp_path / "root", CHEAP)
    job.root.joinpath(*name.split(".")).with_suffix(".py").write_text(CHEAP)
    code = subjects._code(Sources(job.root).fingerprint(name), subjects.read("yours", adapters), "flash_pytorch")
    job.plan([Cell({"n": 1}), Cell({"n": 2, "subject": "yours", "kernel": "flash_pytorch", "code": code})])
    files.write_json(job.plan_file.with_name("options.json"), {"probe": {"subjects": {"yours": str(adapters)}}})
    subject("raises")
    assert [row["status"] for row in job.measure()] == ["ok", "not_run"]
    subject()
    assert [row["status"] for row in job.measure()] == ["ok", "ok"]


def test_what_is_not_written_or_not_installed_is_named(subject: Subject) -> None:
    adapters = subject()
    path = adapters.parents[1] / "cs336_systems" / "ddp.py"
    path.write_text("import no_such_package.inside\n" + path.read_text())
    found = subjects.read("yours", adapters)
    assert found.lacking == {"flash_triton": "get_flashattention_autograd_function_triton"}
    assert found.missing == ["no_such_package"]
    assert doctor._written(found).endswith(
        "so ours: get_flashattention_autograd_function_triton; "
        "no_such_package is missing here: .venv/bin/python -m pip install no_such_package"
    )
    path.write_text("def (")
    assert doctor._written(subjects.read("yours", adapters)).endswith(
        f"; not Python {platform.python_version()}: ddp.py"
    )
