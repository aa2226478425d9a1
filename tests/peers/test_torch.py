"""Our heads and functions beside PyTorch's own: nn.MultiheadAttention and scaled_dot_product_attention, in float64."""

import pytest
import torch
from torch import nn
from torch.nn.functional import linear, scaled_dot_product_attention

from mhlib.functional import chunked_attention, tree_attention
from mhlib.heads import GroupedQueryAttention, MultiHeadAttention, MultiQueryAttention

B, N, M, DIM, HEADS = 2, 6, 9, 24, 4


def randn(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def some(*shape):
    """A random mask that leaves every query its own number's key, because PyTorch gives NaN where nothing is left."""
    mask = torch.rand(*shape) < 0.6
    mask[..., torch.arange(shape[-2]), torch.arange(shape[-2])] = True
    return mask


def same(ours, theirs, inputs):
    """Equal outputs, and equal gradients of a random scalar of them."""
    torch.testing.assert_close(ours, theirs)
    weight = torch.randn_like(ours)
    grads = [torch.autograd.grad((out * weight).sum(), inputs, retain_graph=True) for out in (ours, theirs)]
    torch.testing.assert_close(*grads)


# nn.MultiheadAttention -------------------------------------------------------------------------------------------------


def both(bias, context_dim=DIM):
    """Our layer and PyTorch's with the same weights."""
    ours = MultiHeadAttention(DIM, HEADS, bias=bias, context_dim=context_dim).double()
    theirs = nn.MultiheadAttention(DIM, HEADS, bias=bias, kdim=context_dim, vdim=context_dim, batch_first=True).double()
    projections = [ours.q_proj, ours.k_proj, ours.v_proj]
    with torch.no_grad():
        for p in ours.parameters():
            p.normal_()
        if context_dim == DIM:
            theirs.in_proj_weight.copy_(torch.cat([p.weight for p in projections]))
        else:
            for theirs_weight, p in zip((theirs.q_proj_weight, theirs.k_proj_weight, theirs.v_proj_weight), projections):
                theirs_weight.copy_(p.weight)
        theirs.out_proj.weight.copy_(ours.o_proj.weight)
        if bias:
            theirs.in_proj_bias.copy_(torch.cat([p.bias for p in projections]))
            theirs.out_proj.bias.copy_(ours.o_proj.bias)
    return ours, theirs


def parameter_gradients(ours, theirs):
    """Gradients of all parameters, ours in the order and form of theirs."""
    projections = [ours.q_proj, ours.k_proj, ours.v_proj]
    weights = [p.weight.grad for p in projections]
    stacked = theirs.in_proj_weight is not None
    found = [torch.cat(weights)] if stacked else weights
    expected = [theirs.in_proj_weight] if stacked else [theirs.q_proj_weight, theirs.k_proj_weight, theirs.v_proj_weight]
    found, expected = [*found, ours.o_proj.weight.grad], [*expected, theirs.out_proj.weight]
    if ours.q_proj.bias is not None:
        found += [torch.cat([p.bias.grad for p in projections]), ours.o_proj.bias.grad]
        expected += [theirs.in_proj_bias, theirs.out_proj.bias]
    return found, [p.grad for p in expected]


@pytest.mark.peer("multi_head_attention", "torch")
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("masks", ["none", "key_mask", "mask", "mask per head", "causal", "causal and key_mask"])
@pytest.mark.parametrize("context", ["self", "cross", "cross, another width"])
def test_multi_head_attention(bias, masks, context):
    ours, theirs = both(bias, context_dim=DIM + 5 if "width" in context else DIM)
    x = randn(B, N, DIM)
    c = x if context == "self" else randn(B, M, ours.context_dim)
    keys = c.shape[1]
    our_masks, their_masks = {}, {}
    if "key_mask" in masks:
        keep = torch.ones(B, keys, dtype=torch.bool)
        keep[0, 4:] = False
        our_masks["key_mask"], their_masks["key_padding_mask"] = keep, ~keep
    if masks == "mask":
        table = some(N, keys)
        our_masks["mask"], their_masks["attn_mask"] = table[None, None], ~table
    if masks == "mask per head":
        table = some(B, HEADS, N, keys)
        our_masks["mask"], their_masks["attn_mask"] = table, ~table.flatten(0, 1)
    if "causal" in masks:
        our_masks["causal"] = True  # the last query stands at the last key
        their_masks["attn_mask"] = torch.ones(N, keys, dtype=torch.bool).triu(1 + keys - N)  # theirs: True = may not

    want, want_weights = theirs(x, c, c, average_attn_weights=False, **their_masks)
    got, got_weights = ours(x, c, return_weights=True, **our_masks)
    torch.testing.assert_close(got_weights, want_weights)
    same(got, want, (x, c) if c is not x else (x,))
    fused = ours(x, c, **our_masks)
    same(fused, want, (x, c) if c is not x else (x,))
    weight = torch.randn_like(want)
    (fused * weight).sum().backward()
    (want * weight).sum().backward()
    torch.testing.assert_close(*parameter_gradients(ours, theirs))


# Shared key heads, with scaled_dot_product_attention between projections written out -------------------------------------


def written_out(layer, x, causal, expand):
    """The layer with PyTorch's functions alone; ``expand`` repeats key heads instead of asking for grouped attention."""
    heads = lambda proj, n: linear(x, proj.weight).view(B, N, n, -1).transpose(1, 2)  # noqa: E731
    groups = layer.num_kv_heads
    q, k, v = heads(layer.q_proj, HEADS), heads(layer.k_proj, groups), heads(layer.v_proj, groups)
    if expand:
        k, v = k.repeat_interleave(HEADS // groups, 1), v.repeat_interleave(HEADS // groups, 1)
    y = scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=not expand)
    return linear(y.transpose(1, 2).reshape(B, N, -1), layer.o_proj.weight)


@pytest.mark.peer("grouped_query_attention", "torch")
@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("causal", [False, True])
def test_grouped_query_attention(groups, causal):
    layer = GroupedQueryAttention(DIM, HEADS, num_kv_heads=groups).double()
    x = randn(B, N, DIM)
    same(layer(x, causal=causal), written_out(layer, x, causal, expand=False), (x, *layer.parameters()))


@pytest.mark.peer("multi_query_attention", "torch")
@pytest.mark.parametrize("causal", [False, True])
def test_multi_query_attention(causal):
    layer = MultiQueryAttention(DIM, HEADS).double()
    x = randn(B, N, DIM)
    same(layer(x, causal=causal), written_out(layer, x, causal, expand=True), (x, *layer.parameters()))


# Functions -------------------------------------------------------------------------------------------------------------


def qkv(queries, keys, kv_heads=HEADS, width=6):
    return randn(B, HEADS, queries, 8), randn(B, kv_heads, keys, 8), randn(B, kv_heads, keys, width)


@pytest.mark.peer("chunked_attention", "torch")
@pytest.mark.parametrize("case", ["plain", "causal", "mask", "bias", "mask and bias", "grouped", "scale"])
@pytest.mark.parametrize("queries, keys", [(7, 5), (300, 700)])  # within one block, and ragged over several
def test_chunked_attention(case, queries, keys):
    if case == "causal":
        keys = queries  # where PyTorch's flag means the same
    q, k, v = qkv(queries, keys, kv_heads=2 if case == "grouped" else HEADS)
    ours, theirs, inputs = {}, {"enable_gqa": case == "grouped"}, (q, k, v)
    if case == "causal":
        ours["causal"], theirs["is_causal"] = True, True
    if "mask" in case:
        ours["mask"] = torch.rand(B, 1, queries, keys) < 0.5
        ours["mask"][..., 0] = True
        theirs["attn_mask"] = ours["mask"]
    if "bias" in case:
        ours["bias"] = randn(1, HEADS, queries, keys)
        inputs = (*inputs, ours["bias"])
        theirs["attn_mask"] = ours["bias"].masked_fill(~ours["mask"], float("-inf")) if "mask" in case else ours["bias"]
    if case == "scale":
        ours["scale"], theirs["scale"] = 0.3, 0.3
    same(chunked_attention(q, k, v, **ours), scaled_dot_product_attention(q, k, v, **theirs), inputs)


@pytest.mark.peer("tree_attention", "torch")
@pytest.mark.parametrize("shards", [1, 2, 3, 8, 13])  # powers of two, others, and more shards than keys
@pytest.mark.parametrize("kv_heads", [HEADS, 2])
def test_tree_attention(shards, kv_heads):
    q, k, v = qkv(5, 11, kv_heads)
    want = scaled_dot_product_attention(q, k, v, enable_gqa=kv_heads != HEADS)
    same(tree_attention(q, k, v, shards=shards), want, (q, k, v))
