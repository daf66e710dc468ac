"""Your code in the tables: the functions of a course's adapter file, where they are and how they are called.

A subject is a checkout of CS336's assignment 2 with its own tests/adapters.py. Its code runs in the child and its ranks
alone. A kernel is what one problem of the handout asks for; adapters of it have the names of spring 2025 or 2026.
"""

from __future__ import annotations

from pathlib import Path

# By process and rank: paths of adapter files by the subject's name, as JSON. No record has them.
VARIABLE = "PERFSCRIBE_SUBJECTS"
# The name of the config's single subject, whose rows are handed in.
YOURS = "yours"
FLASH = {"cpu": "flash_pytorch", "cuda": "flash_triton"}
INDIVIDUAL, BUCKETED, OPTIMIZER = "ddp_individual", "ddp_bucketed", "sharded_optimizer"
# The adapters of each kernel, each by its names; those that it cannot do without first.
KERNELS = {
    "flash_pytorch": (("get_flashattention_autograd_function_pytorch",),),
    "flash_triton": (("get_flashattention_autograd_function_triton",),),
    INDIVIDUAL: (
        ("get_ddp_individual_parameters", "get_ddp"),
        ("ddp_individual_parameters_on_after_backward", "ddp_on_after_backward"),
    ),
    BUCKETED: (("get_ddp_bucketed",), ("ddp_bucketed_on_after_backward",), ("ddp_bucketed_on_train_batch_start",)),
    OPTIMIZER: (("get_sharded_optimizer",),),
}
REQUIRED = 2


def checkout(adapters: Path) -> Path:
    """The folder that the file's absolute imports begin at: the nearest with a pyproject.toml or a .git."""
    for folder in adapters.parents:
        if (folder / "pyproject.toml").is_file() or (folder / ".git").exists():
            return folder
    return adapters.parents[1] if adapters.parent.name == "tests" else adapters.parent


def roots(adapters: Path) -> list[Path]:
    """Where the subject's modules are looked for."""
    top = checkout(adapters)
    return [folder for folder in (top, top / "cs336-basics") if folder.is_dir()]


def module_name(adapters: Path) -> str:
    """The dotted name of the adapter file, so that its relative imports work."""
    return ".".join(adapters.relative_to(checkout(adapters)).with_suffix("").parts)
