"""A subject's code, measured next to ours in the cell's child; which edits of it are measured again."""

import platform
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from shards import ShardJob
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
Subject, Measured = Callable[..., Path], Callable[..., dict[str, Any]]


def test_right_attention_is_timed_in_turns_with_ours(subject: Subject, measured: Measured) -> None:
    found = measured(FLASH, subject())["measurement"]
    passes = ("forward", "backward", "both")
    assert set(found["samples"]) == {f"{who}{one}_ms" for who in ("", "ours_") for one in passes}
    assert found["values"]["largest_relative_error"] < 1e-4
    assert found["values"]["kept_bytes"] == 0


def test_the_largest_error_is_of_all_checks_and_memory_that_a_call_keeps_is_told(
    subject: Subject, measured: Measured
) -> None:
    off_without_mask = ("flash", "out, sums)\n        ctx", "out, sums * (1 if is_causal else 1.005))\n        ctx")
    leaks = ("flash", "        ctx.is_causal =", "        FlashAttention.KEPT.append(p); ctx.is_causal =")
    kept = ("flash", "Function):\n", "Function):\n    KEPT = []\n")
    found = measured(FLASH, subject(off_without_mask, leaks, kept), seq_len=128)["measurement"]
    assert 4e-3 < found["values"]["largest_relative_error"] < 1e-2
    assert found["values"]["kept_bytes"] == 128 * 128 * 4  # the matrix of one call


def has_remark(**values: Any) -> bool:
    """Whether a row of these values says something about the subject's code."""
    row = Record("ddp", {}, "ok", "", "measured", {"step_ms": [[1.0]]}, values=values)
    return bool(show._with_ratio(row, row, "", "step_ms").values["remark"] != show.NO_REMARK)


SENDS = "            self.send(self.buckets[self.place[parameter]])"
FINISH = "    def finish_gradient_synchronization(self):\n"
NEVER_OVERLAPS = (
    ("buckets", SENDS, "            pass"),
    ("buckets", FINISH, f"{FINISH}        for bucket in self.buckets:\n            self.send(bucket)\n"),
)


@pytest.mark.parametrize("places", [(), NEVER_OVERLAPS], ids=["overlaps", "never overlaps"])
def test_buckets_that_never_overlap_are_seen_by_their_calls(
    places: tuple[Any, ...], subject: Subject, measured: Measured
) -> None:
    variants = {"variants": "overlap_bucketed:1 yours.overlap_bucketed.1"}
    answer = measured(DDP, subject(*places), replaced=variants, kernel="ddp_bucketed")
    assert answer["status"] == "ok", answer
    found, key = answer["measurement"], "yours.overlap_bucketed.1"
    assert found["values"][f"{key}_all_reduces"] > 0
    early = found["values"][f"{key}_early_all_reduces"]
    assert has_remark(all_reduces=2, early_all_reduces=early) == bool(places)
    assert len(found["samples"][f"{key}_step_ms"]) == len(found["samples"]["overlap_bucketed:1_step_ms"])


SHARDS = "        layer.weight.data = self.shards"


@pytest.mark.parametrize("keeps", [False, True])
def test_gathered_weights_that_are_not_freed_are_told(keeps: bool, subject: Subject, measured: Measured) -> None:
    places = [("fsdp", SHARDS, f"        layer.kept = layer.weight.data\n{SHARDS}")] if keeps else []
    answer = measured(FSDP, subject(*places), replaced={"turns": 1, "steps": 1})
    assert answer["status"] == "ok", answer
    found = answer["measurement"]
    share = found["values"]["yours.fsdp_gathered_share"]
    assert (0.8 < share < 1.2) if keeps else (0 < share < 0.2), share
    assert has_remark(gathered_share=share) == keeps
    held = {name: found["values"][f"{name}_before_step_bytes"] for name in ("torch_ddp", "fsdp", "yours.fsdp")}
    assert held["fsdp"] < 0.51 * held["torch_ddp"] and (held["yours.fsdp"] < 0.51 * held["torch_ddp"]) == (not keeps)
    assert {"yours.fsdp_step_ms", "yours.fsdp_tail_ms", "fsdp_step_ms"} <= set(found["samples"])


ADAPTERS = "tests/adapters.py"


def codes(adapters: Path) -> Mapping[str, str]:
    """The digest of each kernel's code, which is a factor of its cells."""
    return subjects.read("yours", adapters).kernels


def above_torch(module: str, line: str) -> tuple[str, str, str]:
    """The place of a line at the head of a module."""
    return module, "import torch\n", f"{line}\nimport torch\n"


def returning(name: str) -> str:
    return f"\n\n\ndef {KERNELS['flash_pytorch'][0][0]}():\n    return {name}\n"


def test_an_edit_changes_the_cells_of_its_kernel_only(subject: Subject) -> None:
    before = codes(subject())
    for module, kernel in (("flash", "flash_pytorch"), ("buckets", "ddp_bucketed"), ("ddp", "ddp_individual")):
        assert codes(subject(above_torch(module, "# a comment"))) == before
        edited = codes(subject(above_torch(module, "EDITED = True")))
        assert {name for name in before if edited[name] != before[name]} == {kernel}


def test_the_order_of_imports_is_seen(subject: Subject) -> None:
    adapters = f"from cs336_systems import K{returning('K')}"
    imports = [f"from .{name} import {name} as K\n" for name in ("flash", "ddp")]
    orders = ["".join(imports), "".join(reversed(imports))]
    seen = [codes(subject(**{ADAPTERS: adapters, "cs336_systems/__init__.py": order})) for order in orders]
    assert seen[0]["flash_pytorch"] != seen[1]["flash_pytorch"]


@pytest.mark.parametrize(
    ("imports", "name"),
    [
        ("from cs336_systems.flash import *", "FlashAttention"),
        ("import cs336_systems.flash\nimport cs336_systems.ddp", "cs336_systems.flash.FlashAttention"),
        ("from cs336_systems import flash\n\nfor SCALE in (1.0,):\n    flash.scale = SCALE", "object"),
    ],
)
def test_an_edit_is_seen_however_it_is_imported(subject: Subject, imports: str, name: str) -> None:
    files = {ADAPTERS: f"{imports}{returning(name)}"}
    before, after = codes(subject(**files)), codes(subject(above_torch("flash", "EDITED = True"), **files))
    assert list(before) == list(after) == ["flash_pytorch"] and before != after


@pytest.mark.parametrize("obstacle", ["def (", "import no_such_package", "1 / 0"])
def test_what_breaks_an_import_is_in_the_code_of_the_kernels_that_need_it(subject: Subject, obstacle: str) -> None:
    """Cells that failed by it are due once it is mended; others run without it, also where it is imported first."""
    lazy = subject().read_text()
    for top in "", "from cs336_systems.ddp import DDPIndividual\n\n":
        files = {ADAPTERS: lazy.replace("import annotations\n", f"import annotations\n{top}")}
        right, broken = codes(subject(**files)), codes(subject(above_torch("ddp", obstacle), **files))
        assert {name for name in right if broken[name] != right[name]} == {"ddp_individual"}


def test_an_edit_during_a_run_is_left_to_the_next(subject: Subject, tmp_path: Path) -> None:
    """Taking it back would bring its figures, or its failure, under the name of the code before."""
    adapters, name = subject(), "perfscribe.experiments.cs336.probe.subject"
    job = ShardJob(tmp_path / "root", CHEAP)
    job.root.joinpath(*name.split(".")).with_suffix(".py").write_text(CHEAP)
    code = subjects._code(Sources(job.root).fingerprint(name), subjects.read("yours", adapters), "flash_pytorch")
    job.plan([Cell({"n": 1}), Cell({"n": 2, "subject": "yours", "kernel": "flash_pytorch", "code": code})])
    files.write_json(job.plan_file.with_name("options.json"), {"probe": {"subjects": {"yours": str(adapters)}}})
    subject(("flash", "def backward", "EDITED = True\n\n    def backward"))
    assert [row["status"] for row in job.measure()] == ["ok", "not_run"]
    subject()
    assert [row["status"] for row in job.measure()] == ["ok", "ok"]


def test_what_is_not_written_or_not_installed_is_named(subject: Subject) -> None:
    found = subjects.read("yours", subject(above_torch("ddp", "import no_such_package.inside")))
    assert doctor._written(found).endswith(
        "so ours: get_flashattention_autograd_function_triton; "
        "no_such_package is missing here: .venv/bin/python -m pip install no_such_package"
    )
    broken = subjects.read("yours", subject(above_torch("ddp", "def (")))
    assert doctor._written(broken).endswith(f"; not Python {platform.python_version()}: ddp.py")
