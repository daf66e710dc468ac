"""The FSDP workshop's models: exact parameters, losses, greedy answers, weights from a folder."""

import pytest
import torch

pytest.importorskip("transformers", reason="the package transformers is not installed")
from safetensors.torch import load_file, save_file

from perfscribe.analytic.workshop_shapes import BLOOM, BLOOM_TOKENIZER_VOCABULARY, SimpleGptShape
from perfscribe.models import bloom, simple_gpt

TINY = SimpleGptShape(vocab_size=40, hidden_size=16, num_layers=2, num_heads=2, ffn=32)


@pytest.mark.parametrize(
    ("shape", "parameters"),
    [
        (SimpleGptShape(BLOOM_TOKENIZER_VOCABULARY, 1024, 1, 8, 8192, tied=False), 534_632_248),
        (SimpleGptShape(50_000, 2048, 3), 253_524_816),
    ],
)
def test_simple_gpt_has_the_parameters_that_were_counted_by_hand(shape: SimpleGptShape, parameters: int) -> None:
    model = simple_gpt.build(shape, 0, "meta")
    assert shape.parameters == sum(parameter.numel() for parameter in model.parameters()) == parameters


def test_bloom_560m_is_exact() -> None:
    shape = BLOOM["bigscience/bloom-560m"]
    assert (shape.parameters, shape.block_parameters) == (559_214_592, 12_596_224)
    model = bloom.build("bigscience/bloom-560m", None, 0, "meta")
    assert sum(parameter.numel() for parameter in model.parameters()) == 559_214_592
    assert model.lm_head.weight is model.transformer.word_embeddings.weight


def test_weights_follow_the_seed_and_leave_the_generator_alone() -> None:
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    first, again, other = (simple_gpt.build(TINY, seed) for seed in (0, 0, 1))
    assert torch.equal(torch.rand(3), expected)
    assert torch.equal(first.lm_head.weight, again.lm_head.weight)
    assert not torch.equal(first.lm_head.weight, other.lm_head.weight)


def _batch() -> dict[str, torch.Tensor]:
    ids = torch.arange(24).reshape(2, 12) % TINY.vocab_size
    labels = ids.clone()
    labels[:, :5] = -100
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}


def test_loss_is_of_the_next_token_or_as_the_single_node_script_of_the_token_itself() -> None:
    batch = _batch()
    shifted, unshifted = simple_gpt.build(TINY, 0).eval(), simple_gpt.build(TINY, 0, shift_labels=False).eval()
    log_p = shifted(batch["input_ids"])["logits"].log_softmax(-1)

    def by_hand(offset: int) -> float:
        terms = [-log_p[row, at - offset, batch["labels"][row, at]] for row in range(2) for at in range(5, 12)]
        return torch.stack(terms).mean().item()

    assert shifted(**batch)["loss"].item() == pytest.approx(by_hand(1), rel=1e-5)
    assert unshifted(**batch)["loss"].item() == pytest.approx(by_hand(0), rel=1e-5)
    # What Trainer passes while it accumulates: the labels of the whole accumulated batch.
    assert shifted(**batch, num_items_in_batch=28)["loss"].item() == pytest.approx(by_hand(1) / 2, rel=1e-5)


@pytest.mark.parametrize("grad", [True, False])  # without gradients torch may take a path of its own
def test_no_position_sees_a_later_one(grad: bool) -> None:
    model = simple_gpt.build(TINY, 0).eval()
    ids = _batch()["input_ids"]
    changed = ids.clone()
    changed[:, 8:] = 39
    with torch.set_grad_enabled(grad):
        before, after = model(ids)["logits"], model(changed)["logits"]
    assert torch.allclose(before[:, :8], after[:, :8], atol=1e-5)
    assert not torch.allclose(before[:, 8:], after[:, 8:], atol=1e-2)


def test_greedy_answers_do_not_depend_on_padding() -> None:
    model = simple_gpt.build(TINY, 0).eval()
    prompt = torch.tensor([[5, 6, 7]])
    expected = prompt
    for _ in range(4):
        expected = torch.cat([expected, model(expected)["logits"][:, -1].argmax(-1, keepdim=True)], dim=1)
    padded = torch.tensor([[0, 0, 0, 5, 6, 7], [9, 8, 7, 6, 5, 4]])
    mask = torch.tensor([[0, 0, 0, 1, 1, 1], [1] * 6])
    answers = model.generate(input_ids=padded, attention_mask=mask, max_new_tokens=4)
    assert answers[:, :6].tolist() == padded.tolist()
    assert answers[0, 6:].tolist() == expected[0, 3:].tolist()


def test_bloom_reads_weights_from_a_folder_and_refuses_others(tmp_path) -> None:
    saved = bloom.build("bloom-tiny", None, 3)
    saved.save_pretrained(tmp_path / "tiny")
    loaded = bloom.build("bloom-tiny", str(tmp_path / "tiny"), 0)
    assert torch.equal(loaded.lm_head.weight, saved.lm_head.weight)
    with pytest.raises(ValueError, match="expected BloomShape"):
        bloom.build("bloom-micro", str(tmp_path / "tiny"), 0)
    with pytest.raises(ValueError, match="no such folder"):
        bloom.build("bloom-tiny", str(tmp_path / "none"), 0)
    held = load_file(tmp_path / "tiny" / "model.safetensors")
    held.pop("transformer.ln_f.bias")
    save_file(held, tmp_path / "tiny" / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=r"transformer\.ln_f\.bias is not among them"):
        bloom.build("bloom-tiny", str(tmp_path / "tiny"), 0)
    (tmp_path / "tiny" / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(ValueError, match=r"^[^\n]*no BLOOM weights can be read[^\n]*$"):
        bloom.build("bloom-tiny", str(tmp_path / "tiny"), 0)
