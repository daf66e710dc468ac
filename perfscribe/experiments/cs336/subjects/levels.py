"""Tables and figure of the subjects, shown if the config names any."""

from perfscribe.base.registry import Shown

SHOWN = Shown(
    tables=(
        "cs336.subjects",
        "cs336.subject_flash",
        "cs336.subject_leaderboard",
        "cs336.subject_ddp",
        "cs336.subject_ddp_spans",
        "cs336.subject_sharding",
        "cs336.subject_sharding_kinds",
        "cs336.subject_fsdp",
    ),
    figures=("cs336.subject_ddp_timeline",),
    reads=("flash_benchmarking", "ddp", "optimizer_state_sharding", "fsdp_accounting"),
)
