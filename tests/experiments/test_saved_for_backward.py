"""saved_for_backward: a block's saved tensors and gradients against a count by hand."""

import pytest
from measured_cells import as_record

from perfscribe.experiments.cs336.saved_for_backward import levels, measure, show
from perfscribe.instruments.correctness import WrongResult
from perfscribe.instruments.savings import Savings

CONFIG = {"device": ["cpu"], "size": ["nano"], "seq_len": [12], "dtype": ["fp32", "bf16"], "batch": 4, "layers": 3}
FP32, BF16 = levels.cells(CONFIG)
# nano: d_model 32, d_ff 128, two heads; 4 sequences of 12 tokens, 4 bytes a number
STREAM, INNER, ROWS, SCORES = 4 * 48 * 32, 4 * 48 * 128, 4 * 48, 4 * 4 * 2 * 12 * 12
BY_HAND = {
    "feed_forward: mul": 2 * INNER,  # silu(w1 x) and w3 x
    "feed_forward: silu": INNER,
    "feed_forward.w2: linear": INNER,
    "feed_forward.w1: linear": STREAM,  # the input that w3 shares
    "attention: softmax": SCORES,
    "attention: matmul": 3 * STREAM,  # scaled q, k, v
    "attention.q: linear": STREAM,  # the input that k and v share
    "attention.o: linear": STREAM,
} | {
    f"{norm}: {operation}": size
    for norm in ("attention_norm", "feed_forward_norm")
    for operation, size in {"square": STREAM, "rsqrt": ROWS, "mul": STREAM}.items()
}
PARAMETERS = 4 * 32 * 32 + 3 * 32 * 128 + 2 * 32


@pytest.fixture(scope="module")
def tables():
    records = [as_record("saved_for_backward", one, measure.run(one)) for one in (FP32, BF16)]
    return {table.id: table.frame for table in show.tables({"saved_for_backward": records})}


def test_saved_by_operation_is_as_counted_by_hand(tables):
    rows = tables["cs336.saved_by_operation"]
    rows = rows[rows["dtype"] == "fp32"]
    saved = dict(zip(rows["operation"], rows["saved_mb"], strict=True))
    assert saved == {name: pytest.approx(size / 1e6) for name, size in BY_HAND.items()}
    assert rows["saved_mb"].is_monotonic_decreasing and rows["share_percent"].sum() == pytest.approx(100)


def test_bf16_saves_copies_of_weights_too(tables):
    rows = tables["cs336.saved_by_operation"]
    saved = rows[rows["dtype"] == "bf16"].set_index("operation")["saved_mb"] * 1e6
    assert saved["attention.k: linear"] == pytest.approx(2 * 32 * 32 + STREAM / 2)  # and its own copy of the input
    assert saved["feed_forward: silu"] == pytest.approx(INNER / 2)


def test_saved_and_gradients_are_as_predicted(tables):
    rows = tables["cs336.saved_by_block"].set_index("dtype")
    assert rows["saved_gib"]["fp32"] * 2**30 == sum(BY_HAND.values())
    for measured in ("saved_gib", "gradients_gib"):
        assert rows[measured].tolist() == pytest.approx(rows[f"predicted_{measured}"].tolist())
    assert rows["gradients_gib"].tolist() == pytest.approx([4 * PARAMETERS / 2**30] * 2)


def test_another_count_than_the_allocators_is_an_error(monkeypatch):
    count = Savings._count

    def twice(self, tensor):
        self._seen -= {tensor.untyped_storage().data_ptr()}
        return count(self, tensor)

    monkeypatch.setattr(Savings, "_count", twice)
    with pytest.raises(WrongResult, match="what a block saves is off by"):
        measure.run(FP32)
