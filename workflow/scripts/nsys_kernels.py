"""Summarise kernels by NVTX range with nsys: nsys_kernels.py --export SQLITE --out CSV"""

from perfscribe.base import files
from perfscribe.base.one_line import in_one_line, paths
from perfscribe.instruments.profiling import nsys

if __name__ == "__main__":
    with in_one_line("nsys_kernels", nsys.NsysError):
        args = paths(__doc__, "--export", "--out")
        files.write_text(args.out, nsys.kernel_summary(nsys.find(), args.export))
