"""Flags for throttled or disturbed cells and for environment variables, derived from the monitor's samples.

Records keep the samples and the flags made then; flags are derived again when records are read, so that old cells
follow today's rules.
"""

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

THROTTLED_SHARE = 0.05
LOW_CLOCK_SHARE = 0.95
IDLE_CLOCK_SHARE = 0.5  # a GPU that waits for its host drops to its idle clock (a fifth of the highest): no fault
HOST_BUSY_SHARE = 0.10
READINGS_FOR_A_SHARE = 5  # fewer readings are too few to report a share of the time

# Beginnings of flags of disturbed cells. Throttling is a property of the machine, so it is only flagged.
DISTURBED = ("foreign process ", "host busy ")
OF_WATCH = ("throttled ", "SM clock ", *DISTURBED)
SET = "with "  # environment variables
MADE_HERE = (*OF_WATCH, SET)  # beginnings of all flags made here

# Variables, as NAME=value, that change the speed of the same code: settings, and switches unless off.
# Excluded: NCCL's, which some clusters need, and numbers of threads, which Snakemake sets.
_CHANGES_TIMES = re.compile(
    r"""(NVIDIA_TF32_OVERRIDE | PYTORCH_((CUDA|HIP)_)?ALLOC_CONF | CUBLAS(LT)?_WORKSPACE\w+ | PYTHONMALLOC
    | CUDA_(DEVICE_MAX_(COPY_)?CONNECTIONS|SCALE_LAUNCH_QUEUES|AUTO_BOOST|MPS_ACTIVE_THREAD_PERCENTAGE)
    | CUDA_INJECTION(32|64)_PATH | ATEN_CPU_CAPABILITY | (DNNL|ONEDNN)_(MAX_CPU_ISA|DEFAULT_FPMATH_MODE)
    | OMP_(DYNAMIC|MAX_ACTIVE_LEVELS|PLACES|PROC_BIND|SCHEDULE|THREAD_LIMIT|WAIT_POLICY)
    | GOMP_(CPU_AFFINITY|SPINCOUNT) | KMP_(AFFINITY|BLOCKTIME|HW_SUBSET|LIBRARY)
    | MKL_(CBWR|DEBUG_CPU_TYPE|DOMAIN_NUM_THREADS|DYNAMIC|ENABLE_INSTRUCTIONS|THREADING_LAYER)
    | MALLOC_\w+ | GLIBC_TUNABLES | ACCELERATE_(DYNAMO|GRADIENT|MIXED|USE)_\w+) = .+
    | (CUDA_LAUNCH_BLOCKING | CUDA_(FORCE|DISABLE)_PTX_JIT | CUDA_CACHE_DISABLE | PYTORCH_NO_(CUDA|HIP)_MEMORY_CACHING
    | TORCH_(COMPILE_DISABLE|LOGS|SHOW_DISPATCH_TRACE|BLAS_PREFER_\w+|CUDNN_\w+|DISTRIBUTED_DEBUG|NCCL_BLOCKING_WAIT)
    | TORCH(DYNAMO|INDUCTOR)_(?!\w*CACHE(_DIR)?=)\w+ | TRITON_(?!\w*(DIR|HOME|PATH)=)\w+ | (CUBLAS|CUDNN)_LOG\w+
    | (MKL|DNNL|ONEDNN)_VERBOSE | PYTHON(DEVMODE|TRACEMALLOC)) = (?!(0|false|off|no)?$) .*
    | LD_PRELOAD = .* (malloc|omp|[at]san) .*""",
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)


def flags(summary: Mapping[str, Any], highest_clock_mhz: float | None = None, attempts: int = 1) -> list[str]:
    """Flags for readers of the cell's figures; flagged cells are kept.

    The thresholds above are this project's choice.

    summary: of monitor.Monitor. attempts: how often the cell was started; a second start may still see the first one's
        processes.
    """
    marks = [_throttling(summary), _clock(summary, highest_clock_mhz), _foreign(summary, attempts), _load(summary)]
    return [mark for mark in marks if mark]


def flags_of(row: Mapping[str, Any]) -> list[str]:
    """Flags of a record, those made here derived again from its samples and variables."""
    if not row.get("watch"):
        return list(row["flags"])
    provenance = row["provenance"]
    highest = max((gpu.get("sm_max") or 0 for gpu in provenance.get("gpu_clocks_mhz") or ()), default=0)
    others = [flag for flag in row["flags"] if not flag.startswith(MADE_HERE)]
    variables = influential_variables(provenance.get("variables") or {})
    set_by_user = [SET + ", ".join(variables)] if variables else []
    return [*flags(row["watch"], highest or None, provenance.get("attempts") or 1), *set_by_user, *others]


def influential_variables(variables: Mapping[str, str]) -> list[str]:
    """Variables that change the speed of the same code, as NAME=value."""
    assignments = (f"{name}={text}" for name, text in sorted(variables.items()))
    return [assignment for assignment in assignments if _CHANGES_TIMES.fullmatch(assignment)]


def _throttling(summary: Mapping[str, Any]) -> str:
    share = summary.get("throttled_fraction") or 0.0
    if share <= THROTTLED_SHARE:
        return ""
    count = summary.get("samples") or READINGS_FOR_A_SHARE
    few = count < READINGS_FOR_A_SHARE
    part = f"in {share * count:.0f} of {count} readings" if few else f"{100 * share:.0f} % of the time"
    reasons = ", ".join(sorted(summary.get("throttle_reasons") or {}))
    return f"throttled {part}" + (f" ({reasons})" if reasons else "")


def _clock(summary: Mapping[str, Any], highest_mhz: float | None) -> str:
    """Flag a low clock next to throttling, too: a GPU can slow down between two readings of the throttle bits."""
    median = summary.get("median_sm_clock_mhz")
    if not median or not highest_mhz or not IDLE_CLOCK_SHARE < median / highest_mhz < LOW_CLOCK_SHARE:
        return ""
    return f"SM clock {median:.0f} MHz of at most {highest_mhz:.0f}"


def _foreign(summary: Mapping[str, Any], attempts: int) -> str:
    names = summary.get("foreign_gpu_processes") or ()
    if not names:
        return ""
    counted = ", ".join(name if n == 1 else f"{n} × {name}" for name, n in sorted(Counter(names).items()))
    python_alone = all(re.fullmatch(r"python[\d.]*", name) for name in names)
    perhaps = "; perhaps of this cell's first attempt" if attempts > 1 and python_alone else ""
    return f"foreign process on the GPU ({counted}{perhaps})"


def _load(summary: Mapping[str, Any]) -> str:
    load = summary.get("host_load_other") or 0.0
    if load <= HOST_BUSY_SHARE:
        return ""
    # The cause stays open: kernel work for a cell's network traffic is charged to no process, so not to the cell's.
    return f"host busy ({100 * load:.0f} % of the cores with what is not counted as the cell's)"
