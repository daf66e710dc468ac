"""CS336's problem communication_accounting (spring 2025) as arithmetic: each step is a line with its formula.

The model has L blocks of two linear layers, D to F and F to D, without attention, embeddings or activation functions.
Master weights, accumulated gradients and AdamW's two moments are fp32; activations and communicated data are bf16.
T is the number of tokens in a batch. Times and bounds follow "How to Scale Your Model" (jax-ml.github.io/scaling-book,
part 5): per linear pair of a forward pass on N = X Y devices, X for FSDP and Y for tensor parallelism,

    compute   4 T D F / (X Y C)
    FSDP      gathers the weights:              4 D F / (Y W M_X)
    TP        gathers and scatters activations: 4 T D / (X W M_Y)

with C the FLOP/s of a device, W the bandwidth of a mesh axis, and M_X, M_Y the mesh axes given to each. The book's
bound is for the best X and Y; the problem's X and Y give another one, so both are here.
"""

import math
from dataclasses import dataclass

GIB = 2**30
FP32_BYTES, BF16_BYTES = 4, 2
FP32_COPIES = 4  # master weights, accumulated gradients, AdamW's two moments


@dataclass(frozen=True)
class Inputs:
    """Inputs of the problem: the handout's, except tokens (T), a published solution's as the handout leaves it open.

    device_memory_gb, fsdp_memory_gb: nominal memory of a device in parts a and b. gb_bytes: bytes in one such GB, 2^30
    as in the published solution, or 10^9. sharded_activations: share of them that FSDP divides. Symbols: d_model D,
    d_ff F, blocks L, bandwidth_bytes_per_s W (both directions together), flop_per_s C, fsdp_devices X,
    tensor_devices Y, fsdp_axes M_X, tensor_axes M_Y.
    """

    d_model: int = 16384
    d_ff: int = 53248
    blocks: int = 126
    tokens: int = 128 * 1024
    device_memory_gb: float = 80.0
    fsdp_memory_gb: float = 95.0
    gb_bytes: int = GIB
    sharded_activations: float = 0.5
    bandwidth_bytes_per_s: float = 2 * 9e10
    flop_per_s: float = 4.6e14
    fsdp_devices: int = 16
    tensor_devices: int = 4
    fsdp_axes: int = 2
    tensor_axes: int = 1


@dataclass(frozen=True)
class Line:
    """One step of the solution, in part a, b, c or d. name: its unique key; quantity: the same in words.

    value: in `unit`, "1" for a plain number; None if there is none, and formula then gives the reason.
    """

    part: str
    name: str
    quantity: str
    formula: str
    value: float | None
    unit: str


def account(inputs: Inputs) -> list[Line]:
    """Return all steps of parts a, b and c, in order; step names are unique."""
    return [*_one_device(inputs), *_sharded(inputs), *_compute_bound(inputs)]


def parameters(inputs: Inputs) -> int:
    """Return the number of weights in all blocks."""
    return 2 * inputs.blocks * inputs.d_model * inputs.d_ff


def state_bytes(inputs: Inputs) -> int:
    """Return the bytes of master weights, gradients and moments in fp32."""
    return FP32_COPIES * FP32_BYTES * parameters(inputs)


def activation_bytes(inputs: Inputs) -> int:
    """Return the bytes saved for backward: the input of each linear layer, in bf16."""
    return BF16_BYTES * inputs.blocks * (inputs.d_model + inputs.d_ff) * inputs.tokens


def _one_device(inputs: Inputs) -> list[Line]:
    """Part a: memory without sharding, and the number of devices that together have that much."""
    state, saved = state_bytes(inputs), activation_bytes(inputs)
    device = inputs.device_memory_gb * inputs.gb_bytes
    alone, both = math.ceil(state / device), math.ceil((state + saved) / device)
    return [
        Line("a", "parameters", "Parameters P", "2 L D F", parameters(inputs), "1"),
        Line("a", "state", "Weights, gradients, two moments in fp32: S", "4 x 4 B x P", state / GIB, "GiB"),
        Line(
            "a", "saved_per_token", "Saved for backward in bf16, a token", "2 B x L (D + F)", saved / inputs.tokens, "B"
        ),
        Line("a", "saved", "Saved for backward in bf16, T tokens: A", "2 B x L (D + F) T", saved / GIB, "GiB"),
        Line("a", "devices_state", "Devices for S alone", "ceil(S / memory)", alone, "devices"),
        Line("a", "devices", "Devices for S and A", "ceil((S + A) / memory)", both, "devices"),
    ]


def _sharded(inputs: Inputs) -> list[Line]:
    """Part b: the least N_FSDP devices with enough memory if state and a share s of the activations are divided.

    The rest of the activations stays whole on each device. The published solution omits it; both readings are here.
    """
    state, saved, share = state_bytes(inputs), activation_bytes(inputs), inputs.sharded_activations
    limit = inputs.fsdp_memory_gb * inputs.gb_bytes
    divided, rest = state + share * saved, (1 - share) * saved
    needed = _devices(divided, limit - rest)
    formula = "least N: (S + s A) / N + (1 - s) A < memory" if needed else "none: (1 - s) A alone exceeds the memory"
    most = None if rest == 0 else math.floor(limit * inputs.tokens / rest)
    filled = "none: all is divided" if most is None else "memory / ((1 - s) A / T)"
    without = _devices(divided, limit)
    return [
        Line("b", "divided", "Divided among the devices", "S + s A", divided / GIB, "GiB"),
        Line("b", "undivided", "Whole on each device", "(1 - s) A", rest / GIB, "GiB"),
        Line("b", "n_fsdp_state", "N_FSDP for S alone", "least N: S / N < memory", _devices(state, limit), "devices"),
        Line("b", "n_fsdp", "N_FSDP", formula, needed, "devices"),
        Line(
            "b",
            "n_fsdp_divided",
            "N_FSDP without the whole part",
            "least N: (S + s A) / N < memory",
            without,
            "devices",
        ),
        Line("b", "most_tokens", "Tokens whose whole part fills a device", filled, most, "tokens"),
    ]


def _devices(divided_bytes: float, room_bytes: float) -> int | None:
    """Return the least N with divided_bytes / N < room_bytes; None if there is no room."""
    return None if room_bytes <= 0 else math.floor(divided_bytes / room_bytes) + 1


def _compute_bound(inputs: Inputs) -> list[Line]:
    """Part c: the smallest batch for which the forward pass is compute-bound."""
    devices = inputs.fsdp_devices * inputs.tensor_devices
    alpha = inputs.flop_per_s / inputs.bandwidth_bytes_per_s
    best = 4 * alpha**2 / (inputs.fsdp_axes * inputs.tensor_axes * inputs.d_ff)
    best_x = math.sqrt(best * devices * devices * inputs.fsdp_axes / (inputs.d_ff * inputs.tensor_axes))
    # Time of tensor parallelism's communication over that of compute, independent of the batch.
    tensor_share = inputs.tensor_devices * alpha / (inputs.tensor_axes * inputs.d_ff)
    hidden = alpha / (inputs.fsdp_axes * inputs.tensor_devices) if tensor_share <= 1 else None
    summed = alpha / (inputs.fsdp_axes * inputs.tensor_devices) / (1 - tensor_share) if tensor_share < 1 else None
    lines = [
        Line("c", "alpha", "Compute over bandwidth alpha", "C / W", alpha, "FLOP/B"),
        Line("c", "n", "Devices N", "X Y", devices, "devices"),
        Line("c", "best", "Tokens a device, X and Y chosen best", "4 alpha^2 / (M_X M_Y F)", best, "tokens"),
        Line("c", "best_batch", "Batch, X and Y chosen best", "N x tokens a device", best * devices, "tokens"),
        Line("c", "best_x", "X that this needs", "sqrt(T N M_X / (F M_Y))", best_x, "devices"),
        Line("c", "tensor_share", "TP over compute, X and Y as given", "Y alpha / (M_Y F)", tensor_share, "1"),
    ]
    never = "none: TP takes longer than compute at any batch"
    for name, case, formula, tokens in (
        ("summed", "compute = FSDP + TP", "alpha / (M_X Y) / (1 - TP over compute)", summed),
        ("hidden", "compute = max(FSDP, TP)", "alpha / (M_X Y)", hidden),
    ):
        batch = None if tokens is None else tokens * devices
        shown = (never, never) if tokens is None else (formula, "N x tokens a device")
        lines.append(Line("c", name, f"Tokens a device, X and Y as given, {case}", shown[0], tokens, "tokens"))
        lines.append(Line("c", f"{name}_batch", f"Batch, X and Y as given, {case}", shown[1], batch, "tokens"))
    return lines
