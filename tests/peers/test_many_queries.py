"""Pools with many queries against torch's attention and transformer layers, and against transformers' heads."""

import pytest
import torch
from contract.common import perturbed
from torch import nn
from torch.nn import functional as F

from mhlib.pooling import (
    ClassQueryDecoder,
    ClassQueryPool,
    CrossAttentionBlock,
    InducedPool,
    JointTokenPool,
    RegisterDecoder,
    RegisterPredictor,
    StampPool,
)


@pytest.fixture
def x():
    return torch.randn(3, 6, 16, dtype=torch.float64)


@pytest.fixture
def keep():
    keep = torch.rand(3, 6) > 0.4
    keep[:, 0] = True
    return keep


def fill(theirs: nn.MultiheadAttention, ours: nn.Module) -> None:
    """Our projections into torch's layer; what ours has no bias for gets zeros."""
    projections = (ours.q_proj, ours.k_proj, ours.v_proj)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([proj.weight for proj in projections]))
        zeros = torch.zeros(theirs.embed_dim, dtype=theirs.in_proj_weight.dtype)
        theirs.in_proj_bias.copy_(torch.cat([zeros if proj.bias is None else proj.bias for proj in projections]))
        theirs.out_proj.weight.copy_(ours.o_proj.weight)
        theirs.out_proj.bias.copy_(zeros if ours.o_proj.bias is None else ours.o_proj.bias)


def torch_attention(ours: nn.Module) -> nn.MultiheadAttention:
    theirs = nn.MultiheadAttention(ours.dim, ours.num_heads, batch_first=True).double()
    fill(theirs, ours)
    return theirs


@pytest.mark.peer("stamp_pool", "torch")
@pytest.mark.parametrize("combine", ["weighted_sum", "all_concat"])
def test_stamp(x, keep, combine):
    pool = perturbed(StampPool(16, 4, num_queries=3, combine=combine))
    heads = lambda t: t.unflatten(-1, (4, 4)).transpose(1, 2)  # noqa: E731
    tokens, query = heads(pool.kv_proj(x)), heads(pool.query.expand(3, -1, -1))
    found = F.scaled_dot_product_attention(query, tokens, tokens, attn_mask=keep[:, None, None])
    found = found.flatten(1) if combine == "all_concat" else found.mean(2).flatten(1)
    mean = (x * keep[..., None]).sum(1) / keep.sum(1, keepdim=True)
    torch.testing.assert_close(pool(x, key_mask=keep), pool.o_proj(found) + 0.1 * mean)


@pytest.mark.peer("cross_attention_block", "torch")
@pytest.mark.peer("induced_pool", "torch")
@pytest.mark.parametrize("pools", [False, True])
def test_cross_attention_block(x, keep, pools):
    block = perturbed(InducedPool(16, 4, num_queries=5) if pools else CrossAttentionBlock(16, 4))
    asked = block.query.expand(3, -1, -1) if pools else torch.randn(3, 5, 16, dtype=torch.float64)
    normed = block.context_norm(x)
    y = asked + torch_attention(block)(block.query_norm(asked), normed, normed, key_padding_mask=~keep)[0]
    h = F.layer_norm(y, (16,), block.mlp_norm.weight, block.mlp_norm.bias, 1e-8)
    want = y + F.linear(F.silu(F.linear(h, block.mlp.gate.weight)) * F.linear(h, block.mlp.up.weight), block.mlp.down.weight)
    torch.testing.assert_close(block(x, key_mask=keep) if pools else block(asked, x, key_mask=keep), want)


@pytest.mark.peer("register_predictor", "transformers")
def test_register_predictor(x):
    siglip = pytest.importorskip("transformers.models.siglip.modeling_siglip")
    config = siglip.SiglipVisionConfig(
        hidden_size=16, intermediate_size=64, num_attention_heads=4, hidden_act="gelu", layer_norm_eps=1e-5
    )
    theirs = siglip.SiglipMultiheadAttentionPoolingHead(config).double().eval()
    ours = perturbed(RegisterPredictor(16, 4, num_queries=1, bias=True))
    fill(theirs.attention, ours)
    theirs.layernorm.load_state_dict(ours.mlp_norm.state_dict())
    theirs.mlp.fc1.load_state_dict(ours.mlp[0].state_dict())
    theirs.mlp.fc2.load_state_dict(ours.mlp[2].state_dict())
    with torch.no_grad():
        theirs.probe.copy_(ours.query[None])
    torch.testing.assert_close(ours(x), theirs(ours.token_norm(x)))


@pytest.mark.peer("register_decoder", "torch")
def test_register_decoder(x):
    ours = perturbed(RegisterDecoder(16, num_registers=2, grid=(2, 3), patch=2, dim=16, num_heads=4, num_blocks=2))
    layer = nn.TransformerEncoderLayer(16, 4, 64, 0.0, "gelu", batch_first=True, norm_first=True)
    theirs = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).double()
    for block, copy in zip(ours.blocks, theirs.layers):
        fill(copy.self_attn, block.attention)
        for mine, its in (
            (block.attention_norm, copy.norm1), (block.mlp_norm, copy.norm2), (block.mlp[0], copy.linear1), (block.mlp[2], copy.linear2)
        ):  # fmt: skip
            its.load_state_dict(mine.state_dict())
    registers = torch.randn(3, 2, 16, dtype=torch.float64)
    tokens = torch.cat([ours.patch_proj(x) + ours.position, ours.register_proj(registers) + ours.slot], 1)
    pixels = ours.pixels(ours.norm(theirs(tokens)[:, :6])).view(3, 2, 3, 3, 2, 2)  # images, down, across, colours, and pixels
    torch.testing.assert_close(ours(x, registers), pixels.permute(0, 3, 1, 4, 2, 5).reshape(3, 3, 4, 6))


@pytest.mark.peer("joint_token_pool", "torch")
def test_joint_token(x, keep):
    pool = perturbed(JointTokenPool(16, 2, num_layers=3))
    tokens = torch.cat([x, pool.joint.expand(3, 1, -1)], 1)
    absent = F.pad(~keep, (0, 1), value=False)
    for attention, mlp in zip(pool.attentions, pool.mlps):
        y, weights = torch_attention(attention)(tokens, tokens, tokens, key_padding_mask=absent, average_attn_weights=False)
        y = tokens + y
        tokens = F.layer_norm(y + mlp(y), (16,), pool.norm.weight, pool.norm.bias)
    ours, seen, aux = pool(x, key_mask=keep, return_weights=True, return_aux=True)
    torch.testing.assert_close(ours, tokens[:, -1])
    torch.testing.assert_close(seen[:, -1], weights[:, :, -1, :-1])
    torch.testing.assert_close(aux["people"][keep], tokens[:, :-1][keep])


@pytest.mark.peer("class_query_pool", "torch")
def test_class_queries(x, keep):
    pool = perturbed(ClassQueryPool(16, 5, 4))
    found = torch_attention(pool)(pool.query.expand(3, -1, -1), x, x, key_padding_mask=~keep)[0]
    torch.testing.assert_close(pool(x, key_mask=keep), F.linear(found, pool.presence.weight, pool.presence.bias)[..., 0])


@pytest.mark.peer("class_query_decoder", "transformers")
def test_class_decoder(x):
    """DETR's decoder without positions on its keys; its first self-attention is one vector in ours."""
    detr = pytest.importorskip("transformers.models.detr.modeling_detr")
    config = detr.DetrConfig(
        d_model=16, decoder_layers=2, decoder_attention_heads=4, decoder_ffn_dim=12, dropout=0.0, attention_dropout=0.0,
        activation_dropout=0.0, use_timm_backbone=False, use_pretrained_backbone=False, backbone=None,
    )  # fmt: skip
    config._attn_implementation = "eager"
    theirs = detr.DetrDecoder(config).double().eval()
    ours = perturbed(ClassQueryDecoder(16, 5, 4, num_layers=2, hidden_dim=12))
    with torch.no_grad():
        for mine, its in zip(ours.layers, theirs.layers):
            for a, b in ((mine.among, its.self_attn), (mine.search, its.encoder_attn)):
                if a is None:
                    mine.start.copy_(b.o_proj(b.v_proj.bias))
                    continue
                for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
                    getattr(b, name).weight.copy_(getattr(a, name).weight)
                    bias = getattr(a, name).bias
                    getattr(b, name).bias.copy_(torch.randn(16) if bias is None else bias)  # a bias on keys does not matter
            norms = (its.self_attn_layer_norm, its.encoder_attn_layer_norm, its.final_layer_norm)
            for norm, copy in zip(mine.norms, norms):
                copy.load_state_dict(norm.state_dict())
            its.mlp.fc1.load_state_dict(mine.mlp[0].state_dict())
            its.mlp.fc2.load_state_dict(mine.mlp[3].state_dict())
        theirs.layernorm.load_state_dict(ours.norm.state_dict())
    query = ours.query.expand(3, -1, -1)
    out = theirs(
        inputs_embeds=torch.zeros_like(query), encoder_hidden_states=x, object_queries_position_embeddings=query,
        spatial_position_embeddings=torch.zeros_like(x),
    )  # fmt: skip
    _, aux = ours(x, return_aux=True)
    torch.testing.assert_close(aux["found"], out.last_hidden_state)
