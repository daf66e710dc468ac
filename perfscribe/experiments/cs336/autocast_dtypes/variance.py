"""Mean and variance entirely in one dtype, as a LayerNorm without wider accumulators would compute them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import layer_norm, pad

ROWS = 64  # vectors; results are medians over them
EPS = 1e-5  # torch's default for LayerNorm
OVERFLOW = "overflow"
CONSTANT = "constant inputs"


def variance_values(device: str, dtype_name: str, mean: float, std: float, features: int) -> dict[str, object]:
    """Return errors of mean, variance and torch's layer_norm on ROWS vectors of `features` values from N(mean, std).

    The vectors are drawn on the CPU from torch's global generator, so that all dtypes and devices get the same ones.
    Errors are medians over the rows, against float64 arithmetic on the same rounded inputs, and relative:
    - mean_relative_error; mean_error_over_std, which stays meaningful if the mean is near 0
    - variance_two_pass_relative_error: E[(x - mean)^2]; variance_moments_relative_error: E[x^2] - E[x]^2
    - variance_pairwise_relative_error: two-pass with sums over a binary tree, all others summing from left to right
    - layer_norm_relative_error: Euclidean, of torch's output
    A median that is not finite is "overflow"; one over a standard deviation of 0 is "constant inputs".
    inputs_variance: median of the rounded inputs' variances. not_finite_rows, moments_negative_rows: rows with any
    variance not finite, with the moments' below 0. overflow: whether a variance or layer_norm output is not finite.
    """
    dtype = getattr(torch, dtype_name)
    x = torch.normal(mean, std, (ROWS, features), dtype=torch.float64).to(device).to(dtype)  # (rows, features)
    exact = x.double()
    exact_mean, exact_variance = exact.mean(dim=1), exact.var(dim=1, correction=0)  # (rows,)
    naive_mean = left_to_right_sum(x) / features
    variances = naive_variances(x, naive_mean)
    mean_error = (naive_mean.double() - exact_mean).abs()
    normed = layer_norm(x, (features,), eps=EPS).double()
    exact_normed = layer_norm(exact, (features,), eps=EPS)
    not_finite = ~torch.isfinite(torch.stack(list(variances.values()))).all(dim=0)  # (rows,)
    return {
        "rows": ROWS,
        "inputs_variance": middle(exact_variance),
        "mean_relative_error": middle(mean_error / exact_mean.abs()),
        "mean_error_over_std": middle(mean_error / exact_variance.sqrt(), exact_variance),
        **{
            f"variance_{name}_relative_error": middle(
                ((v.double() - exact_variance) / exact_variance).abs(), exact_variance
            )
            for name, v in variances.items()
        },
        "layer_norm_relative_error": middle(
            (normed - exact_normed).norm(dim=1) / exact_normed.norm(dim=1), exact_variance
        ),
        "not_finite_rows": int(not_finite.sum()),
        "moments_negative_rows": int((variances["moments"] < 0).sum()),
        "overflow": bool(not_finite.any() or not torch.isfinite(normed).all()),
    }


def naive_variances(x: Tensor, mean: Tensor) -> dict[str, Tensor]:
    """Return variances (rows,) of x (rows, features) by method, each operation in x's dtype; mean: (rows,)."""
    features = x.shape[1]
    pairwise_mean = pairwise_sum(x) / features
    return {
        "two_pass": left_to_right_sum((x - mean[:, None]).square()) / features,
        "moments": left_to_right_sum(x.square()) / features - mean.square(),
        "pairwise": pairwise_sum((x - pairwise_mean[:, None]).square()) / features,
    }


def left_to_right_sum(x: Tensor) -> Tensor:
    """Return sums (rows,) of x (rows, features), one accumulator per row in x's dtype; torch.sum uses a wider one."""
    total = torch.zeros_like(x[:, 0])
    for column in x.T.contiguous():
        total = total + column
    return total


def pairwise_sum(x: Tensor) -> Tensor:
    """Return sums (rows,) of x (rows, features) by adding halves, every partial sum in x's dtype."""
    while x.shape[1] > 1:
        x = pad(x, (0, x.shape[1] % 2))
        left, right = x.chunk(2, dim=1)
        x = left + right
    return x[:, 0]


def middle(errors: Tensor, variance: Tensor | None = None) -> float | str:
    """Return the median over rows (rows,), or a text if variance's median is 0 or the errors' is not finite."""
    if variance is not None and float(variance.median()) == 0:
        return CONSTANT
    value = float(errors.nan_to_num(nan=torch.inf, posinf=torch.inf).median())
    return value if value < torch.inf else OVERFLOW
