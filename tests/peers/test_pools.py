"""Pools against torch_geometric's aggregations and torch's attention with one query."""

import pytest
import torch
from torch.nn import functional as F

from mhlib import pooling


@pytest.fixture
def sets():
    """Ragged sets as torch_geometric has them: all tokens in one tensor, and the number of each one's set."""
    lengths = torch.tensor([3, 1, 6])
    x = torch.randn(10, 5, dtype=torch.float64, requires_grad=True)
    return x, lengths, torch.arange(3).repeat_interleave(lengths)


def same(ours, theirs, x):
    torch.testing.assert_close(ours, theirs)
    weight = torch.randn_like(ours)
    torch.testing.assert_close(*(torch.autograd.grad((y * weight).sum(), x)[0] for y in (ours, theirs)))


@pytest.mark.peer("mean_pool", "torch_geometric")
def test_mean(sets):
    aggr = pytest.importorskip("torch_geometric.nn.aggr")
    x, lengths, index = sets
    same(pooling.MeanPool(5).ragged(x, lengths), aggr.MeanAggregation()(x, index), x)


@pytest.mark.peer("attention_pool", "torch")
def test_learned_queries():
    pool = pooling.AttentionPool(8, 2, num_queries=3).double()
    x, keep = torch.randn(4, 7, 8, dtype=torch.float64, requires_grad=True), torch.rand(4, 7) > 0.3
    keep[:, 0] = True
    heads = lambda t: t.unflatten(-1, (2, 4)).transpose(1, 2)  # noqa: E731
    q = heads(pool.q_proj(pool.query)[None].expand(4, -1, -1))
    out = F.scaled_dot_product_attention(q, heads(pool.k_proj(x)), heads(pool.v_proj(x)), attn_mask=keep[:, None, None])
    same(pool(x, key_mask=keep), pool.o_proj(out.transpose(1, 2).flatten(2)), x)
