"""The workshop's exact parameters and work, as its fact sheet counts them; scale factors and efficiency."""

import pytest

from perfscribe.analytic import weak_scaling as w
from perfscribe.analytic.workshop_shapes import BLOOM_TOKENIZER_VOCABULARY, SimpleGptShape

WORLDS, LAYERS, BATCHES = (2, 4, 8, 16), (3, 6, 12, 24), (8, 4, 2, 1)
ASKED = SimpleGptShape()
RAN = SimpleGptShape(vocab_size=BLOOM_TOKENIZER_VOCABULARY)


def _of(shape, variant):
    return [s for s in w.setups(shape, 512, WORLDS, LAYERS, BATCHES) if s.variant == variant]


@pytest.mark.parametrize(("shape", "billions"), [(RAN, (5.32, 3.26, 2.24, 1.72)), (ASKED, (2.03, 1.62, 1.41, 1.31))])
def test_the_sources_work_of_a_gpu_falls(shape, billions):
    rows = _of(shape, w.SOURCE)
    matrices = [s.batch * (s.shape.num_layers * s.shape.block_parameters + w.head_products(s.shape)) for s in rows]
    assert [round(one / 1e9, 2) for one in matrices] == list(billions)
    flop = [s.flop_per_gpu for s in rows]
    assert flop == sorted(flop, reverse=True)
    assert flop[0] / flop[-1] == pytest.approx(billions[0] / billions[-1], rel=0.03)
    assert [s.total_batch for s in rows] == [16, 16, 16, 16]
    assert [s.tokens_per_gpu for s in rows] == [4096, 2048, 1024, 512]


@pytest.mark.parametrize("shape", [RAN, ASKED])
def test_variants_of_equal_work(shape):
    same, deeper = _of(shape, w.SAME_MODEL), _of(shape, w.DEEPER)
    assert {s.flop_per_gpu for s in same} == {_of(shape, w.SOURCE)[0].flop_per_gpu}
    assert [s.total_batch for s in same] == [16, 32, 64, 128]
    assert all(s.flop_per_gpu == pytest.approx(deeper[0].flop_per_gpu, rel=0.01) for s in deeper)
    assert [s.batch for s in deeper] == list(BATCHES)
    assert deeper[0].shape == _of(shape, w.SOURCE)[0].shape


def test_flop_by_hand():
    shape = SimpleGptShape(vocab_size=10, hidden_size=4, num_layers=2, num_heads=2, ffn=8)
    layer = 4 * 16 + 2 * 4 * 8 + 2 * 3 * 4  # four projections, two matrices, scores and values over 3 positions
    assert w.step_flop(shape, 6, 3) == 3 * 2 * 6 * (2 * layer + 10 * 4)


def test_efficiency_and_its_inverse():
    assert w.efficiency_percent(10, 20) == 50
    assert w.inverted_percent(10, 20) == 200
