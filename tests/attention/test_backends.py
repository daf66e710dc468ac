"""The table of attention's implementations: each against float64, what each needs, and why one refuses."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from attention_reference import definition

from perfscribe.attention import backends
from perfscribe.base.cells import Unsupported

CASES = [(name, True) for name in ("eager", "tiled", "sdpa_flash", "sdpa_math", "compiled")] + [("compiled", False)]


@pytest.fixture
def without_inductor(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """torch.compile without its compiler, which takes seconds for each shape; Dynamo and AOTAutograd stay."""
    compiled = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function, **how: compiled(function, backend="aot_eager", **how))
    import torch._functorch.config as settings

    kept = settings.donated_buffer
    yield
    settings.donated_buffer = kept
    torch._dynamo.reset()


@pytest.mark.parametrize(("name", "causal"), CASES)
def test_output_and_gradients_are_those_of_float64(name: str, causal: bool, without_inductor: None) -> None:
    call = backends.make_call(name, "cpu", torch.float32, 32, causal)
    torch.manual_seed(0)
    for length in (40, 33):  # a second shape: the mask kept from the first does not fit
        leaves = [torch.randn(2, 3, length, 32, requires_grad=True) for _ in range(3)]
        d_out = torch.randn(2, 3, length, 32)
        out, (expected, _, *gradients) = call(*leaves, causal), definition(*leaves, causal, d_out)
        torch.testing.assert_close(out.double(), expected, rtol=1e-4, atol=1e-5)
        for _ in range(2):  # backward again over one forward pass, as timing it alone does
            for got, right in zip(torch.autograd.grad(out, leaves, d_out, retain_graph=True), gradients, strict=True):
                torch.testing.assert_close(got.double(), right, rtol=1e-4, atol=1e-5)


def test_what_cannot_run_says_so() -> None:
    with pytest.raises(Unsupported, match="runs on cuda, not on cpu"):
        backends.make_call("triton", "cpu", torch.float32, 64, True)
    assert backends.named("triton").requires("cpu") == ("cuda", "triton")
    assert backends.named("triton").requires("cuda") == ("triton",)
    with pytest.raises(Unsupported, match="multiple of 8 from 16 to 128, not 20"):
        backends.make_call("tiled", "cpu", torch.float32, 20, True)


# What torch 2.11 warns of, shortened: the kernel asked for cannot take the dtype, the others are switched off.
WARNED = [
    "Memory efficient kernel not used because: (Triggered internally at /pytorch/aten/sdp_utils.cpp:971.)",
    "Memory Efficient attention has been runtime disabled. (Triggered internally at /pytorch/aten/sdp.h:559.)",
    "Flash attention kernel not used because: (Triggered internally at /pytorch/aten/sdp_utils.cpp:973.)",
    "Expected query, key and value to all be of dtype: {Half, BFloat16}. Got Query dtype: float, Key dtype: float. "
    "(Triggered internally at /pytorch/aten/sdp_utils_cpp.h:91.)",
    "cuDNN attention kernel not used because: (Triggered internally at /pytorch/aten/sdp_utils.cpp:975.)",
    "cuDNN attention has been runtime disabled. (Triggered internally at /pytorch/aten/sdp_utils.cpp:570.)",
]
NO_KERNEL = "No available kernel. Aborting execution."


def test_the_reason_is_that_of_the_backend_asked_for() -> None:
    flash = backends.reason_from(NO_KERNEL, WARNED, "FLASH_ATTENTION")
    assert flash.startswith("Expected query, key and value to all be of dtype: {Half, BFloat16}. Got Query")
    assert "Triggered" not in flash and "disabled" not in flash
    assert backends.reason_from(NO_KERNEL, WARNED, "CUDNN_ATTENTION") == "cuDNN attention has been runtime disabled"
    assert backends.reason_from(NO_KERNEL, WARNED[:2], "FLASH_ATTENTION") == "No available kernel. Aborting execution"
    assert backends.reason_from("", [], "FLASH_ATTENTION") == "no reason given"


def test_a_refusal_is_unsupported_and_other_errors_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked of torch itself: cuDNN's backend, which there is for GPUs alone, and a call that is broken."""
    name = "sdpa_cudnn"
    anywhere = replace(backends.named(name), devices=("cpu",))
    monkeypatch.setitem(backends.IMPLEMENTATIONS, name, anywhere)
    with pytest.raises(Unsupported, match="No viable backend"):
        backends.make_call(name, "cpu", torch.float32, 32, True)

    def broken(*_: Any) -> torch.Tensor:
        raise RuntimeError("CUDA error: an illegal memory access")

    monkeypatch.setitem(backends.IMPLEMENTATIONS, name, replace(anywhere, make=lambda: broken))
    with pytest.raises(RuntimeError, match="illegal memory access"):
        backends.make_call(name, "cpu", torch.float32, 32, True)
