"""Export a report of Nsight Systems to SQLite: nsys_export.py --report NAME.nsys-rep --out NAME.sqlite"""

from perfscribe.base.one_line import in_one_line, paths
from perfscribe.instruments.profiling import nsys

if __name__ == "__main__":
    with in_one_line("nsys_export", nsys.NsysError):
        args = paths(__doc__, "--report", "--out")
        found = nsys.find()
        nsys.export_sqlite(found, args.report, args.out)
        print(f"nsys {found.version} wrote {args.out}")
