"""The traced forward pass of attention."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from perfscribe.experiments.cs336.attention import measure
from perfscribe.experiments.cs336.attention.passes import Passes
from perfscribe.instruments.profiling import torch_profiler
from perfscribe.instruments.profiling.trace import Kernel

SOFTMAX = "void at::native::(anonymous namespace)::cunn_SoftMaxForward<4, float, float>(float*)"


def test_kernels_of_a_traced_pass_are_softmax_s_and_the_matmuls_per_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    lasting_ns = {"sm80_xmma_gemm_f32f32": 3_000_000, SOFTMAX: 2_000_000, "vectorized_elementwise_kernel": 1_000_000}

    @contextmanager
    def recording(device: str) -> Iterator[SimpleNamespace]:
        kernels = [Kernel(name, 0, ns, 0, 0, 0) for name, ns in lasting_ns.items() for _ in range(measure.TRACED)]
        yield SimpleNamespace(trace=SimpleNamespace(kernels=kernels))

    monkeypatch.setattr(torch_profiler, "recording", recording)
    found = measure._kernels(Passes((1, 4, 4), "fp32", "cpu"))
    assert found == {"softmax_kernel": "cunn_SoftMaxForward", "softmax_kernel_ms": 2.0, "matmul_kernels_ms": 3.0}
