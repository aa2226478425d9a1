"""Our heads beside the attention layers of transformers: BERT, Llama, GPT-BigCode, DeepSeek-V2 and V3, in float64.

transformers computes rotary angles, RMS norms and DeepSeek's softmax in float32 whatever the weights are, hence two
tolerances.
"""

import pytest
import torch
from torch import nn

from mhlib.functional.positions import Rotary
from mhlib.heads import (
    GroupedQueryAttention,
    MultiHeadAttention,
    MultiHeadLatentAttention,
    MultiQueryAttention,
    mha2mla,
)

transformers = pytest.importorskip("transformers")
from transformers.cache_utils import DynamicCache  # noqa: E402
from transformers.models.bert.modeling_bert import BertSelfAttention  # noqa: E402
from transformers.models.deepseek_v2 import modeling_deepseek_v2 as v2  # noqa: E402
from transformers.models.deepseek_v3 import modeling_deepseek_v3 as v3  # noqa: E402
from transformers.models.gpt_bigcode.modeling_gpt_bigcode import GPTBigCodeAttention  # noqa: E402
from transformers.models.llama import modeling_llama as llama  # noqa: E402

B, N, DIM, HEADS = 2, 7, 24, 4
EXACT, IN_FLOAT32 = 1e-12, 2e-6  # greatest difference, over the greatest number or one


def tokens():
    return torch.randn(B, N, DIM, dtype=torch.float64, requires_grad=True)


def padding():
    """One sequence is full, the other one has padding at its end."""
    key_mask = torch.ones(B, N, dtype=torch.bool)
    key_mask[1, 4:] = False
    return key_mask


def additive(mask):
    """A boolean mask in the form that transformers adds to its logits."""
    return torch.zeros(mask.shape, dtype=torch.float64).masked_fill(~mask, float("-inf"))


def causal():
    return torch.ones(N, N, dtype=torch.bool).tril()[None, None]


def copy(ours, pairs):
    """Random weights for our parameters, at the scale of trained ones, and the same for theirs; returns both in pairs."""
    pairs = [(ours.get_parameter(name), theirs) for name, theirs in pairs.items() if theirs is not None]
    assert len(pairs) == len(list(ours.parameters())), "every parameter has a counterpart"
    with torch.no_grad():
        for mine, theirs in pairs:
            mine.normal_(std=mine.shape[-1] ** -0.5)
            theirs.copy_(mine)
    return pairs


def close(ours, theirs, tolerance):
    torch.testing.assert_close(ours, theirs, atol=tolerance * max(1.0, theirs.abs().max().item()), rtol=0)


def same(ours, theirs, x, pairs, tolerance):
    """Equal outputs, and equal gradients of the tokens and of all parameters."""
    close(ours, theirs, tolerance)
    weight = torch.randn_like(ours)
    grads = [
        torch.autograd.grad((out * weight).sum(), (x, *side), retain_graph=True)
        for out, side in zip((ours, theirs), zip(*pairs))
    ]
    for mine, other in zip(*grads):
        close(mine, other, tolerance)


@pytest.mark.peer("multi_head_attention", "transformers")
@pytest.mark.parametrize("masked", [False, True])
def test_bert(masked):
    config = transformers.BertConfig(hidden_size=DIM, num_attention_heads=HEADS, attn_implementation="eager")
    theirs = BertSelfAttention(config).double().eval()
    ours = MultiHeadAttention(DIM, HEADS, bias=True).double()
    names = {"q_proj": theirs.query, "k_proj": theirs.key, "v_proj": theirs.value}
    out = nn.Linear(DIM, DIM).double()  # BERT keeps it in another module
    pairs = copy(ours, {f"{n}.{kind}": getattr(m, kind) for n, m in (names | {"o_proj": out}).items() for kind in ("weight", "bias")})
    x, key_mask = tokens(), padding() if masked else None
    heads, want_weights = theirs(x, None if key_mask is None else additive(key_mask[:, None, None]))
    got, weights = ours(x, key_mask=key_mask, return_weights=True)
    close(weights, want_weights, EXACT)
    same(got, out(heads), x, pairs, EXACT)


# Llama: grouped heads with rotary positions ----------------------------------------------------------------------------


def llama_pair(groups, ours):
    config = transformers.LlamaConfig(
        hidden_size=DIM, num_attention_heads=HEADS, num_key_value_heads=groups, head_dim=8, attn_implementation="eager",
        rope_parameters={"rope_type": "default", "rope_theta": 500.0},
    )  # fmt: skip
    theirs = llama.LlamaAttention(config, 0).double().eval()
    pairs = copy(ours, {f"{n}.weight": getattr(theirs, n).weight for n in ("q_proj", "k_proj", "v_proj", "o_proj")})
    rotary = llama.LlamaRotaryEmbedding(config)
    return theirs, pairs, lambda x, start=0: rotary(x, torch.arange(start, start + x.shape[1])[None])


def check_llama(ours, masked):
    theirs, pairs, positions = llama_pair(ours.num_kv_heads, ours)
    x, key_mask = tokens(), padding() if masked else None
    allowed = causal() if key_mask is None else causal() & key_mask[:, None, None]
    want, want_weights = theirs(x, positions(x), additive(allowed))
    got, weights = ours(x, causal=True, key_mask=key_mask, return_weights=True)
    close(weights, want_weights, IN_FLOAT32)
    same(got, want, x, pairs, IN_FLOAT32)
    same(ours(x, causal=True, key_mask=key_mask), want, x, pairs, IN_FLOAT32)


ROPE = Rotary(8, base=500.0)


@pytest.mark.peer("grouped_query_attention", "transformers")
@pytest.mark.parametrize("groups", [2, 4])
@pytest.mark.parametrize("masked", [False, True])
def test_llama(groups, masked):
    check_llama(GroupedQueryAttention(DIM, HEADS, num_kv_heads=groups, head_dim=8, rope=ROPE).double(), masked)


@pytest.mark.peer("multi_query_attention", "transformers")
@pytest.mark.parametrize("masked", [False, True])
def test_llama_with_one_key_head(masked):
    check_llama(MultiQueryAttention(DIM, HEADS, head_dim=8, rope=ROPE).double(), masked)


@pytest.mark.peer("grouped_query_attention", "transformers")
@torch.no_grad()
def test_decoding_like_llama():
    ours = GroupedQueryAttention(DIM, HEADS, num_kv_heads=2, head_dim=8, rope=ROPE).double()
    theirs, _, positions = llama_pair(2, ours)
    x, mine, other = tokens(), ours.init_cache(B, N), DynamicCache()
    for start, end in ((0, 3), (3, 4), (4, 5), (5, 7)):
        new = x[:, start:end]
        want, _ = theirs(new, positions(new, start), additive(causal()[..., start:end, :end]), other)
        close(ours(new, causal=True, cache=mine), want, IN_FLOAT32)


@pytest.mark.peer("multi_query_attention", "transformers")
def test_gpt_bigcode():
    """The attention of StarCoder: one key head, all three projections in one matrix."""
    config = transformers.GPTBigCodeConfig(
        n_embd=DIM, n_head=HEADS, multi_query=True, attn_pdrop=0, resid_pdrop=0, attn_implementation="eager"
    )
    theirs = GPTBigCodeAttention(config, layer_idx=0).double().eval()
    ours = MultiQueryAttention(DIM, HEADS, bias=True).double()
    with torch.no_grad():
        theirs.c_attn.weight.copy_(torch.cat([p.weight for p in (ours.q_proj, ours.k_proj, ours.v_proj)]))
        theirs.c_attn.bias.normal_()
        for p, bias in zip((ours.q_proj, ours.k_proj, ours.v_proj), theirs.c_attn.bias.split([DIM, 6, 6])):
            p.bias.copy_(bias)
        ours.o_proj.load_state_dict(theirs.c_proj.state_dict())
    x = tokens()
    want, want_weights = theirs(x, attention_mask=additive(causal()))
    got, weights = ours(x, causal=True, return_weights=True)
    close(weights, want_weights, IN_FLOAT32)  # its softmax is taken in float32
    same(got, want, x, [(ours.o_proj.weight, theirs.c_proj.weight)], IN_FLOAT32)


# DeepSeek: latent attention --------------------------------------------------------------------------------------------

SIZES = {"head_dim": 6, "v_head_dim": 5, "kv_rank": 10, "rope_dim": 4}


def deepseek(module, *, q_rank=None, bias=False, **options):
    """A layer of DeepSeek-V2 or V3, and its rotary embedding for tokens from a position on."""
    version = module.__name__[-1]
    config = getattr(transformers, f"DeepseekV{version}Config")(
        hidden_size=DIM, num_attention_heads=HEADS, num_key_value_heads=HEADS, q_lora_rank=q_rank,
        kv_lora_rank=SIZES["kv_rank"], qk_rope_head_dim=SIZES["rope_dim"], qk_nope_head_dim=SIZES["head_dim"],
        v_head_dim=SIZES["v_head_dim"], attention_bias=bias, attn_implementation="eager",
        rope_parameters={"rope_type": "default", "rope_theta": 300.0}, **options,
    )  # fmt: skip
    layer = getattr(module, f"DeepseekV{version}Attention")(config, 0).double().eval()
    rotary = getattr(module, f"DeepseekV{version}RotaryEmbedding")(config)
    return layer, lambda x, start=0: rotary(x, torch.arange(start, start + x.shape[1])[None])


def latent_pair(module, *, q_rank=None, bias=False, execution="auto", interleaved=True):
    options = {} if module is v2 else {"rope_interleave": interleaved}
    theirs, positions = deepseek(module, q_rank=q_rank, bias=bias, **options)
    rope = Rotary(SIZES["rope_dim"], base=300.0, interleaved=interleaved)
    ours = MultiHeadLatentAttention(DIM, HEADS, q_rank=q_rank, bias=bias, execution=execution, rope=rope, **SIZES).double()
    modules = {
        "q_a_proj": theirs.q_a_proj,
        "q_a_norm": theirs.q_a_layernorm if q_rank else None,
        "q_proj": theirs.q_b_proj if q_rank else theirs.q_proj,
        "kv_a_proj": theirs.kv_a_proj_with_mqa,
        "kv_a_norm": theirs.kv_a_layernorm,
        "kv_b_proj": theirs.kv_b_proj,
        "o_proj": theirs.o_proj,
    }
    pairs = copy(ours, {f"{n}.{kind}": getattr(m, kind, None) for n, m in modules.items() for kind in ("weight", "bias")})
    return ours, theirs, positions, pairs


@pytest.mark.peer("multi_head_latent_attention", "transformers")
@pytest.mark.parametrize("module", [v2, v3], ids=["V2", "V3"])
@pytest.mark.parametrize("q_rank, bias", [(None, False), (8, False), (8, True)])
@pytest.mark.parametrize("execution", ["expanded", "absorbed"])
def test_deepseek(module, q_rank, bias, execution):
    ours, theirs, positions, pairs = latent_pair(module, q_rank=q_rank, bias=bias, execution=execution)
    x, key_mask = tokens(), padding()
    mask = additive(causal() & key_mask[:, None, None])
    want, want_weights = theirs(x, attention_mask=mask, position_embeddings=positions(x))
    got, weights = ours(x, causal=True, key_mask=key_mask, return_weights=True)
    close(weights, want_weights, IN_FLOAT32)
    same(got, want, x, pairs, IN_FLOAT32)
    same(ours(x, causal=True, key_mask=key_mask), want, x, pairs, IN_FLOAT32)


@pytest.mark.peer("multi_head_latent_attention", "transformers")
def test_deepseek_with_rotary_halves():
    ours, theirs, positions, pairs = latent_pair(v3, q_rank=8, interleaved=False)
    x = tokens()
    want, _ = theirs(x, attention_mask=additive(causal()), position_embeddings=positions(x))
    same(ours(x, causal=True), want, x, pairs, IN_FLOAT32)


@pytest.mark.peer("multi_head_latent_attention", "transformers")
@pytest.mark.parametrize("module", [v2, v3], ids=["V2", "V3"])
@pytest.mark.parametrize("execution", ["expanded", "absorbed", "auto"])
@torch.no_grad()
def test_decoding_equals_deepseeks_full_pass(module, execution):
    ours, theirs, positions, _ = latent_pair(module, q_rank=8, execution=execution)
    x, cache = tokens(), ours.init_cache(B, N)
    want, _ = theirs(x, attention_mask=additive(causal()), position_embeddings=positions(x))
    steps = [ours(x[:, a:b], causal=True, cache=cache) for a, b in ((0, 3), (3, 4), (4, 6), (6, 7))]
    close(torch.cat(steps, 1), want, IN_FLOAT32)


# Conversion: the converted layer is a DeepSeek layer ---------------------------------------------------------------------


@pytest.mark.peer("mha2mla", "transformers")
@pytest.mark.parametrize("rope_dim, groups", [(4, 1), (8, 1), (0, 1), (0, 2), (0, 4)])
@pytest.mark.parametrize("kv_rank", [5, 10])
@pytest.mark.parametrize("factorization", ["joint", "split"])
def test_the_converted_layer_as_deepseek_runs_it(rope_dim, groups, kv_rank, factorization):
    """DeepSeek's layer has one rotary key for all heads, so a layer with one key head, or without rotary, can become one."""
    if rope_dim == 8 and factorization == "split":
        factorization = "joint"  # nothing but rotary keys: there is nothing to split
    rope = Rotary(8, base=50.0) if rope_dim else None
    mha = GroupedQueryAttention(DIM, HEADS, num_kv_heads=groups, head_dim=8, rope=rope).double()
    mla = mha2mla(mha, kv_rank=kv_rank, rope_dim=rope_dim, factorization=factorization)
    config = transformers.DeepseekV3Config(
        hidden_size=DIM, num_attention_heads=HEADS, num_key_value_heads=HEADS, q_lora_rank=None, kv_lora_rank=mla.kv_rank,
        qk_rope_head_dim=rope_dim, qk_nope_head_dim=8 - rope_dim, v_head_dim=8, attn_implementation="eager",
        rope_parameters={"rope_type": "default", "rope_theta": 1.0},
    )  # fmt: skip
    theirs = v3.DeepseekV3Attention(config, 0).double().eval()
    theirs.kv_a_layernorm = nn.Identity()  # the conversion puts no norm on the latent
    with torch.no_grad():
        theirs.q_proj.weight.copy_(mla.q_proj.weight)
        theirs.kv_a_proj_with_mqa.weight.copy_(mla.kv_a_proj.weight)
        up = mla.kv_b_proj.weight.unflatten(0, (groups, -1)).repeat_interleave(HEADS // groups, 0)
        theirs.kv_b_proj.weight.copy_(up.flatten(0, 1))
        theirs.o_proj.weight.copy_(mla.o_proj.weight)
    # Uniformly spaced pairs of the original stay rotary, with the frequencies that they had.
    pairs = torch.arange(rope_dim // 2) * 4 // max(rope_dim // 2, 1)
    angles = torch.arange(N, dtype=torch.float64)[:, None] * 50.0 ** (-2 * pairs.double() / 8)
    angles = torch.cat([angles, angles], -1)[None]
    x = tokens()
    want, _ = theirs(x, (angles.cos(), angles.sin()), additive(causal()))
    close(mla(x, causal=True), want, IN_FLOAT32)  # their softmax is taken in float32
