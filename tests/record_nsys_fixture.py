"""Records an export for tests/fixtures/nsys on a machine with a GPU: python tests/record_nsys_fixture.py FOLDER

Traces two training steps of a small model and writes FOLDER/gpu-VERSION.sqlite (small, nothing private),
gpu-VERSION.csv (what `nsys stats -r nvtx_kern_sum` prints for it) and kernel_names.csv (every kernel, with the family
that it was given and its time in ns).
Exit status 1 where our summary is not that of nsys, or where the small export has another one than the full export.
"""

from __future__ import annotations

import csv
import io
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from nsys_fixture import nsys_rows  # noqa: E402 (the package lies above this folder)

from perfscribe.instruments.profiling import nsys, slim, summary  # noqa: E402
from perfscribe.instruments.profiling.families import OTHER, family  # noqa: E402
from perfscribe.instruments.profiling.nvtx_kernels import COLUMNS, nvtx_kernel_summary  # noqa: E402
from perfscribe.instruments.profiling.ranges import BACKWARD, FORWARD, OPTIMIZER, STEP, WARMUP, annotate  # noqa: E402

SEQ_LEN, BATCH = 128, 4


def program(device: str) -> None:
    """What is traced: a warm-up and two steps, in fp32 and then in bf16."""
    import torch

    from perfscribe.analytic.shapes import SIZES
    from perfscribe.instruments.profiling.annotated_attention import annotated_scaled_dot_product_attention
    from perfscribe.models.transformer import Attention, Model, next_token_loss

    model = Model(SIZES["mini"], SEQ_LEN, device=device)
    for module in model.modules():
        if isinstance(module, Attention):
            module.compute = annotated_scaled_dot_product_attention
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.randint(0, SIZES["mini"].vocab_size, (BATCH, SEQ_LEN + 1), device=device)

    def step(name: str, low: bool) -> None:
        with annotate(name):
            with annotate(FORWARD), torch.autocast(device, dtype=torch.bfloat16, enabled=low):
                loss = next_token_loss(model, tokens[:, :-1], tokens[:, 1:])
            with annotate(BACKWARD):
                loss.backward()
            with annotate(OPTIMIZER):
                optimizer.step()
        if device == "cuda":
            torch.cuda.synchronize()

    step(WARMUP, low=False)
    step(STEP, low=False)
    step(STEP, low=True)


def record(folder: Path, device: str) -> int:
    """Trace, export, compare, write."""
    found = nsys.find()
    if found is None:
        sys.exit("no nsys found; PERFSCRIBE_NSYS may name one")
    folder.mkdir(parents=True, exist_ok=True)
    small = folder / f"gpu-{found.version}.sqlite"
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, __file__, "--program", device]
        report = nsys.profile(found, command, Path(scratch) / "steps", 300)
        full = nsys.export_sqlite(found, report, Path(scratch) / "steps.sqlite")
        trace = nsys.read_sqlite(full)
        nsys.check(trace, uses_cuda=device == "cuda")
        slim.slim(full, small)
        printed = nsys.stats(found, full, "nvtx_kern_sum") if trace.kernels else ",".join(COLUMNS)
        again = nsys.stats(found, small, "nvtx_kern_sum") if trace.kernels else printed
    rows, rows_again = (_table(text) for text in (printed, again))
    with open(small.with_suffix(".csv"), "w", encoding="utf-8", newline="") as stream:
        csv.writer(stream, lineterminator="\n").writerows([COLUMNS, *rows])
    totals = summary.totals(trace.kernels, lambda kernel: kernel.name)
    with open(folder / "kernel_names.csv", "w", encoding="utf-8", newline="") as stream:
        csv.writer(stream, lineterminator="\n").writerows([family(one.name), one.time_ns, one.name] for one in totals)
    other_ns = sum(one.time_ns for one in totals if family(one.name) == OTHER)
    print(f"{trace.tool}: {len(trace.kernels)} kernels, {len(trace.ranges)} ranges, {len(rows)} rows,", end=" ")
    print(f"{small.stat().st_size} bytes, other {100 * other_ns / (sum(one.time_ns for one in totals) or 1):.2f} %")
    print(*trace.remarks, sep="\n")
    same = rows == rows_again and nsys_rows(rows) == nvtx_kernel_summary(nsys.read_sqlite(small))
    print("the summary is that of nsys" if same else "THE SUMMARY IS NOT THAT OF NSYS")
    return 0 if same else 1


def _table(text: str) -> list[list[str]]:
    """The rows below the header; nsys prints lines of its own above it."""
    rows = [row for row in csv.reader(io.StringIO(text)) if row]
    return rows[rows.index(list(COLUMNS)) + 1 :]


if __name__ == "__main__":
    if sys.argv[1] == "--program":
        program(sys.argv[2])
    else:
        sys.exit(record(Path(sys.argv[1]), "cpu" if sys.argv[2:] == ["cpu"] else "cuda"))
