"""The first page: what a site found, its headlines, and what to keep in mind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from perfscribe.handin.figures import GIB_AS_GB, Figure
from perfscribe.handin.site import Missing, Site, of

MOST_FINDINGS = 7
LEADERBOARD = "cs336.flash_leaderboard"
# Entry of the leaderboard's table by who runs it.
OURS, CUDNN = "here: Triton (ours)", "here: SDPA, cuDNN"


def _best(site: Site, table: str, column: str, **levels: Any) -> tuple[Figure, Any]:
    """The row with the least figure, and that figure."""
    found = [(figure, row) for row in site.rows(table, **levels) if (figure := of(row, column)) is not None]
    if not found:
        raise Missing(table)
    return min(found, key=lambda one: one[0].value)


def flash_against_pytorch(site: Site) -> str:
    """From which length ours is faster, launches counted."""
    table, levels = "cs336.flash_cells", {"head_dim": "64", "dtype": "bf16"}
    lengths = site.levels(table, "seq_len", implementation="triton", **levels)

    def both(name: str, n: str) -> Figure:
        return replace(site.figure(table, "both_launched_ms", implementation=name, seq_len=n, **levels), single=True)

    faster = [n for n in lengths if both("triton", n).value < both("eager", n).value]
    longest = lengths[-1]
    ours, plain = both("triton", longest), both("eager", longest)
    return (
        f"From {faster[0]} tokens on our FlashAttention-2 is faster than plain PyTorch; at {longest} × 64 in bf16 it "
        f"takes {ours.quoted} ms, PyTorch {plain.quoted} ({plain.over(ours).quoted} times)."
    )


def half_precision(site: Site) -> str:
    """What BF16 and TF32 alone give."""

    def gain(dtype: str, size: str) -> str:
        levels = {"model_size": size, "pass_type": "forward+backward"}
        return site.figure("cs336.mixed_precision_speedup", f"{dtype}_speedup", **levels).quoted

    return (
        f"BF16 makes forward and backward of 2.7B {gain('bf16', '2.7B')} times as fast as FP32, TF32 alone "
        f"{gain('tf32', '2.7B')} times; at small BF16 gives {gain('bf16', 'small')}."
    )


def overlap(site: Site) -> str:
    """What naive DDP exposes, and what the best does."""
    levels = {"world_size": "2", "dtype": "fp32"}
    naive = site.figure("cs336.ddp_benchmark", "exposed_ms", implementation="naive", **levels)
    best, row = _best(site, "cs336.ddp_benchmark", "exposed_ms", **levels)
    name = row["implementation"] if row["bucket_mb"] == "none" else f"buckets of {row['bucket_mb']} MB"
    devices = "GPUs" if site.device == "cuda" else "processes"
    return f"On 2 {devices} naive DDP exposes {naive.quoted} ms of communication per step, {name} {best.quoted}."


def flash_against_cudnn(site: Site) -> str:
    """The leaderboard's problem by the handout's closure."""
    ours, cudnn = (site.figure(LEADERBOARD, "both_launched_ms", entry=entry) for entry in (OURS, CUDNN))
    return (
        f"On the leaderboard problem our FlashAttention-2 takes {ours.quoted} ms, cuDNN {cudnn.quoted}, the best "
        "verified entry 5.364 (on H100)."
    )


def _most_processes(site: Site, table: str, **levels: Any) -> str:
    return max(site.levels(table, "world_size", **levels), key=int, default="")


def all_reduce(site: Site) -> str:
    """Bus bandwidth at 1GB, and Gloo beside it."""
    levels = {"backend": "nccl", "size_bytes": str(2**30)}
    ranks = _most_processes(site, "cs336.all_reduce", **levels)
    row = site.row("cs336.all_reduce", world_size=ranks, **levels)
    rate, bound = of(row, "busbw_gb_per_s"), of(row, "link_gb_per_s")
    nccl, gloo = of(row, "host_ms"), None
    for one in site.table("cs336.all_reduce"):
        if one["backend"] == "gloo" and one["world_size"] == ranks and one["size_bytes"] == str(2**30):
            gloo = of(one, "host_ms")
    if rate is None or bound is None or nccl is None or gloo is None:
        raise Missing("cs336.all_reduce")
    return (
        f"NCCL moves {rate.quoted} GB/s for 1GB on {ranks} GPUs, {rate.share(bound).quoted} % of the link, and is "
        f"{gloo.over(nccl).quoted} times as fast as Gloo."
    )


def peak_memory(site: Site) -> str:
    """Peaks of the largest model."""

    def peak(column: str, n: str) -> str:
        figure = site.figure("cs336.memory_by_context", column, size="2.7B", seq_len=n, dtype="fp32")
        return Figure(figure.value * GIB_AS_GB).quoted

    step = [peak("full_step_gib", n) for n in ("128", "512")]
    alone = peak("inference_gib", "512")
    return f"A full step of 2.7B peaks at {step[0]} GB at 128 tokens and {step[1]} at 512, forward alone at {alone}."


def compiled(site: Site) -> str:
    """What torch.compile gives whole steps."""

    def gain(size: str) -> str:
        levels = {"size": size, "implementation": "compiled"}
        plain = site.figure("cs336.compiled_models", "eager_full_step_ms", **levels)
        return plain.over(site.figure("cs336.compiled_models", "compiled_full_step_ms", **levels)).quoted

    small, big = ("small", "2.7B") if site.device == "cuda" else ("nano", "nano")
    if small == big:
        return f"torch.compile makes a full step of {small} {gain(small)} times as fast."
    return f"torch.compile makes a full step of {small} {gain(small)} times as fast, of {big} {gain(big)} times."


def formats(site: Site) -> str:
    """Compressed HDF5 against memory, and the other formats."""
    rows = {row["format"]: of(row, "against_memory") for row in site.rows("polaris.io_formats", cache="warm")}
    packed = rows.get("hdf5_gzip")
    others = [one for name, one in rows.items() if one is not None and name not in ("memory", "hdf5_gzip")]
    if packed is None or not others:
        raise Missing("polaris.io_formats")
    least, most = (pick(others, key=lambda one: one.value).quoted for pick in (min, max))
    return (
        f"Training from compressed HDF5 takes {packed.quoted} times as long as from memory, from the other formats "
        f"{least} to {most} times."
    )


def warm_up(site: Site) -> str:
    """What the first forward costs."""
    size = "2.7B" if site.device == "cuda" else "nano"
    first, later = (
        site.figure("cs336.benchmarking_warmup", column, size=size, warmup_steps=0)
        for column in ("first_forward_ms", "forward_ms")
    )
    return f"Without warm-up the first forward of {size} takes {first.over(later).quoted} times a later one."


# By rank, each with its chapter and the problem that it links to.
FINDINGS: Sequence[tuple[Callable[[Site], str], str, str]] = (
    (flash_against_pytorch, "cs336", "flash_benchmarking"),
    (half_precision, "cs336", "benchmarking_mixed_precision"),
    (overlap, "cs336", "ddp_bucketed_benchmarking"),
    (flash_against_cudnn, "cs336", "flash_benchmarking"),
    (all_reduce, "cs336", "distributed_communication_single_node"),
    (peak_memory, "cs336", "memory_profiling"),
    (compiled, "cs336", "torch_compile"),
    (formats, "polaris", "polaris_5"),
    (warm_up, "cs336", "benchmarking_script"),
)


def findings(site: Site, wanted: Sequence[str]) -> list[tuple[str, str]]:
    """Sentences with the names of their problems; those whose figures the site lacks are left out."""
    found = []
    for finding, chapter, problem in FINDINGS:
        if chapter in wanted:
            try:
                found.append((finding(site), problem))
            except (Missing, IndexError, ValueError):
                continue
    return found[:MOST_FINDINGS]
