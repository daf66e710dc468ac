"""Kernel families: classifies kernels by name."""

from __future__ import annotations

import re
from functools import cache

from perfscribe.instruments.profiling.trace import Trace, process_and_thread

GEMM, ELEMENTWISE, REDUCTION, SOFTMAX = "gemm", "elementwise", "reduction", "softmax"
COPY, OPTIMIZER, COMMUNICATION, OTHER = "copy", "optimizer", "communication", "other"
FAMILIES = (GEMM, ELEMENTWISE, REDUCTION, SOFTMAX, COPY, OPTIMIZER, COMMUNICATION, OTHER)

# Gloo has no kernels; its threads mark collectives by ranges whose names start with this.
GLOO = "gloo:"

# The first rule that matches the name decides. Names are those of nsys (demangled, `<unnamed>`), of the torch profiler
# (`(anonymous namespace)`) and, on a CPU, of torch's operators (aten::).
RULES: tuple[tuple[str, str], ...] = (
    # NCCL's kernels of any version (ncclKernel_, ncclDevKernel_, ncclSymkDevKernel_); gloo's operators
    (r"(?i)^(void )?nccl", COMMUNICATION),
    (r"^(gloo|c10d|record_param_comms)\b", COMMUNICATION),
    # symmetric-memory and one-shot collectives of torch and of inference engines
    (r"(multimem|one_shot|two_shot|cross_device)_(all_)?(reduce|gather)", COMMUNICATION),
    # copies and sets of whole tensors by the driver, as nsys and the torch profiler name them
    (r"^\[CUDA mem(cpy|set)|^Mem(cpy|set) ", COPY),
    # foreach operators, which torch's optimizers consist of; a foreach copy (of a graph's inputs) is a copy
    (r"multi_tensor_apply_kernel<.*\bCopy<", COPY),
    (r"multi_tensor_apply_kernel|[Ff]used_?[Aa]dam|^aten::_(foreach|fused_(adam|sgd|adagrad))", OPTIMIZER),
    # fused attention counts as matrix products, most of its arithmetic: FlashAttention, cuDNN, CUTLASS, FlexAttention
    (r"(?i)flash_?(fwd|bwd|attn)|fmha|_sdpa_|flex_attention|^aten::_?(scaled_dot_product|flash|efficient)", GEMM),
    # softmax and log-softmax, and compiled kernels that contain one (they reduce rows as well)
    (r"(?i)softmax", SOFTMAX),
    # cuBLASLt's separate epilogues add a bias and apply an activation
    (r"cublasLt::epilogue", ELEMENTWISE),
    # matrix products of cuBLAS, CUTLASS, cuDNN and compiled templates, including their sums over split K; cuBLAS'
    # vector products (gemv, dot_kernel) have its gemv types among their parameters
    (r"(?i)gemm|gemv|nvjet|xmma|splitkreduce|cutlass.*(tensorop|simt)|^triton_(mm|bmm|tem)(_|$)", GEMM),
    (r"(?i)winograd|convolve", GEMM),
    (r"^(aten|mkl|mkldnn)::_?(mm|addmm|bmm|baddbmm|matmul|linear|addbmm|addmv|mv|dot|einsum)(_|\b)", GEMM),
    (r"^(aten|mkldnn)::_?(mkl_|mkldnn_)?(convolution|linear|conv\dd|thnn_conv)", GEMM),
    # sums of gradients by index (embedding), losses, norms, scans, sorts
    (r"embedding_(dense_)?backward|embedding_.*grad|compute_grad_weight|sum_and_scatter|krn_partial", REDUCTION),
    (r"nll_loss|ClassNLLCriterion|cross_entropy", REDUCTION),
    # copies by the SMs: dtype casts, transposes made contiguous, concatenations, fills, gathers and scatters by index
    (
        r"direct_copy_kernel|(float|half|bfloat)[\w]*_copy_kernel|copy_device_to_device|CatArray|FillFunctor|\bCopy<",
        COPY,
    ),
    (r"(?i)index_?select|index_elementwise_kernel|gather_kernel|scatter_gather|indexFunc|split_with_sizes_copy", COPY),
    (r"^aten::_?(copy|clone|contiguous|to|to_copy|cat|stack|fill|zero|zeros|ones|full|pin_memory)(_|_like)?$", COPY),
    (r"^aten::_?(index|index_(select|put|copy|add|fill)(_impl)?|gather|scatter(_add)?|embedding|take)_?$", COPY),
    # reductions of torch, cub and compiled kernels (red: in a loop, per: in one go)
    (
        r"reduce_kernel|ReduceOp|DeviceReduce|[Ww]elford|layer_?norm|LayerNorm|rms_?norm|RMSNorm|RowwiseMoments",
        REDUCTION,
    ),
    (
        r"GammaBeta|triton_(red|per)_fused|tensor_kernel_scan|DeviceScan|cumsum|RadixSort|gatherTopK|argm(ax|in)",
        REDUCTION,
    ),
    (
        r"^aten::_?(sum|mean|var|std|norm|prod|a?max|a?min|all|any|argmax|argmin|cumsum|logsumexp|topk|sort)\b",
        REDUCTION,
    ),
    (r"^aten::_?(native_(layer|group|batch)_norm|rms_norm|fused_rms_norm|linalg_vector_norm|var_mean)", REDUCTION),
    # everything else that torch computes element by element, and compiled pointwise kernels
    (r"elementwise_kernel|Functor|kernelPointwiseApply|triton_poi_fused|cpp_fused", ELEMENTWISE),
    (r"(?i)triu_tril|dropout|arange|masked_|distribution_|bernoulli|rope|silu|gelu", ELEMENTWISE),
    (
        r"^aten::_?(add|sub|rsub|mul|div|neg|exp|log|sqrt|rsqrt|square|pow|abs|sign|reciprocal|sin|cos|tanh|sigmoid|"
        r"silu|gelu|relu|threshold|where|clamp|maximum|minimum|lerp|addcmul|addcdiv|eq|ne|lt|le|gt|ge|logical|bitwise|"
        r"isnan|isfinite|normal|uniform|random|exponential|triu|tril|outer|trunc_normal|erf|amp_)(_|\b)",
        ELEMENTWISE,
    ),
)


@cache
def family(name: str) -> str:
    """Return the family of a kernel, copy or operator; OTHER if no rule matches."""
    return next((kind for expression, kind in RULES if re.search(expression, name)), OTHER)


def require_communication(trace: Trace, ranks: int) -> None:
    """Raise ValueError if a trace of several ranks has no communication kernel: then it saw one rank, or none."""
    if ranks > 1 and not any(family(kernel.name) == COMMUNICATION for kernel in trace.kernels):
        processes = {process_and_thread(kernel.launch_thread)[0] for kernel in trace.kernels if kernel.launch_thread}
        raise ValueError(
            f"a trace of {ranks} ranks without a communication kernel: {len(trace.kernels)} kernels"
            f" of {len(processes)} processes by {trace.tool}"
        )
