"""Statistics pools, the pair pool and the context pool against torch_geometric and torch."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mhlib import pooling


def same(ours, theirs, x):
    torch.testing.assert_close(ours, theirs)
    weight = torch.randn_like(ours)
    torch.testing.assert_close(*(torch.autograd.grad((y * weight).sum(), x, retain_graph=True)[0] for y in (ours, theirs)))


@pytest.fixture
def sets():
    """Ragged sets as torch_geometric has them; none of one token, whose deviation it floors."""
    lengths = torch.tensor([3, 2, 5])
    x = torch.randn(10, 8, dtype=torch.float64, requires_grad=True)
    return x, lengths, torch.arange(3).repeat_interleave(lengths)


@pytest.mark.peer("statistics_pool", "torch_geometric")
@pytest.mark.parametrize("second, name", [("deviation", "std"), ("variance", "var")])
def test_moments(sets, second, name):
    aggr = pytest.importorskip("torch_geometric.nn.aggr")
    x, lengths, index = sets
    same(pooling.StatisticsPool(8, second=second).ragged(x, lengths), aggr.MultiAggregation(["mean", name])(x, index), x)


@pytest.mark.peer("attentive_statistics_pool", "torch_geometric")
def test_attentive_moments(sets):
    """Their gate for the mean; the second moment is their gate over the squares."""
    aggr = pytest.importorskip("torch_geometric.nn.aggr")
    x, lengths, index = sets
    pool = pooling.AttentiveStatisticsPool(8, hidden=4, eps=0.0).double()
    gate = aggr.AttentionalAggregation(pool.scorer)
    gate_of_squares = aggr.AttentionalAggregation(pool.scorer, _Square())
    mean = gate(x, index)
    same(pool.ragged(x, lengths), torch.cat([mean, (gate_of_squares(x, index) - mean.square()).sqrt()], -1), x)


class _Square(nn.Module):
    def reset_parameters(self):
        """Nothing is learned."""

    def forward(self, x):
        return x.square()


@pytest.mark.peer("multi_head_statistics_pool", "torch")
def test_one_query_per_head():
    pool = pooling.MultiHeadStatisticsPool(8, 2).double()
    x, keep = torch.randn(4, 7, 8, dtype=torch.float64, requires_grad=True), torch.rand(4, 7) > 0.3
    keep[:, 0] = True
    heads = x.unflatten(-1, (2, 4)).transpose(1, 2)
    q = pool.query.view(1, 2, 1, 4).expand(4, -1, -1, -1)
    attend = lambda v: F.scaled_dot_product_attention(q, heads, v, attn_mask=keep[:, None, None]).flatten(1)  # noqa: E731
    mean = attend(heads)
    same(pool(x, keep), torch.cat([mean, attend(heads.square()) - mean.square()], -1), x)


@pytest.mark.peer("low_rank_context_pool", "torch")
def test_scores_are_bilinear_forms():
    pool = pooling.LowRankContextPool(8, 3, rank=2, normalize=False).double()
    x, keep = torch.randn(4, 7, 8, dtype=torch.float64, requires_grad=True), torch.rand(4, 7) > 0.3
    keep[:, 0] = True
    p, q = (proj.weight.unflatten(0, (3, 2)) for proj in (pool.q_proj, pool.k_proj))
    context = (x * keep[..., None]).sum(1) / keep.sum(1, keepdim=True)
    logits = torch.tanh(F.bilinear(context[:, None].expand_as(x), x, torch.einsum("hrd,hre->hde", p, q)))
    weights = logits.masked_fill(~keep[..., None], -torch.inf).softmax(1)
    same(pool(x, keep), torch.einsum("bnh,bnd->bhd", weights, x).flatten(1), x)


@pytest.mark.peer("attentive_pair_pool", "torch")
def test_a_pair_by_bilinear_forms():
    pool = pooling.AttentivePairPool(6).double()
    x, other = (torch.randn(3, n, 6, dtype=torch.float64, requires_grad=True) for n in (4, 5))
    pairs = [side.expand(3, 4, 5, 6) for side in (x[:, :, None], other[:, None])]
    table = F.bilinear(*(side.contiguous() for side in pairs), pool.form)[..., 0].tanh()
    for ours, theirs in zip(pool(x, other), (
        (F.adaptive_max_pool1d(table, 1).softmax(1) * x).sum(1),
        (F.adaptive_max_pool1d(table.mT, 1).softmax(1) * other).sum(1),
    )):  # fmt: skip
        same(ours, theirs, x)
        same(ours, theirs, other)
