"""Process that runs cells for the worker: imports and CUDA start up only once, and a crash costs only one cell.

Reads one JSON request per line from stdin and writes one JSON line per answer to the original stdout. Output of
run(cell) goes to stderr, and so to the job's log.
"""

import contextlib
import gc
import importlib
import json
import math
import multiprocessing
import os
import random
import resource
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from perfscribe.base import causes, error_kinds, partial, registry
from perfscribe.base.cells import Measurement, Unsupported
from perfscribe.instruments.correctness import WrongResult
from perfscribe.instruments.memory import is_oom, parse_oom
from perfscribe.plan.plan_cells import cell_from_json

# Status of a failed cell by the kind of its error; failed for all others.
STATUSES = {error_kinds.UNSUPPORTED: "unsupported", error_kinds.OUT_OF_MEMORY: "oom", error_kinds.TIMEOUT: "timeout"}
# Imported by torch._dynamo, so by torch.compile and by any optimizer.
COMPILER = "torch._dynamo.convert_frame"


def keep_descriptors() -> None:
    """Keep descriptors inherited from the worker, such as a GPU's lease, out of programs that cells start."""
    folder = Path("/proc/self/fd")
    for name in os.listdir(folder) if folder.is_dir() else []:
        with contextlib.suppress(OSError):  # the descriptor of the listing itself
            if int(name) > 2:
                os.set_inheritable(int(name), False)


def limit_memory(limit_bytes: int) -> None:
    """Let allocations beyond the limit fail in this process, instead of the kernel killing any process."""
    if limit_bytes > 0 and sys.platform.startswith("linux"):
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, hard))


def reset_state(seed: int) -> None:
    """Undo side effects of an earlier cell: compiled code, precision flags, grad mode, memory, random states."""
    random.seed(seed)
    gc.collect()
    gc.freeze()  # objects alive now belong to libraries: later collections, e.g. before counting memory, skip them
    torch = sys.modules.get("torch")
    if torch is None:
        return
    torch.manual_seed(seed)
    torch.set_grad_enabled(True)
    torch.set_default_dtype(torch.float32)
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = False
    if torch.are_deterministic_algorithms_enabled():  # setting them imports torch._dynamo
        torch.use_deterministic_algorithms(False)
    if COMPILER in sys.modules:
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def compiler_complaint(values: Mapping[str, Any]) -> str:
    """Report graph breaks and recompiles beyond Dynamo's limit, which a compiled cell's figure would hide; else "".

    Cells that expect them set the values graph_breaks and recompiles.
    """
    torch = sys.modules.get("torch")
    if torch is None or COMPILER not in sys.modules:
        return ""
    counters = torch._dynamo.utils.counters
    breaks = sum(counters["graph_break"].values())
    if breaks > int(values.get("graph_breaks", 0)):
        return f"{breaks} graph breaks: parts ran uncompiled"
    skipped = [text for text in counters["unimplemented"] if "recompile_limit" in text or "cache_size_limit" in text]
    return "recompile limit reached: later shapes ran uncompiled" if skipped else ""


def check(measurement: Measurement) -> None:
    """Raise ValueError for a measurement that is no valid record: no figures, or figures that are not finite."""
    if not isinstance(measurement, Measurement):
        raise ValueError(f"run(cell) gave {type(measurement).__name__}, not a Measurement")
    for group in (measurement.samples, measurement.warmup):
        for name, samples in group.items():
            if not all(math.isfinite(sample) for sample in samples):
                raise ValueError(f"{name} holds a sample that is not finite")
    for name, value in measurement.values.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{name} is not finite ({value})")
    if not measurement.samples and not measurement.values:
        raise ValueError("run(cell) gave neither samples nor values")


def as_answer(measurement: Measurement) -> dict[str, Any]:
    """Convert a measurement to plain JSON values."""
    return {
        **vars(measurement),
        "samples": {name: [float(x) for x in samples] for name, samples in measurement.samples.items()},
        "warmup": {name: [float(x) for x in samples] for name, samples in measurement.warmup.items()},
    }


def failure(error: BaseException) -> dict[str, Any]:
    """Status, one-line reason and details for an exception that ended a cell."""
    kind, name = kind_of(error), type(error).__name__
    message = causes.of_exception(error)[:300] or name
    details: dict[str, Any] = {"kind": kind, "message": message}
    if kind != error_kinds.UNSUPPORTED:
        details["traceback"] = "".join(traceback.format_exception(error))[-4000:]
    if kind == error_kinds.OUT_OF_MEMORY:
        details |= parse_oom(error)
    named = kind in (error_kinds.EXCEPTION, error_kinds.EXPECTED) and message != name
    reason = f"{name}: {message}" if named else message
    return {"status": STATUSES.get(kind, "failed"), "reason": reason, "error": details}


def kind_of(error: BaseException) -> str:
    """Kind of an exception that ended a cell."""
    if isinstance(error, Unsupported):
        return error_kinds.UNSUPPORTED
    if is_oom(error):
        return error_kinds.OUT_OF_MEMORY
    if isinstance(error, TimeoutError):
        return error_kinds.TIMEOUT
    if isinstance(error, WrongResult):
        return error_kinds.WRONG_RESULT
    return error_kinds.EXPECTED if error_kinds.is_expected(error) else error_kinds.EXCEPTION


def partial_measurement(error: BaseException) -> dict[str, Any]:
    """Measurement before the exception, as part of the cell's answer; empty if missing or invalid."""
    measurement = partial.of_error(error)
    try:
        if measurement is None:
            return {}
        check(measurement)
        answer = {"measurement": as_answer(measurement)}
        json.dumps(answer, allow_nan=False)
    except (ValueError, TypeError):
        return {}
    return answer


def run_cell(module: Any, request: Mapping[str, Any]) -> dict[str, Any]:
    """Run one cell and return its answer; Python exceptions become a status."""
    reset_state(request["seed"])
    try:
        if "subject" in request["cell"]["factors"]:  # user's code: imported only in processes that measure none of ours
            module = importlib.import_module(f"{module.__package__}.subject")
        measurement = module.run(cell_from_json(request["cell"], request["data_folder"], request["round"]))
        check(measurement)
        complaint = compiler_complaint(measurement.values)
        if complaint:
            raise RuntimeError(complaint)
        answer: dict[str, Any] = {"status": "ok", "reason": "", "measurement": as_answer(measurement)}
        json.dumps(answer, allow_nan=False)
    except (Exception, SystemExit) as error:
        answer = failure(error) | partial_measurement(error)
    return answer


def _send(stream: TextIO, answer: Mapping[str, Any]) -> None:
    stream.write(json.dumps(answer, allow_nan=False, ensure_ascii=False) + "\n")
    stream.flush()


def import_early(libraries: list[str]) -> None:
    """Import the cells' libraries up front, so that no cell pays for it; cells report missing ones themselves."""
    for name in libraries:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def main(experiment: str, memory_limit_bytes: int, socket_folder: str, libraries: list[str]) -> None:
    """Serve requests until standard input closes. socket_folder: of multiprocessing's sockets."""
    keep_descriptors()
    multiprocessing.current_process()._config["tempdir"] = socket_folder  # type: ignore[attr-defined]
    limit_memory(memory_limit_bytes)
    # Error messages may contain invalid Unicode, as file names can.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="replace")
    os.dup2(2, 1)
    try:
        module = registry.module(experiment, "measure")
        if preloaded := getattr(module, "PRELOADED", ()):
            from perfscribe.distributed.starting import start_server

            start_server(preloaded)
        import_early(libraries)
    except Exception as error:
        _send(answers, {"ready": False, **failure(error)})
        return
    _send(answers, {"ready": True, "pid": os.getpid()})
    for line in sys.stdin:
        _send(answers, run_cell(module, json.loads(line)))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4:])
