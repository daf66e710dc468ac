"""Search the tiles of our flash-attention kernels on the GPU at hand: bench/flash.py --tune.

Each candidate is compiled beforehand by many processes at once, then checked against scaled_dot_product_attention and
timed by graph replay in a process of its own kind: where one hangs, dies or poisons the device, that process is ended
and the next candidate gets a fresh one. Results go to standard output as they come, so that a run cut short has told
what it found.
"""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from tabulate import tabulate

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from perfscribe.attention.triton_configs import KERNELS, Tile  # noqa: E402
from perfscribe.attention.triton_splits import SHORTEST_SPLIT  # noqa: E402

PATIENCE_S = 20.0  # without a line from the measuring process, after which its candidate counts as hung
START_PATIENCE_S = 60.0  # the same until its first line, for it has to import torch and to make the reference
SAMPLES = 15
SPLITS = (1, 2, 3, 4, 6, 8, 12, 16)
SPLIT_BELOW = 264  # tiles of 128 rows × heads from which on no split is tried: two a multiprocessor
TOLERANCE = {"bf16": 2e-2, "ieee": 1e-4, "tf32": 1e-2, "tf32x3": 1e-4}

# own rows, streamed rows, warps, stages; "p": through pointers, "a": scores made ahead, "h" or "h,h": so many left
# factors held in registers, "r": at most so many registers
CANDIDATES: dict[str, dict[str, str]] = {
    "narrow": {
        "forward": """
            64,128,4,2,a 64,64,4,3,a 64,64,4,2,a 128,64,4,2,a 128,64,4,3 64,64,4,3 64,128,4,2 64,128,4,3
            64,128,4,2,p 64,64,4,3,p 64,64,4,4,p 128,64,4,3,p 128,64,8,3,p 128,64,8,4,p 128,128,8,3,p
            128,64,4,3,h 128,64,4,4,h 64,128,4,3,h 64,64,4,3,a,h 64,128,4,2,r168""",
        "one_pass": "64,64,4,3,h,h 64,64,4,4,h,h 64,64,4,3 64,64,4,2 64,64,4,3,p 128,64,8,3 64,32,4,3",
        "dkdv": "64,64,4,3,h,h 64,64,4,3,h 64,64,4,3 64,64,4,2 64,64,4,3,p 128,64,8,3 64,128,4,2 64,32,4,4",
        "dq": """
            128,64,4,3 64,64,4,3 64,128,4,2 64,64,4,3,p 128,64,4,3,p 128,64,8,3,p 64,64,4,2,p 128,64,4,2
            64,128,4,2,p 128,64,4,4,p 128,64,4,3,h""",
    },
    "wide": {
        "forward": """
            64,64,4,2,a 64,64,4,2 64,64,4,2,p 64,64,4,3,p 64,128,4,2,a 128,64,8,3,p 128,64,8,2,p 128,128,8,3
            128,128,8,2,a 128,128,8,2,p 128,64,8,3,a 128,64,8,3,a,h 64,64,4,3,h""",
        "one_pass": "128,64,8,2,p 128,64,8,3 64,32,4,3 64,32,4,3,p",
        "dkdv": "64,64,4,2 64,64,4,2,p 128,64,8,3 128,64,8,2,p 128,64,8,3,p 64,64,4,1 64,32,4,3 64,64,8,2,p",
        "dq": """
            64,64,4,2 64,64,4,3 64,64,4,2,p 64,64,4,3,p 128,64,8,3 128,64,8,3,p 128,64,8,2,p 128,128,8,2
            64,128,4,2 64,64,4,3,h""",
    },
    "ieee": {
        "forward": """
            64,16,8,1,p 32,32,8,1,p 64,32,8,1,p 32,32,4,1,p 32,16,4,1,p 64,32,16,1,p 64,16,4,1,p 32,64,8,1,p
            16,32,4,1,p""",
        "dkdv": "64,16,8,1,p 32,32,8,1,p 32,32,4,1,p 32,16,4,1,p",
        "dq": "64,16,8,1,p 32,32,8,1,p 32,32,4,1,p 32,16,4,1,p",
        "one_pass": "32,32,8,1,p 64,16,8,1,p 32,16,4,1,p 64,32,16,1,p 16,32,4,1,p",
    },
    "tf32": {
        "forward": """
            128,64,8,2 64,64,4,2 128,32,4,2 64,32,4,3 128,32,8,3 64,64,4,2,p 64,32,4,2,p 64,64,4,3 64,64,4,2,a
            128,64,8,3 64,32,4,4 64,32,4,3,p 128,64,8,2,p""",
        "one_pass": """
            128,32,8,2 64,32,4,2 64,32,8,1,p 64,64,8,1,p 32,32,4,2 32,32,4,2,p 64,16,4,2,p 64,64,4,2
            64,32,4,2,p""",
        "dkdv": """
            128,32,8,2 64,32,4,2 64,32,8,1,p 64,16,8,2 64,64,4,2 64,32,4,3 64,32,4,2,p 64,64,4,1,p 64,64,8,2
            32,64,4,2,p""",
        "dq": "128,32,8,2 64,32,4,2 64,32,8,1,p 128,64,8,1 64,64,4,2 64,32,4,3 64,32,4,2,p 64,64,4,1,p 32,64,4,2,p",
    },
    "tf32x3": {
        "forward": """
            64,32,4,2,p 64,64,4,1,p 64,32,8,1,p 64,16,4,2,p 32,32,4,2,p 64,32,4,3,p 64,64,8,1,p 128,32,8,1,p
            32,64,4,1,p 64,32,4,2""",
        "one_pass": "64,32,8,1,p 32,32,4,1,p 64,16,8,1,p 64,32,4,1,p 32,64,4,1,p 64,64,8,1,p",
        "dkdv": "64,16,8,1,p 32,32,4,1,p 64,32,4,1,p 64,32,8,1,p 32,64,4,1,p 64,64,8,1,p 32,32,4,2,p",
        "dq": "64,16,8,1,p 32,32,4,1,p 64,32,4,1,p 64,32,8,1,p 32,64,4,1,p 64,64,8,1,p 32,32,4,2,p",
    },
}


@dataclasses.dataclass(frozen=True)
class Job:
    """One candidate on one problem; products: "bf16" or how fp32 products are made."""

    kernel: str
    heads: int
    n: int
    d: int
    products: str
    tile: Tile
    splits: int | None = None
    dq_sum: str = "tma"

    @property
    def problem(self) -> tuple[int, int, int, str]:
        """What the candidates of one search have in common, but for the kernel."""
        return self.heads, self.n, self.d, self.products

    @property
    def dtype(self) -> str:
        """The dtype of the tensors."""
        return "bf16" if self.products == "bf16" else "fp32"

    def case(self) -> dict:
        """As bench/flash_compile.py takes it."""
        side = "forward" if self.kernel == "forward" else "backward"
        variant = "one_pass" if self.kernel == "one_pass" else "two_pass"
        tiles = {self.kernel: dataclasses.asdict(self.tile)}
        case = {"pass": side, "backward": variant, "dtype": self.dtype, "d": self.d, "n": [self.n, self.n]}
        products = None if self.dtype == "bf16" else self.products
        return case | {
            "heads": self.heads, "tiles": tiles, "dq_sum": self.dq_sum, "products": products, "splits": self.splits
        }  # fmt: skip


def tile_of(text: str) -> Tile:
    """A tile from its short form in CANDIDATES."""
    own, streamed, warps, stages, *kind = text.split(",")
    registers = next((int(one[1:]) for one in kind if one.startswith("r")), None)
    sizes = (int(own), int(streamed), int(warps), int(stages))
    flags: dict[str, Any] = {"tma": "p" not in kind, "ahead": "a" in kind, "held": kind.count("h")}
    return Tile(*sizes, registers=registers, **flags)


def short(tile: Tile) -> str:
    """The short form of a tile."""
    kind = "" if tile.tma else ",p"
    kind += ",a" if tile.ahead else ""
    kind += ",h" * tile.held
    kind += f",r{tile.registers}" if tile.registers else ""
    return f"{tile.own},{tile.streamed},{tile.warps},{tile.stages}{kind}"


def searches(quick: bool) -> Iterator[list[Job]]:
    """The candidates, a list for each problem and kernel, the most wanted first."""
    problems = [(16, 16384, 64, "bf16"), (1, 65536, 128, "bf16")]
    lengths = (4096, 16384) if quick else (4096, 16384, 8192, 32768, 65536, 2048, 1024)
    problems += [(1, n, d, "bf16") for n in lengths for d in (64, 128) if (1, n, d, "bf16") not in problems]
    if not quick:
        single = ("tf32x3", "tf32", "ieee")
        problems += [(1, n, d, products) for n in (1024, 4096) for products in single for d in (64, 128)]
        problems += [(1, 16384, d, products) for products in single[:2] for d in (64, 128)]
    wanted = [(problem, kernel) for problem in problems for kernel in KERNELS]
    for (heads, n, d, products), kernel in wanted:
        width = "narrow" if d <= 64 else "wide"
        texts = CANDIDATES[width if products == "bf16" else products][kernel].split()
        jobs = [Job(kernel, heads, n, d, products, tile_of(text)) for text in texts]
        if kernel == "one_pass" and products == "bf16":
            jobs += [dataclasses.replace(job, dq_sum="atomics") for job in jobs[:1]]
        yield jobs


def with_splits(results: list[dict]) -> list[Job]:
    """The two best tiles of a search of few programs again, each with several numbers of splits."""
    best = [result for result in results if "ms" in result][:2]
    jobs = [job_from(result["job"]) for result in best]
    fits = [job for job in jobs if job.n // 128 * job.heads < SPLIT_BELOW]
    return [
        dataclasses.replace(job, splits=splits) for job in fits for splits in SPLITS if splits * SHORTEST_SPLIT <= job.n
    ]


def job_from(fields: dict) -> Job:
    """The job that dataclasses.asdict made these fields of."""
    return Job(**{**fields, "tile": Tile(**fields["tile"])})


def cases_to_compile(planned: list[list[Job]]) -> list[dict]:
    """Cases of bench/flash_compile.py that hold all that the jobs compile, each once, in the jobs' order.

    Few programs come split and whole: the rule chooses by the length, and with_splits tries both. The length itself
    makes no difference.
    """
    cases: dict[tuple, dict] = {}
    for job in (job for jobs in planned for job in jobs):
        few = job.heads * job.n // 128 < SPLIT_BELOW
        for splits in (2, 1) if few else (1,):
            cases.setdefault(
                dataclasses.astuple(dataclasses.replace(job, n=0, splits=splits)),
                dataclasses.replace(job, splits=splits).case(),
            )
    return list(cases.values())


def precompile(cases: list[dict], capability: int, seconds: float) -> None:
    """Compile cases (as bench/flash_compile.py takes them) into Triton's cache, with as many processes as cores."""
    count = max(1, min(16, (os.cpu_count() or 2) - 2))
    with tempfile.TemporaryDirectory() as scratch:
        workers = []
        for index in range(count):
            file = Path(scratch) / f"{index}.json"
            file.write_text(json.dumps(cases[index::count]))
            command = [sys.executable, str(ROOT / "bench" / "flash_compile.py"), str(capability), f"@{file}"]
            environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
            quiet = subprocess.DEVNULL
            workers.append(subprocess.Popen(command, stdout=quiet, stderr=quiet, env=environment))
        end = time.monotonic() + seconds
        for worker in workers:
            try:
                worker.wait(max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()


class Bench:
    """The measuring process, started again whenever it hangs or dies. serve: what it runs."""

    def __init__(self, serve: Callable[[Connection], None]) -> None:
        self._serve = serve
        self._process: BaseProcess | None = None

    def run(self, job: Job) -> dict:
        """The result of one job: {"job", "ms", "error", …} or {"job", "failed"}."""
        fields, patience_s = dataclasses.asdict(job), PATIENCE_S
        if self._process is None:
            context, patience_s = multiprocessing.get_context("spawn"), START_PATIENCE_S
            self._pipe, other = context.Pipe()
            self._process = context.Process(target=self._serve, args=(other,), daemon=True)
            self._process.start()
            other.close()
        try:
            self._pipe.send(job)
            if self._pipe.poll(patience_s):
                result: dict = self._pipe.recv()
            else:
                result = {"stuck": True, "failed": f"no answer in {patience_s:.0f} s: it hangs"}
        except (EOFError, OSError):
            result = {"stuck": True, "failed": "the measuring process died"}
        if result.get("stuck"):
            self.stop()
        return {"job": fields} | result

    def stop(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._pipe.close()
            self._process = None


def tune(quick: bool, seconds: float, capability: int, keep: Callable[[list[dict]], None]) -> list[dict]:
    """Search within so many seconds; all results, the best first in each search.

    Each search's results are printed as it ends, and keep() is called with all there are so far.
    """
    end = time.monotonic() + seconds
    planned = list(searches(quick))
    started = time.monotonic()
    cases = cases_to_compile(planned)
    precompile(cases, capability, seconds / 3)
    print(f"{len(cases)} cases compiled in {time.monotonic() - started:.0f} s", flush=True)
    bench = Bench(serve)
    found: list[dict] = []
    try:
        for jobs in planned:
            if time.monotonic() > end:
                print("out of time: " + " ".join(str(part) for part in (*jobs[0].problem, jobs[0].kernel)), flush=True)
                continue
            results = _search(bench, jobs, end)
            results = _ordered([*results, *_search(bench, with_splits(results), end)])
            found += results
            _print(results)
            keep(found)
    finally:
        bench.stop()
    return found


def _search(bench: Bench, jobs: list[Job], end: float) -> list[dict]:
    results: list[dict] = []
    for job in jobs:
        if time.monotonic() < end:
            results.append(bench.run(job))
    return _ordered(results)


def _ordered(results: list[dict]) -> list[dict]:
    return sorted(results, key=lambda result: result.get("ms", float("inf")))


def _print(results: list[dict]) -> None:
    if not results:
        return
    job = job_from(results[0]["job"])
    print(f"\n{job.kernel}: {job.heads} heads, {job.n} x {job.d}, {job.products}, causal")
    rows = []
    for result in results:
        one = job_from(result["job"])
        splits = one.splits or f"rule: {result['splits']}" if "splits" in result else one.splits
        tail = [result.get("ms"), result.get("tflops"), result.get("error"), result.get("failed", "")[:70]]
        rows.append([short(one.tile), one.dq_sum if one.kernel == "one_pass" else "", splits, *tail])
    headers = ["own,streamed,warps,stages", "dQ", "splits", "ms", "TFLOP/s", "error", "failed"]
    print(tabulate(rows, headers, floatfmt=".4g"), flush=True)


def serve(pipe: Connection) -> None:
    """Measure the jobs that come through the pipe, and send the result of each."""
    from bench.flash_jobs import measure

    while True:
        job = pipe.recv()
        try:
            result = measure(job, SAMPLES)
        except Exception as error:
            message = (str(error).splitlines() or [""])[0]
            # the device may be unusable for this process from now on
            result = {"failed": f"{type(error).__name__}: {message}", "stuck": "CUDA" in str(error)}
        pipe.send(result)
