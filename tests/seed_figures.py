"""An independent reading of the seed texts: every table cell, log line and figure in prose, by its own parser.

It shares no code with perfscribe.show.references and reads no CSV file, so that a slip in either shows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

Key = tuple[str, frozenset[str], str]  # experiment, {"name=value", …}, metric
Figures = dict[Key, tuple[str, str]]  # -> text, unit
Row = tuple[str, str, str, str, str]  # experiment, factors, metric, text, unit

SOURCES = {
    "polaris-homework-000": "000",
    "polaris-homework-001": "001",
    "cs336-writeup-002": "002",
    "fsdp-workshop-003": "003",
    "cs336-writeup-004": "004",
}
SIZES = ("small", "medium", "large", "xl", "2.7B")
TERMS = "terms=1000;addend=0.01"
N = r"([\d.,]*\d)"
INTER, INTRA = "nodes=2;ranks_per_node=1;world_size=2", "nodes=1;ranks_per_node=2;world_size=2"
BIG = "size=2.7B;seq_len=512;dtype=fp32"
LITTLE = "size=small;dtype=bf16"
GRID = "seq_len={};head_dim={};batch=8;dtype=fp32;implementation={}"
TYPE = r"(torch\.\w+)"

# source -> (experiment, factors, metric, unit, pattern whose one group is the figure; it must match exactly once)
PROSE: dict[str, list[tuple[str, str, str, str, str]]] = {
    "polaris-homework-000": [
        ("rank_methods", "method=mpi4py_split_type;world_size=4", "training_s", "s", rf"completed in \*\*{N}s"),
        ("dtypes", "", "peak_memory_ratio", "x", rf"roughly \*\*{N}× higher peak GPU memory"),
        ("communication", "", "total_communication_ratio", "x", rf"\*\*~{N}x Slower"),
        ("communication", INTRA, "link_bandwidth_gb_per_s", "GB/s", rf"NVLink\*\* switch \(~{N} GB/s\)"),
        ("communication", INTER, "link_bandwidth_gb_per_s", "GB/s", rf"between cabinets \(~{N} GB/s\)"),
    ],
    "polaris-homework-001": [
        ("single_gpu", "world_size=1;epochs=10", "training_s", "s", rf"10 epochs of training in {N}s"),
        ("rank_methods", "method=mpi4py_modulo;world_size=4", "training_s", "s", rf"completed training in {N}s"),
        ("tensor_dims", "d_model=512;samples=2048", "training_s", "s", rf"\(2048,1,512\) which completed in {N}s"),
        ("tensor_dims", "d_model=512;samples=2048", "memory_allocated_gib", "GiB", rf"{N} GB allocated memory"),
        ("tensor_dims", "d_model=1024;samples=2048", "training_s", "s", r"\(2048,1,1024\) but (failed) with"),
        (
            "communication",
            "nodes=1;ranks_per_node=1;world_size=1",
            "profiled_training_s",
            "s",
            rf"profiling completed in {N}s",
        ),
        ("io_formats", "format=memory", "training_s", "s", rf"in-memory \({N}s\)"),
        ("io_formats", "format=hdf5_gzip", "training_s", "s", rf"HDF5 compressed \({N}s"),
        ("io_formats", "format=hdf5", "training_s", "s", rf"HDF5 uncompressed \({N}s"),
        ("io_formats", "format=pt", "training_s", "s", rf"PyTorch \.pt \({N}s"),
        ("io_formats", "format=npz_compressed", "training_s", "s", rf"\.npz compressed \({N}s"),
        ("io_formats", "format=npz", "training_s", "s", rf"\.npz uncompressed \({N}s"),
        ("io_formats", "format=npy", "training_s", "s", rf"\.npy files \({N}s"),
        ("io_formats", "compressed=true", "size_mib", "MiB", rf"storage \({N}MB"),
        ("io_formats", "compressed=false", "size_mib", "MiB", rf"vs {N}MB\)"),
        ("io_formats", "", "storage_saving_percent", "%", rf"saves ~{N}% storage"),
        ("io_formats", "format=hdf5_gzip", "slowdown_ratio", "x", rf"is {N}x slower"),
        ("dtypes", "d_model=2048", "training_s", "s", r"\(2048, 4096\) all (failed) with"),
        ("dtypes", "d_model=4096", "training_s", "s", r"\(2048, 4096\) all (failed) with"),
    ],
    "cs336-writeup-002": [
        ("end_to_end", "size=large", "forward_backward_ms", "ms", rf"Forward \+ Backward: {N} ms"),
        ("end_to_end", "size=large", "forward_ms", "ms", rf"Forward Only: {N} ms"),
        ("end_to_end", "size=large", "backward_by_difference_ms", "ms", rf"- 169\.07 = {N} ms"),
        ("end_to_end", "size=large", "forward_backward_std_ms", "ms", rf"standard deviation is only ~{N} ms"),
        ("nsys_profile", "", "forward_nsys_ms", "ms", rf"Nsight Profiler: {N} ms"),
        ("nsys_profile", "", "forward_timeit_ms", "ms", rf"your CSV\): {N} ms"),
        ("nsys_profile", "pass=forward", "top_kernel_share_percent", "%", rf"accounting for {N}% of the total runtime"),
        ("nsys_profile", "pass=backward", "top_kernel_share_percent", "%", rf"account for over {N}% of the total"),
        ("nsys_profile", "pass=forward", "elementwise_share_percent", "%", rf"accounting for over {N}% of the forward"),
        ("nsys_profile", "pass=forward", "reduce_share_percent", "%", rf"another {N}% of the total time"),
        ("nsys_profile", "pass=forward", "matmul_share_percent", "%", rf"d\) {N}% vs"),
        ("nsys_profile", "pass=full_step", "matmul_share_percent", "%", rf"d\) [\d.]+% vs {N}%"),
        ("nsys_profile", "", "scores_matmul_us", "us", rf"was approximately {N} µs"),
        ("nsys_profile", "", "softmax_us", "us", rf"took approximately {N} µs"),
        ("mixed_precision_accumulation", f"accumulation=fp16;{TERMS}", "sum", "1", rf"yielding a result of {N} "),
        ("mixed_precision_accumulation", f"accumulation=fp32_plus_fp16;{TERMS}", "sum", "1", rf"yielding {N}\.\.\."),
        ("autocast_dtypes", "dtype=fp16", "parameters_dtype", "dtype", rf"Model parameters: {TYPE}"),
        ("autocast_dtypes", "dtype=fp16", "fc1_output_dtype", "dtype", rf"Output of ToyModel\.fc1: {TYPE}"),
        ("autocast_dtypes", "dtype=fp16", "layernorm_output_dtype", "dtype", rf"Output of ToyModel\.ln: {TYPE}"),
        ("autocast_dtypes", "dtype=fp16", "logits_dtype", "dtype", rf"predicted logits: {TYPE}"),
        ("autocast_dtypes", "dtype=fp16", "loss_dtype", "dtype", rf"The loss: {TYPE}"),
        ("autocast_dtypes", "dtype=fp16", "gradients_dtype", "dtype", rf"model’s gradients: {TYPE}"),
        ("mixed_precision", "size=medium;dtype=bf16", "speedup", "x", rf"starting from a {N}x speedup"),
        ("mixed_precision", "size=2.7B;dtype=bf16", "speedup", "x", rf"impressive {N}x speedup"),
        ("memory_profiling", "size=2.7B;seq_len=128;dtype=fp32", "peak_forward_gb", "GB", rf"\n128: {N} G "),
        ("memory_profiling", "size=2.7B;seq_len=256;dtype=fp32", "peak_forward_gb", "GB", rf"\n256: {N} G "),
        ("memory_profiling", BIG, "peak_forward_gb", "GB", r"\n512: ([\d.]+)G "),
        ("memory_profiling", BIG, "peak_full_step_forward_gb", "GB", rf"512 \(full train\): {N} GB forward"),
        ("memory_profiling", BIG, "peak_full_step_backward_gb", "GB", rf"GB forward, {N} GB backward"),
        ("memory_profiling", BIG.replace("fp32", "bf16"), "peak_forward_gb", "GB", rf"512: infer: {N} GB"),
        ("memory_profiling", BIG.replace("fp32", "bf16"), "peak_full_step_forward_gb", "GB", rf"train: peak {N} g "),
        ("memory_profiling", BIG.replace("fp32", "bf16"), "peak_full_step_backward_gb", "GB", rf"forward and {N} GB"),
        ("memory_profiling", BIG, "residual_stream_mib", "MiB", rf"1024² = {N} MB per tensor"),
        ("memory_profiling", BIG, "largest_allocation_mib", "MiB", rf"largest allocations are {N} MiB"),
        ("attention", "seq_len=16384;batch=8;dtype=fp32", "one_matrix_bytes", "bytes", rf"4 bytes = {N} bytes"),
        ("attention", "seq_len=16384;batch=8;dtype=fp32", "one_matrix_gib", "GiB", rf"1024³ = {N} GB"),
        ("torch_compile", "size=small", "forward_speedup", "x", rf"saw a {N}x speedup on the forward pass"),
        ("torch_compile", "size=small", "full_step_speedup", "x", rf"a {N}x speedup on the full training step"),
        ("torch_compile", "size=large", "forward_speedup", "x", rf"more modest {N}x speedup"),
    ],
    "fsdp-workshop-003": [],
    "cs336-writeup-004": [
        ("nsys_profile", "seq_len=128", "forward_nsys_ms", "ms", rf"forward pass time is {N}ms"),
        ("nsys_profile", "seq_len=128;pass=forward", "top_kernel_count", "count", rf"invoked {N}\ntimes"),
        (
            "mixed_precision_accumulation",
            f"accumulation=fp32_plus_upcast_fp16;{TERMS}",
            "rounded_sum",
            "1",
            rf"same {N}\.\n",
        ),
        (
            "mixed_precision_accumulation",
            f"accumulation=fp32_plus_upcast_fp16;{TERMS}",
            "rounded_addend",
            "1",
            rf"FP16‑rounded {N},",
        ),
        ("mixed_precision_accumulation", f"accumulation=fp32;{TERMS}", "error", "1", r"drift by ~(\S+) after"),
        ("mixed_precision_accumulation", f"accumulation=fp16;{TERMS}", "ulp_at_sum", "1", rf"step size is ~{N}\."),
        ("memory_profiling", LITTLE, "full_step_growth_min_ratio", "x", r"about (\d)–\d× from 128→512"),
        ("memory_profiling", LITTLE, "full_step_growth_max_ratio", "x", r"about \d–(\d)× from 128→512"),
        ("memory_profiling", "size=small;dtype=fp32", "parameter_count", "count", r"there are (\S+) parameters"),
        ("memory_profiling", "size=small;dtype=fp32", "weights_mb", "MB", rf"gives you {N}M mem"),
        ("attention", "dtype=fp32;implementation=eager", "peak_reserved_gib", "GiB", rf"around {N}GB"),
        ("torch_compile", "dtype=fp32;implementation=compiled", "min_speedup", "x", r"see the (\d)-\dx speedup"),
        ("torch_compile", "dtype=fp32;implementation=compiled", "max_speedup", "x", r"see the \d-(\d)x speedup"),
    ],
}

# Numbers in the texts that are no results: settings, hardware names, headings, and results said again in round form.
NOT_RESULTS = {
    "polaris-homework-000": "2 3 4 5 6 1 4x 5 1 024 4 096 10 000 048 16 17 8 9 11 24 0 14 93 15.8 10,000",
    "polaris-homework-001": "1 2 3 4 5 6 7 0 10 1024 1,512",
    "cs336-writeup-002": "1 2 4 10 5 10.0 517 2.7 2560 1024 0 1.12 4.17 16.28",
    "cs336-writeup-004": "1 2 3 4 5 6 7 10 1000 5090 2828803 128,256,512",
}


def texts(folder: Path) -> dict[str, str]:
    """Seed texts by source."""
    return {source: next(folder.glob(f"{number}_*")).read_text("utf-8") for source, number in SOURCES.items()}


def figures(source: str, text: str) -> Figures:
    """Every figure of one seed text; a figure that is read twice, or prose that no longer matches, is an error."""
    tables = {
        "polaris-homework-000": _homework_tables,
        "polaris-homework-001": _homework_dtypes,
        "cs336-writeup-002": _writeup_a,
        "fsdp-workshop-003": _workshop,
        "cs336-writeup-004": _writeup_b,
    }
    found: Figures = {}
    for experiment, factors, metric, figure, unit in (*tables[source](text), *_prose(source, text)):
        key = (experiment, frozenset(factors.split(";")) - {""}, metric)
        assert key not in found, key
        found[key] = (figure, unit)
    return found


def unread_numbers(source: str, text: str, read: Figures) -> set[str]:
    """Numbers of the text that are neither a figure nor a level of one, nor listed in NOT_RESULTS."""
    known = {figure for figure, _ in read.values()} | set(NOT_RESULTS[source].split())
    known |= {factor.partition("=")[2] for _, factors, _ in read for factor in factors}
    text = re.sub(r"https?://\S+|\[?\./\S+", "", text)
    numbers = re.findall(r"(?<![\w.])\d+(?:,\d{3}(?!\d))*(?:\.\d*)?(?:e-?\d+)?", text)
    return {number for number in numbers if number not in known and number.rstrip(".") not in known}


def _prose(source: str, text: str) -> Iterator[Row]:
    for experiment, factors, metric, unit, pattern in PROSE[source]:
        matches = re.findall(pattern, text)
        assert len(matches) == 1, (source, pattern, matches)
        yield experiment, factors, metric, matches[0].replace("\u2011", "-"), unit  # a hyphen that does not break


def _rows(text: str) -> Iterator[list[str]]:
    for line in text.splitlines():
        if "|" in line:
            yield [cell.strip() for cell in line.strip().strip("|").split("|")]


def _tables(text: str) -> Iterator[tuple[list[str], list[str]]]:
    """(header, row) of the Markdown tables, also with blank lines between rows; the header stands above the dashes."""
    header: list[str] = []
    rows = [*_rows(text), []]
    for cells, following in pairwise(rows):
        if _is_rule(following):
            header = cells
        elif len(cells) == len(header) and not _is_rule(cells):
            yield header, cells


def _is_rule(cells: list[str]) -> bool:
    return bool(cells) and all(re.fullmatch(r":?-+:?", cell) for cell in cells)


def _homework_tables(text: str) -> Iterator[Row]:
    columns: dict[str, tuple[list[str], str]] = {
        "Total Comm. Time": (["total_communication_ms"], "ms"),
        "Comm. Overhead": (["communication_share_percent"], "%"),
        "Avg Latency": (["mean_communication_ms"], "ms"),
        "Peak Memory": (["peak_memory_gb"], "GB"),
        "Throughput": (["throughput_min_samples_per_s", "throughput_max_samples_per_s"], "samples/s"),
    }
    for rank, cores, mask in re.findall(r"Rank (\d): `mask (?=\S+` \(Cores ([\d-]+)\))(\S+)`", text):
        place = f"method=mpi4py_split_type;world_size=4;rank={rank}"
        yield "rank_methods", place, "cpu_mask", mask, "mask"
        yield "rank_methods", place, "cpu_cores", cores, "cores"
    wide = [
        ("tensor_dims", "d_model=1024;dtype=fp32;samples=2048"),
        ("dtypes", "d_model=4096;dtype=bf16;samples=10000"),
    ]
    for header, cells in _tables(text):
        places = wide if "Task 3" in header[1] else [("communication", INTER), ("communication", INTRA)]
        metrics, unit = columns.get(cells[0].strip("*"), ([], ""))
        for (experiment, factors), cell in zip(places, cells[1:], strict=False):
            for metric, figure in zip(metrics, re.findall(r"\d[\d.]*", cell), strict=False):
                yield experiment, factors, metric, figure, unit


def _homework_dtypes(text: str) -> Iterator[Row]:
    section = text[text.index("## 6.") :]
    length = "20"
    for name, dtype, seconds, memory in re.findall(r"([\w]*) ?\b(FP32|FP16|BF16) \((\d[\d.]*)s, ([\d.]+)GB", section):
        length = name.rpartition("_")[2] if name.startswith("Large_Seq_") else length
        factors = f"d_model=512;seq_len={length};dtype={dtype.lower()}"
        yield "dtypes", factors, "training_s", seconds, "s"
        yield "dtypes", factors, "peak_memory_gib", memory, "GiB"


def _writeup_a(text: str) -> Iterator[Row]:
    for header, cells in _tables(text):
        yield from _writeup_a_row(dict(zip(header, cells, strict=True)))
    line = re.compile(r"Backend=(\w+), world_size=(\d+), size=(\d+)MB, times=\[([^]]*)\]")
    for backend, world_size, size, times in line.findall(text):
        ranks = times.split(",")
        assert len(ranks) == int(world_size)
        for rank, seconds in enumerate(ranks):
            factors = f"backend={backend};world_size={world_size};size_mb={size};rank={rank}"
            yield "all_reduce", factors, "time_ms", seconds.strip(), "s"


def _writeup_a_row(row: dict[str, str]) -> Iterator[Row]:
    """Figures of one row, told apart by the names of its columns."""
    if "avg_time_ms" in row:
        assert row["pass_type"] == "forward+backward"
        size = next(cell for name, cell in row.items() if name.endswith("model_size"))
        yield (
            "mixed_precision",
            f"size={size};dtype={row['precision']}",
            "forward_backward_ms",
            row["avg_time_ms"],
            "ms",
        )
    elif "mem_gb" in row:
        factors = GRID.format(row["seq_len"], row["d_model"], "eager")
        yield "attention", factors, "memory_before_backward_gib", row["mem_gb"], "GiB"
        for metric in ("forward_ms", "backward_ms"):
            yield "attention", factors, metric, row[metric], "ms"
    elif "precision" in row:
        for column, figure in list(row.items())[3:]:
            kind, _, metric = column.partition("_")
            how = {"vanilla": "eager", "flash": "triton"}[kind]
            metric = metric.replace("fwd", "forward").replace("bwd", "backward")
            factors = f"seq_len={row['seq_len']};head_dim={row['d_model']};dtype={row['precision']};batch=1"
            yield "flash_benchmarking", f"{factors};implementation={how}", metric, figure, "ms"
    else:
        for column, figure in row.items():
            how, _, metric = column.partition("_")
            if how in ("eager", "compiled"):
                cell = (
                    f"size={row['model_size']};implementation={how}"
                    if "model_size" in row
                    else GRID.format(row["seq_len"], row["d_model"], how)
                )
                yield "torch_compile", cell, metric, figure, "ms"


def _workshop(text: str) -> Iterator[Row]:
    renamed = {"samples_per_second": ("samples_per_s", "samples/s"), "steps_per_second": ("steps_per_s", "steps/s")}
    renamed |= {"runtime": ("runtime_s", "s"), "loss": ("loss", "1")}
    for line in re.findall(r"\{'(?:eval|train)_.*'epoch': [\d.]+\}", text):
        epoch = line.rpartition(" ")[2].rstrip("}")
        for kind, name, figure in re.findall(r"'(eval|train)_(\w+)': ([\d.]+)", line):
            metric, unit = renamed[name]
            yield "fsdp", f"model=bloom-560m;epoch={epoch}", f"{kind}_{metric}", figure, unit
    shares = set(re.findall(r"approximately \*\*(\d+)%\*\*", text))
    assert len(shares) == 1, shares
    yield "fsdp", "model=bloom-560m", "block_parameter_share_percent", shares.pop(), "%"


def _writeup_b(text: str) -> Iterator[Row]:
    yield from _writeup_b_kernels(text)
    loops = ["fp32", "fp16", "fp32_plus_fp16", "fp32_plus_upcast_fp16"]
    for loop, total in zip(loops, re.findall(r"\ntensor\(([\d.]+)[,)]", text), strict=True):
        yield "mixed_precision_accumulation", f"accumulation={loop};{TERMS}", "sum", total, "1"
    yield from _writeup_b_autocast(text)
    columns: list[str] = []
    for line in text.splitlines():
        if line.startswith("Model Size"):
            columns = re.findall(r"(?:FP32|BF16|FP16)", line)
        elif line.split() and line.split()[0] in SIZES and len(line.split()) == len(columns) + 1:
            metric, unit = ("forward_backward_ms", "ms") if len(columns) == 3 else ("speedup", "x")
            for dtype, cell in zip(columns, line.split()[1:], strict=True):
                yield "mixed_precision", f"size={line.split()[0]};dtype={dtype.lower()}", metric, cell.rstrip("x"), unit
    for header, cells in _tables(text):
        if header[0] == "Context length":
            factors = f"size=small;seq_len={cells[0].strip('*')};dtype=bf16"
            for metric, cell in zip(("peak_forward_no_grad_gb", "peak_full_step_gb"), cells[1:], strict=True):
                yield "memory_profiling", factors, metric, re.sub(r"[≈* ]|GB", "", cell), "GB"


def _writeup_b_kernels(text: str) -> Iterator[Row]:
    for line in text.splitlines():
        cells = line.split("\t")
        if cells[0] == ":forward":
            kernel = "elementwise_mul" if "MulFunctor" in cells[-1] else "elementwise_copy"
            factors = f"seq_len=128;pass=forward;kernel={kernel}"
            yield "nsys_profile", factors, "kernel_count", cells[5], "count"
            for name, cell in zip(("total", "mean", "median", "min", "max", "std"), cells[6:12], strict=True):
                yield "nsys_profile", factors, f"kernel_{name}_us", cell.split()[0], cell.split()[1].replace("μ", "u")


def _writeup_b_autocast(text: str) -> Iterator[Row]:
    headings = {"2": "fc1_output_dtype", "3": "layernorm_output_dtype", "4": "logits_dtype", "5": "loss_dtype"}
    for part in text.split("1. Model parameter dtypes")[1:]:
        run = part.partition("```")[0]
        factors = "dtype=bf16" if "torch.bfloat16" in run else "dtype=fp16"
        number = "1"
        for line in run.splitlines()[1:]:
            name, _, cell = line.strip().partition(": ")
            if re.match(r"\d\. ", line):
                number = line[0]
            elif name == "value":
                yield "autocast_dtypes", factors, "loss", cell, "1"
            elif name == "dtype":
                yield "autocast_dtypes", factors, headings[number], cell, "dtype"
            elif number in ("1", "6") and cell:
                metric = "parameters_dtype" if number == "1" else "gradients_dtype"
                yield "autocast_dtypes", f"{factors};tensor={name.removesuffix('.grad')}", metric, cell, "dtype"
