"""Summarise kernels by NVTX range, as `nsys stats -r nvtx_kern_sum` does: nsys_kernels.py --export SQLITE --out CSV"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from perfscribe.base import files  # noqa: E402 (the path must be set first)
from perfscribe.base.one_line import in_one_line, paths  # noqa: E402
from perfscribe.instruments.profiling.nsys_export import read_sqlite  # noqa: E402
from perfscribe.instruments.profiling.nvtx_kernels import nvtx_kernel_summary  # noqa: E402

if __name__ == "__main__":
    with in_one_line("nsys_kernels", ValueError):
        args = paths(__doc__, "--export", "--out")
        trace = read_sqlite(args.export)
        rows = nvtx_kernel_summary(trace)
        files.write_text(args.out, rows.to_csv(index=False, lineterminator="\n"))
        print(f"{trace.tool}: {len(trace.kernels)} kernels, {len(trace.ranges)} ranges, {len(rows)} rows")
        print("\n".join([trace.no_kernels, *trace.remarks]).strip())
