"""The workshop's exact parameters and work, as its fact sheet counts them; scale factors and efficiency."""

import pytest

from perfscribe.analytic import weak_scaling as w
from perfscribe.analytic.workshop_shapes import BLOOM_TOKENIZER_VOCABULARY, SimpleGptShape

WORLDS, LAYERS, BATCHES = (2, 4, 8, 16), (3, 6, 12, 24), (8, 4, 2, 1)
ASKED = SimpleGptShape()
RAN = SimpleGptShape(vocab_size=BLOOM_TOKENIZER_VOCABULARY)


def _of(shape, variant):
    return [s for s in w.setups(shape, 512, WORLDS, LAYERS, BATCHES) if s.variant == variant]


@pytest.mark.parametrize("shape", [RAN, ASKED])
def test_variants_of_equal_work(shape):
    same, deeper = _of(shape, w.SAME_MODEL), _of(shape, w.DEEPER)
    assert {s.flop_per_gpu for s in same} == {_of(shape, w.SOURCE)[0].flop_per_gpu}
    assert [s.total_batch for s in same] == [16, 32, 64, 128]
    assert all(s.flop_per_gpu == pytest.approx(deeper[0].flop_per_gpu, rel=0.01) for s in deeper)
    assert [s.batch for s in deeper] == list(BATCHES)
    assert deeper[0].shape == _of(shape, w.SOURCE)[0].shape


def test_efficiency_and_its_inverse():
    assert w.efficiency_percent(10, 20) == 50
    assert w.inverted_percent(10, 20) == 200
