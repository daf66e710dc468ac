"""Tables of benchmarking_mixed_precision, parts a and b."""

from collections.abc import Callable, Mapping

from perfscribe.experiments.cs336.autocast_dtypes.levels import SHOWN
from perfscribe.records.records import Record
from perfscribe.show import references
from perfscribe.show import tables as t

TABLES = SHOWN.tables
PARTS = {
    "parameters_dtype": "Parameters",
    "fc1_output_dtype": "Output of fc1",
    "layernorm_output_dtype": "Output of LayerNorm",
    "logits_dtype": "Logits",
    "loss_dtype": "Loss",
    "gradients_dtype": "Gradients",
}
VARIANCE_VALUES = {
    "inputs_variance": "Variance of the rounded input",
    "variance_two_pass_relative_error": "Error, E[(x − mean)²]",
    "layer_norm_relative_error": "Error of torch's layer_norm",
}
DTYPE_NOTE = (
    "Read off the tensors by hooks. The published dtypes are of CUDA's autocast; autocast on a CPU has another list of "
    "operations."
)
VARIANCE_NOTE = (
    "Relative errors against float64 of the same rounded inputs, median over the rows. Sums run from left to right, "
    "with every intermediate in the dtype."
)


def _published(metric: str) -> Callable[[Record], str]:
    """Return a function for the dtype that the write-ups, which agree, print for the same autocast dtype."""

    def get(record: Record) -> str:
        entries = references.find("autocast_dtypes", metric, dtype=record.factors["dtype"])
        return entries[0].text.removeprefix("torch.") if entries else "none"

    return get


def tables(records: Mapping[str, list[Record]]) -> list[t.Table]:
    """Return six dtypes per device and autocast dtype, and errors of the variance per dtype and mean."""
    cells = records["autocast_dtypes"]
    dtype_columns = [t.factor("dtype", "Autocast"), t.factor("device", "Device")]
    for name, title in PARTS.items():
        dtype_columns.append(t.value(name, title, exact=True))
        dtype_columns.append(t.Column(f"published_{name}", f"{title}, published", _published(name), kind="published"))
    variance_columns = [
        *t.factors(dtype="Dtype", device="Device", variance_mean="Mean of the input"),
        *t.factors(variance_std="Standard deviation", features="Features"),
        *(t.value(name, title) for name, title in VARIANCE_VALUES.items()),
    ]
    dtypes, variances = (t.having(cells, part=part) for part in ("dtypes", "variance"))
    return [
        t.make(TABLES[0], "Dtypes of the toy model under autocast", dtypes, dtype_columns, [DTYPE_NOTE]),
        t.make(TABLES[1], "LayerNorm's variance in one dtype", variances, variance_columns, [VARIANCE_NOTE]),
    ]
