"""Summarise kernels by NVTX range with nsys: nsys_kernels.py --export SQLITE --out CSV"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from perfscribe.base import files  # noqa: E402 (the path must be set first)
from perfscribe.base.one_line import in_one_line, paths  # noqa: E402
from perfscribe.instruments.profiling import nsys  # noqa: E402

if __name__ == "__main__":
    with in_one_line("nsys_kernels", nsys.NsysError):
        args = paths(__doc__, "--export", "--out")
        files.write_text(args.out, nsys.kernel_summary(nsys.find(), args.export))
