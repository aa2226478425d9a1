"""Plain pools, generalized means, AdaPool and class tokens against torch and torch_geometric."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mhlib import pooling
from mhlib.experiments import TinyEncoder


@pytest.fixture
def sets():
    """Ragged sets as torch_geometric has them: all tokens in one tensor, and the number of each one's set."""
    lengths = torch.tensor([3, 1, 7])
    x = torch.randn(11, 8, dtype=torch.float64, requires_grad=True)
    return x, lengths, torch.arange(3).repeat_interleave(lengths)


def same(ours, theirs, *inputs):
    torch.testing.assert_close(ours, theirs)
    weight = torch.randn_like(ours)
    both = [torch.autograd.grad((y * weight).sum(), inputs, retain_graph=True) for y in (ours, theirs)]
    torch.testing.assert_close(*both)


@pytest.mark.parametrize(
    "pool, aggregation",
    [
        pytest.param("MaxPool", "MaxAggregation", marks=pytest.mark.peer("max_pool", "torch_geometric")),
        pytest.param("MinPool", "MinAggregation", marks=pytest.mark.peer("min_pool", "torch_geometric")),
        pytest.param("MedianPool", "MedianAggregation", marks=pytest.mark.peer("median_pool", "torch_geometric")),
    ],
)
def test_order_statistics(sets, pool, aggregation):
    aggr = pytest.importorskip("torch_geometric.nn.aggr")
    x, lengths, index = sets  # odd lengths: torch_geometric's median of an even number is the lower one
    same(getattr(pooling, pool)(8).ragged(x, lengths), getattr(aggr, aggregation)()(x, index), x)


@pytest.mark.peer("quantile_pool", "torch_geometric")
@pytest.mark.parametrize("q", [0.0, 0.25, 0.5, 1.0])  # numbers that float32, in which theirs is kept, holds exactly
def test_quantiles(sets, q):
    aggr = pytest.importorskip("torch_geometric.nn.aggr")
    x, lengths, index = sets
    same(pooling.QuantilePool(8, q).ragged(x, lengths), aggr.QuantileAggregation(q).double()(x, index), x)


@pytest.mark.peer("quantile_pool", "torch")
def test_quantiles_of_torch():
    x = torch.randn(3, 6, 4, dtype=torch.float64, requires_grad=True)
    same(pooling.QuantilePool(4, 0.35)(x), torch.quantile(x, 0.35, dim=1), x)


@pytest.mark.peer("std_pool", "torch_geometric")
def test_deviation():
    aggr = pytest.importorskip("torch_geometric.nn.aggr")
    x = torch.randn(12, 8, dtype=torch.float64, requires_grad=True)
    lengths, index = torch.tensor([5, 7]), torch.arange(2).repeat_interleave(torch.tensor([5, 7]))
    same(pooling.StdPool(8).ragged(x, lengths), aggr.StdAggregation()(x, index), x)


@pytest.mark.peer("log_sum_exp_pool", "torch")
def test_log_sum_exp():
    x = torch.randn(3, 6, 4, dtype=torch.float64, requires_grad=True)
    same(pooling.LogSumExpPool(4, 0.5, average=False)(x), 0.5 * torch.logsumexp(2 * x, 1), x)


@pytest.fixture
def positive(sets):
    """torch_geometric clamps the mean of the powers as well, so these stay clear of it."""
    x, lengths, index = sets
    return (x.detach().abs().clamp_max(2) + 0.5).requires_grad_(), lengths, index


@pytest.mark.peer("generalized_mean_pool", "torch_geometric")
def test_generalized_mean(positive):
    aggr = pytest.importorskip("torch_geometric.nn.aggr")
    x, lengths, index = positive
    theirs = aggr.PowerMeanAggregation(2.5, learn=True, clamp_min=1e-3, clamp_max=None).double()
    ours = pooling.GeneralizedMeanPool(8, 2.5, eps=1e-3).double()
    y, z = ours.ragged(x, lengths), theirs(x, index)
    same(y, z, x)
    gradients = (torch.autograd.grad(out.sum(), p)[0] for out, p in ((y, ours.p), (z, theirs.p)))
    torch.testing.assert_close(*gradients)


@pytest.mark.peer("generalized_mean_pool", "torch")
def test_power_average_pooling():
    """Torch's lp_pool1d sums the powers; our mean of them is smaller by the root of N."""
    x = torch.rand(2, 6, 4, dtype=torch.float64).add(0.1).requires_grad_()
    theirs = F.lp_pool1d(x.transpose(1, 2), 3.0, kernel_size=6)[..., 0] / 6 ** (1 / 3)
    same(pooling.GeneralizedMeanPool(4, 3.0).double()(x), theirs, x)


@pytest.mark.peer("group_generalized_mean_pool", "torch_geometric")
def test_group_generalized_mean(positive):
    """An exponent per feature, equal within a group."""
    aggr = pytest.importorskip("torch_geometric.nn.aggr")
    x, lengths, index = positive
    ours = pooling.GroupGeneralizedMeanPool(8, 4, eps=1e-3).double()
    theirs = aggr.PowerMeanAggregation(1.0, learn=True, channels=8, clamp_min=1e-3, clamp_max=None).double()
    with torch.no_grad():
        ours.p.copy_(torch.tensor([0.5, 1.5, 3.0, 8.0]))
        theirs.p.copy_(ours.p.repeat_interleave(2))
    y, z = ours.ragged(x, lengths), theirs(x, index)
    same(y, z, x)
    by_group = torch.autograd.grad(z.sum(), theirs.p)[0].view(4, 2).sum(1)
    torch.testing.assert_close(torch.autograd.grad(y.sum(), ours.p)[0], by_group)


@pytest.mark.peer("ada_pool", "torch")
@pytest.mark.parametrize("focus", [None, 2])
def test_ada_pool(focus):
    """A query that is the mean, or one token, with torch's own layer behind it."""
    ours = pooling.AdaPool(8, 2, focus=focus).double()
    theirs = nn.MultiheadAttention(8, 2, bias=False, batch_first=True).double()
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([p.weight for p in (ours.q_proj, ours.k_proj, ours.v_proj)]))
        theirs.out_proj.weight.copy_(ours.o_proj.weight)
    x = torch.randn(3, 6, 8, dtype=torch.float64, requires_grad=True)
    query = x.mean(1, keepdim=True) if focus is None else x[:, focus : focus + 1]
    y, weights = theirs(query, x, x, average_attn_weights=False)
    same(ours(x), y[:, 0] if focus is None else (y + query)[:, 0], x)
    torch.testing.assert_close(ours(x, return_weights=True)[1], weights)


@pytest.mark.peer("class_token_pool", "torch")
def test_class_token_through_torchs_encoder():
    """Torch's pre-norm encoder layer with our weights, a token put in front, its state read at the end."""
    pool = pooling.ClassTokenPool(8, TinyEncoder(8, 2, num_layers=1)).double()
    layer = nn.TransformerEncoderLayer(
        8, 2, 32, dropout=0.0, activation="gelu", batch_first=True, norm_first=True, dtype=torch.float64
    )
    attention, encoder = pool.encoder.attention[0], pool.encoder
    with torch.no_grad():
        layer.self_attn.in_proj_weight.copy_(
            torch.cat([p.weight for p in (attention.q_proj, attention.k_proj, attention.v_proj)])
        )
        layer.self_attn.out_proj.weight.copy_(attention.o_proj.weight)
    for theirs, ours in (
        (layer.linear1, encoder.feed_forward[0][0]), (layer.linear2, encoder.feed_forward[0][2]),
        (layer.norm1, encoder.norms[0]), (layer.norm2, encoder.norms[1]),
    ):  # fmt: skip
        theirs.load_state_dict(ours.state_dict())
    x, keep = torch.randn(3, 6, 8, dtype=torch.float64, requires_grad=True), torch.rand(3, 6) > 0.3
    keep[:, 0] = True
    u = torch.cat([pool.tokens[0].mean.expand(3, 1, -1), x], 1)
    padding = ~F.pad(keep, (1, 0), value=True)
    same(pool(x, keep), layer(u, src_key_padding_mask=padding)[:, 0], x)


@pytest.mark.peer("distillation_token_loss", "torch")
def test_distillation_loss():
    a, b, teacher = (torch.randn(5, 4, dtype=torch.float64, requires_grad=True) for _ in range(3))
    labels = torch.randint(4, (5,))
    kl = F.kl_div((b / 3).log_softmax(-1), (teacher / 3).log_softmax(-1), log_target=True, reduction="batchmean")
    entropy = torch.distributions.Categorical(logits=teacher / 3).entropy().mean()
    ours = pooling.distillation_token_loss(a, b, labels, teacher, temperature=3.0)
    same(ours, F.cross_entropy(a, labels) + kl + entropy, a, b, teacher)
