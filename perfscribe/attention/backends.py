"""The implementations of attention that are compared, by name, and their requirements.

Each is a differentiable call(q, k, v, is_causal) on tensors (batch, heads, n, d) that returns (batch, heads, n, d).
A causal query i sees keys j <= i, aligned top left. Importing this module does not import torch.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from perfscribe.base.cells import Unsupported

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Call = Callable[["Tensor", "Tensor", "Tensor", bool], "Tensor"]

# Sequence length used to test whether a backend of scaled_dot_product_attention runs.
PROBED_LENGTH = 128
# Prefixes of torch's errors for a backend that cannot run, as opposed to one that failed.
REFUSALS = ("No available kernel", "No viable backend", "cuDNN Frontend error")
_HEADER = re.compile(r"(.*?) (?:attention )?kernel not used because:?\s*$", re.IGNORECASE)


@dataclass(frozen=True)
class Implementation:
    """One implementation of attention.

    name, title: in records and in tables. make: imports what it needs and returns a fresh call, which compiles at its
    first use, if at all, and caches the last mask, if it takes one. devices: supported devices. capabilities:
    names from plan/capabilities.py, beyond those of the device. head_dims: supported values of d; None: any. sdpa: the
    only member of torch.nn.attention.SDPBackend that it allows; "" if it is no SDPA.
    """

    name: str
    title: str
    make: Callable[[], Call]
    devices: tuple[str, ...] = ("cpu", "cuda")
    capabilities: tuple[str, ...] = ()
    head_dims: range | None = None
    sdpa: str = ""

    def lack(self, device: str, head_dim: int) -> str:
        """Return why it cannot run there, as far as is known without asking torch; else empty."""
        if device not in self.devices:
            return f"{self.title} runs on {' and '.join(self.devices)}, not on {device}"
        if self.head_dims is not None and head_dim not in self.head_dims:
            allowed = f"a multiple of {self.head_dims.step} from {self.head_dims.start} to {self.head_dims[-1]}"
            return f"{self.title} takes a head dimension of {allowed}, not {head_dim}"
        return ""

    def requires(self, device: str) -> tuple[str, ...]:
        """Return the capabilities that a cell on this device needs in addition to those of device and dtype."""
        needs_gpu = ("cuda",) if device not in self.devices else ()
        return (*needs_gpu, *self.capabilities)


def _last_mask(make: Callable[[int, int, torch.device], Any]) -> Callable[[Tensor, Tensor], Any]:
    """Return a function that gives the causal mask (n, m) of q and k and caches it for the last shape."""
    kept: dict[tuple[Any, ...], Any] = {}

    def mask(q: Tensor, k: Tensor) -> Any:
        shape = (q.shape[-2], k.shape[-2], q.device)
        if shape not in kept:
            kept.clear()
            kept[shape] = make(*shape)
        return kept[shape]

    return mask


def _with_mask(attention: Callable[..., Tensor]) -> Call:
    """Return a call that passes `attention` a boolean mask (n, m)."""
    import torch

    mask = _last_mask(lambda n, m, device: torch.ones((n, m), dtype=torch.bool, device=device).tril_())
    return lambda q, k, v, is_causal: attention(q, k, v, mask(q, k) if is_causal else None)


def _eager() -> Call:
    from perfscribe.attention.eager import scaled_dot_product_attention

    return _with_mask(scaled_dot_product_attention)


def _compiled() -> Call:
    import torch

    from perfscribe.attention.eager import scaled_dot_product_attention

    _keep_buffers()
    return _with_mask(torch.compile(scaled_dot_product_attention, fullgraph=True, dynamic=False))


def _keep_buffers() -> None:
    """Allow several compiled backward passes over one forward pass, which timing backward separately needs.

    By default AOTAutograd lets backward overwrite what forward saved, and rejects retain_graph.
    """
    import torch._functorch.config

    torch._functorch.config.donated_buffer = False


def _tiled() -> Call:
    from perfscribe.attention.tiled import FlashAttentionTorch

    return lambda q, k, v, is_causal: FlashAttentionTorch.apply(q, k, v, is_causal)  # type: ignore[no-untyped-call, no-any-return]


def _triton() -> Call:
    from perfscribe.attention.triton_kernels import FlashAttentionTriton

    return FlashAttentionTriton.apply  # type: ignore[no-any-return]


def _triton_ieee() -> Call:
    from perfscribe.attention.triton_configs import using

    plain = _triton()

    def call(q: Tensor, k: Tensor, v: Tensor, is_causal: bool) -> Tensor:
        with using(float32_products="ieee"):
            return plain(q, k, v, is_causal)

    return call


def _sdpa(backend: str) -> Callable[[], Call]:
    """Return a make function for scaled_dot_product_attention restricted to this backend."""

    def make() -> Call:
        from torch.nn import functional
        from torch.nn.attention import SDPBackend, sdpa_kernel

        only = [SDPBackend.__members__[backend]]

        def call(q: Tensor, k: Tensor, v: Tensor, is_causal: bool) -> Tensor:
            with sdpa_kernel(only):
                return functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal)

        return call

    return make


def _flex() -> Call:
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    _keep_buffers()
    compiled = torch.compile(flex_attention, dynamic=False)

    def sees(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return query >= key

    # None for B and H of create_block_mask: one mask for all batches and heads
    mask = _last_mask(lambda n, m, device: create_block_mask(sees, None, None, n, m, device=str(device)))
    return lambda q, k, v, is_causal: compiled(q, k, v, block_mask=mask(q, k) if is_causal else None)


_OURS = range(16, 129, 8)
_ALL = (
    Implementation("eager", "PyTorch, eager", _eager),
    Implementation("compiled", "PyTorch, compiled", _compiled),
    Implementation("tiled", "tiles in PyTorch (ours)", _tiled, head_dims=_OURS),
    Implementation("triton", "Triton (ours)", _triton, ("cuda",), ("triton",), head_dims=_OURS),
    Implementation(
        "triton_ieee", "Triton (ours), IEEE products", _triton_ieee, ("cuda",), ("triton",), head_dims=_OURS
    ),
    Implementation("sdpa_flash", "SDPA, flash", _sdpa("FLASH_ATTENTION"), sdpa="FLASH_ATTENTION"),
    Implementation("sdpa_cudnn", "SDPA, cuDNN", _sdpa("CUDNN_ATTENTION"), ("cuda",), sdpa="CUDNN_ATTENTION"),
    Implementation(
        "sdpa_efficient", "SDPA, memory-efficient", _sdpa("EFFICIENT_ATTENTION"), ("cuda",), sdpa="EFFICIENT_ATTENTION"
    ),
    Implementation("sdpa_math", "SDPA, math", _sdpa("MATH"), sdpa="MATH"),
    Implementation("flex", "FlexAttention, compiled", _flex, ("cuda",), capabilities=("triton",)),
)
IMPLEMENTATIONS = {implementation.name: implementation for implementation in _ALL}


def named(name: str) -> Implementation:
    """Return the implementation with this name; raises ValueError if there is none."""
    if name not in IMPLEMENTATIONS:
        raise ValueError(f"implementation {name!r}: expected one of {', '.join(IMPLEMENTATIONS)}")
    return IMPLEMENTATIONS[name]


def ours(device: str) -> str:
    """Return the name of this project's implementation for a device."""
    return "triton" if device == "cuda" else "tiled"


def make_call(name: str, device: str, dtype: torch.dtype, head_dim: int, is_causal: bool) -> Call:
    """Return a fresh call of the implementation; raises Unsupported, with the reason, if it cannot run."""
    chosen = named(name)
    lacking = chosen.lack(device, head_dim)
    if lacking:
        raise Unsupported(lacking)
    call = chosen.make()
    if chosen.sdpa:
        _ask(call, device, dtype, head_dim, is_causal, chosen.sdpa)
    return call


def _ask(call: Call, device: str, dtype: torch.dtype, head_dim: int, is_causal: bool, backend: str) -> None:
    """Raise Unsupported, with torch's reason, if a forced backend rejects such tensors.

    Tested by a small forward and backward pass; other errors are raised unchanged.
    """
    import torch

    shape = (1, 1, PROBED_LENGTH, head_dim)
    q, k, v = (torch.randn(shape, device=device, dtype=dtype, requires_grad=True) for _ in range(3))
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            out = call(q, k, v, is_causal)
            torch.autograd.grad(out, (q, k, v), torch.ones_like(out))
        except RuntimeError as error:
            if not str(error).startswith(REFUSALS):
                raise
            reason = reason_from(str(error), [str(warning.message) for warning in warned], backend)
            raise Unsupported(reason) from None


def reason_from(error: str, warned: Iterable[str], backend: str) -> str:
    """Return torch's warnings about this backend in one line, or else the first line of its error.

    For each backend in turn, torch warns `<Backend> kernel not used because:` and then of each reason; backends that
    were not requested are reported as disabled.
    """
    spoken = {"flash": "FLASH_ATTENTION", "memory efficient": "EFFICIENT_ATTENTION", "cudnn": "CUDNN_ATTENTION"}
    reasons: dict[str, None] = {}
    named_backend = ""
    for text in warned:
        line = " ".join(re.sub(r"\(Triggered internally.*", "", text, flags=re.DOTALL).split())
        header = _HEADER.match(line)
        if header:
            named_backend = next((name for words, name in spoken.items() if words in header[1].lower()), "")
        elif named_backend == backend and line:
            reasons[line.rstrip(".")] = None
    return "; ".join(reasons) or (error.splitlines() or ["no reason given"])[0].rstrip(".")
