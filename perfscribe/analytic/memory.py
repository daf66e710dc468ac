"""Memory models, in bytes. Every function returns a dict, item to bytes, so that a report can name each term.

The numbers correspond to torch.cuda.memory_allocated and max_memory_allocated: live tensors, without the allocator's
cache, the CUDA context or fragmentation.
"""

from collections.abc import Callable, Sequence
from typing import Literal

from perfscribe.analytic.ledger import Items, Ledger
from perfscribe.analytic.parameters import transformer_tensors
from perfscribe.analytic.replay import RESIDUAL, Replay
from perfscribe.analytic.shapes import Shape
from perfscribe.analytic.workload import Workload

Optimizer = Literal["foreach", "for-loop"]

PARAMETERS = "parameters"
BUFFERS = "mask and rotary tables"
TOKENS = "tokens and targets"
STATE = "AdamW state"
OPTIMIZER_TEMPORARIES = "AdamW temporaries"
WORKSPACE = "cuBLAS workspace"

# PyTorch allocates a workspace for each cuBLAS handle (one per thread and stream: the program's and autograd's) in its
# caching allocator and never frees it. This size is the default from compute capability 9.0 on
# (aten/src/ATen/cuda/CublasHandlePool.cpp; CUBLAS_WORKSPACE_CONFIG changes it); before 9.0 it is 8.125 MiB.
CUBLAS_WORKSPACE_BYTES = 32 * 2**20


def total_bytes(items: Items) -> int:
    """Return the sum over the items."""
    return sum(items.values())


def residual_stream_bytes(shape: Shape, batch: int, seq_len: int) -> int:
    """Return the bytes of one tensor of the residual stream, (batch, seq_len, d_model) in fp32."""
    return 4 * batch * seq_len * shape.d_model


def attention_matrix_bytes(batch: int, heads: int, seq_len: int, element_bytes: int = 4) -> int:
    """Return the bytes of one N×N matrix of a layer, (batch, heads, seq_len, seq_len)."""
    return element_bytes * batch * heads * seq_len * seq_len


def saved_for_backward(load: Workload) -> Items:
    """Return what autograd keeps after a forward pass with loss, except parameters, buffers, tokens and targets."""
    ledger = Ledger(load.granularity_bytes)
    replay = Replay(load, ledger, keep=True)
    ledger.free(replay.cross_entropy(replay.model()))
    return ledger.live


def saved_by_block(load: Workload) -> Items:
    """Return what autograd keeps of one block, its input included, except parameters and buffers."""
    ledger = Ledger(load.granularity_bytes)
    out, _ = Replay(load, ledger, keep=True).block(ledger.new(RESIDUAL, load.stream_bytes))
    ledger.free(out)
    return ledger.live


def inference_peak(load: Workload) -> Items:
    """Return the peak of a forward pass under torch.no_grad() that returns the logits."""
    ledger = before_pass(load)
    Replay(load, ledger, keep=False).model()
    return ledger.peak


def forward_peak(load: Workload) -> Items:
    """Return the peak of a forward pass through next_token_loss that keeps its graph."""
    ledger = before_pass(load)
    replay = Replay(load, ledger, keep=True)
    replay.cross_entropy(replay.model())
    return ledger.peak


def step_phase_peaks(
    load: Workload, optimizer: Optimizer = "foreach", block_size: float | None = None
) -> dict[str, Items]:
    """Return the peak of each phase of a training step (forward with loss, backward, AdamW) from the second step on.

    optimizer: implementation of torch.optim.AdamW. foreach (PyTorch's default on CUDA) holds the square roots of all
    second moments while it updates; for-loop (the default on the CPU) up to three tensors at a time. Gradients are set
    to None between steps. block_size: layers that backward recomputes as one; None: no layer.
    """
    ledger = before_pass(load)
    sizes = transformer_tensors(load.shape)
    hold_state(ledger, sizes, load.device)
    replay = Replay(load, ledger, keep=True)
    phases: dict[str, Callable[[], object]] = {
        "forward": lambda: replay.cross_entropy(replay.model(block_size)),
        "backward": replay.backward,
        "optimizer": lambda: adamw_temporaries(ledger, sizes, optimizer),
    }
    peaks = {}
    for name, run in phases.items():
        ledger.forget_peak()
        run()
        peaks[name] = ledger.peak
    return peaks


def hold_state(ledger: Ledger, sizes: Sequence[int], device: str) -> None:
    """Allocate AdamW's moments for tensors with these numbers of elements; on the CPU also its step counters."""
    for size in sizes:
        for _ in range(2):
            ledger.new(STATE, 4 * size)
        if device == "cpu":
            ledger.new(STATE, 4)


def adamw_temporaries(ledger: Ledger, sizes: Sequence[int], optimizer: Optimizer) -> None:
    """Allocate AdamW's temporaries for tensors of these sizes (see step_phase_peaks); some stay alive."""
    if optimizer == "foreach":
        for size in sizes:
            ledger.new(OPTIMIZER_TEMPORARIES, 4 * size)
        return
    denominator = ledger.new(OPTIMIZER_TEMPORARIES, 0)
    for size in sizes:
        root, quotient = (ledger.new(OPTIMIZER_TEMPORARIES, 4 * size) for _ in range(2))
        ledger.free(root, denominator)
        denominator = quotient


def before_pass(load: Workload) -> Ledger:
    """Return a ledger with everything alive before a pass, except optimizer state."""
    ledger = Ledger(load.granularity_bytes)
    for size in transformer_tensors(load.shape):
        ledger.new(PARAMETERS, 4 * size)
    ledger.new(BUFFERS, load.seq_len**2)
    for _ in range(2):
        ledger.new(BUFFERS, 4 * load.seq_len * load.shape.head_dim // 2)
        ledger.new(TOKENS, 8 * load.tokens)
    if load.device == "cuda":
        for _ in range(load.cublas_handles):
            ledger.new(WORKSPACE, CUBLAS_WORKSPACE_BYTES)
    return ledger
