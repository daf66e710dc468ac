"""One candidate of flash_tune.py: run it, compare it with scaled_dot_product_attention, time it by graph replay."""

from __future__ import annotations

import functools
from collections.abc import Callable
from statistics import median
from typing import TYPE_CHECKING, Any

import torch

from bench.flash_tune import TOLERANCE
from perfscribe.attention import backends, triton_configs
from perfscribe.attention.triton_backward import backward, gradients, padded, row_terms
from perfscribe.attention.triton_forward import Problem, forward
from perfscribe.attention.triton_launches import layout_of
from perfscribe.instruments.graph_timing import CudaGraphs, time_replays

if TYPE_CHECKING:
    from bench.flash_tune import Job

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
# products of n × n × d, each 2 n² d FLOP of which a causal mask leaves half
PRODUCTS = {"forward": 2, "one_pass": 5, "dkdv": 4, "dq": 3}


@functools.cache
def graphs() -> CudaGraphs:
    """What captures graphs, once a process."""
    return CudaGraphs()


@functools.lru_cache(maxsize=1)
def reference(
    heads: int, n: int, d: int, dtype: torch.dtype
) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
    """q, k, v and the gradient of the output; the output and the gradients of q, k and v by torch."""
    torch.manual_seed(0)
    q, k, v, d_out = (torch.randn(1, heads, n, d, device="cuda", dtype=dtype) for _ in range(4))
    name = "sdpa_flash" if dtype == torch.bfloat16 else "sdpa_efficient"
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    out = backends.make_call(name, "cuda", dtype, d, True)(q, k, v, True)
    gradients = torch.autograd.grad(out, (q, k, v), d_out)
    return (q.detach(), k.detach(), v.detach(), d_out), (out.detach(), *gradients)


def problem_of(job: Job) -> Problem:
    """The problem with the candidate's settings; kernels that are not its own keep their defaults."""
    settings = triton_configs.Settings(
        float32_products=None if job.products == "bf16" else job.products,  # type: ignore[arg-type]
        backward="one_pass" if job.kernel == "one_pass" else "two_pass",
        dq_sum=job.dq_sum,  # type: ignore[arg-type]
        splits=None if job.splits is None else {job.kernel: job.splits},
        tiles={job.kernel: job.tile},
    )
    precision = "tf32" if job.products == "bf16" else job.products
    sizes = ((1, job.heads), job.n, job.n, job.d, True, DTYPES[job.dtype], precision)
    return Problem(*sizes, torch.device("cuda"), False, settings)


def measure(job: Job, samples: int) -> dict[str, Any]:
    """ms (median), TFLOP/s, the largest relative error, the number of splits; ValueError: a wrong result."""
    problem = problem_of(job)
    inputs, expected = reference(job.heads, job.n, job.d, problem.dtype)
    make, wanted = _calls(job, problem, inputs, expected)
    results = make()()
    errors = [_error(got, right) for got, right in zip(results, wanted, strict=True)]
    if not all(error <= TOLERANCE[job.products] for error in errors):  # which no NaN is
        raise ValueError("wrong by " + ", ".join(f"{error:.2e}" for error in errors))
    ms = median(time_replays(make, samples=samples, recorder=graphs()).timing.samples_ms)
    flop = PRODUCTS[job.kernel] * job.n**2 * job.d * job.heads
    per_split = problem.split(job.kernel, 16)  # type: ignore[arg-type]
    return {"ms": ms, "tflops": flop / ms / 1e9, "error": max(errors), "splits": -(-job.n // per_split)}


def _calls(
    job: Job, problem: Problem, inputs: tuple[torch.Tensor, ...], expected: tuple[torch.Tensor, ...]
) -> tuple[Callable[[], Callable[[], tuple[torch.Tensor, ...]]], tuple[torch.Tensor, ...]]:
    """What makes a call of the kernel on copies of the inputs, and what the call should return."""
    out, d_q, d_k, d_v = expected

    def make() -> Callable[[], tuple[torch.Tensor, ...]]:
        q, k, v, d_out = (x.clone() for x in inputs)
        layouts = tuple(layout_of(x) for x in inputs)
        attend = forward(problem, *layouts[:3])
        if job.kernel == "forward":
            return lambda: attend(q, k, v)[:1]
        output, logsumexp = attend(q, k, v)
        if job.kernel == "one_pass":
            both = backward(problem, layouts, d_out.stride())  # type: ignore[arg-type]
            return lambda: both(q, k, v, output, logsumexp, d_out)
        n_padded = padded(problem, 128)
        terms = row_terms(problem, n_padded, d_out.stride(), False, False)(output, logsumexp, d_out)
        call = gradients(problem, job.kernel, layouts, n_padded)  # type: ignore[arg-type]
        rest = (terms[0], terms[0]) if job.kernel == "dkdv" else (terms[0],)
        return lambda: call(q, k, v, d_out, *rest)

    wanted = {"forward": (out,), "one_pass": (d_q, d_k, d_v), "dkdv": (d_k, d_v), "dq": (d_q,)}
    return make, wanted[job.kernel]


def _error(got: torch.Tensor, right: torch.Tensor) -> float:
    return float((got.float() - right.float()).norm() / right.float().norm())
