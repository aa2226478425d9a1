"""Attention pools and their framework against torch, torch_geometric and scikit-learn."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mhlib import pooling


@pytest.fixture
def sets():
    """Ragged sets as torch_geometric has them: all tokens in one tensor, and the number of each one's set."""
    lengths = torch.tensor([3, 1, 6])
    x = torch.randn(10, 8, dtype=torch.float64, requires_grad=True)
    return x, lengths, torch.arange(3).repeat_interleave(lengths)


def padded(x, lengths):
    return nn.utils.rnn.pad_sequence(x.split(lengths.tolist()), batch_first=True), torch.arange(6) < lengths[:, None]


def same(ours, theirs, x):
    torch.testing.assert_close(ours, theirs)
    weight = torch.randn_like(ours)
    torch.testing.assert_close(*(torch.autograd.grad((y * weight).sum(), x, retain_graph=True)[0] for y in (ours, theirs)))


@pytest.mark.peer("att_sets", "torch_geometric")
def test_weights_per_channel(sets):
    aggr = pytest.importorskip("torch_geometric.nn.aggr")
    x, lengths, index = sets
    pool = pooling.AttSets(8).double()
    gate = nn.Linear(8, 8).double()  # its bias cancels
    with torch.no_grad():
        gate.weight.copy_(pool.score.weight)
    same(pool.ragged(x, lengths), aggr.AttentionalAggregation(gate)(x, index), x)


@pytest.mark.peer("attentive_average_pool", "torch_geometric")
def test_one_scorer(sets):
    aggr = pytest.importorskip("torch_geometric.nn.aggr")
    x, lengths, index = sets
    pool = pooling.AttentiveAveragePool(8, 1).double()
    read = nn.Linear(8, 1, bias=False).double()
    with torch.no_grad():
        read.weight.copy_(pool.query)
    gate = nn.Sequential(pool.hidden, nn.Tanh(), read)
    same(pool(*padded(x, lengths)), pool.o_proj(aggr.AttentionalAggregation(gate)(x, index)), x)


@pytest.mark.peer("qkv_pool", "torch")
def test_mean_of_self_attention(sets):
    x, lengths, _ = sets
    pool, attention = pooling.QKVPool(8, 2).double(), nn.MultiheadAttention(8, 2, bias=False, batch_first=True).double()
    with torch.no_grad():
        attention.in_proj_weight.copy_(torch.cat([p.weight for p in (pool.q_proj, pool.k_proj, pool.v_proj)]))
        attention.out_proj.load_state_dict(pool.o_proj.state_dict())
    tokens, keep = padded(x, lengths)
    out, _ = attention(tokens, tokens, tokens, key_padding_mask=~keep)
    same(pool(tokens, keep), torch.stack([row[:n].mean(0) for row, n in zip(out, lengths)]), x)


@pytest.mark.peer("sim_pool", "torch")
@pytest.mark.parametrize("gamma", [None, 2.0])
def test_the_mean_asks(sets, gamma):
    x, lengths, _ = sets
    pool = pooling.SimPool(8, gamma=gamma).double()
    expected = []
    for tokens in x.split(lengths.tolist()):
        v = F.layer_norm(tokens, (8,), pool.norm.weight, pool.norm.bias, eps=1e-6)
        q = tokens.mean(0, keepdim=True) @ pool.q_proj.weight.T
        lifted = v if gamma is None else (v - v.min() + 1e-6).pow(gamma)
        u = F.scaled_dot_product_attention(q, v @ pool.k_proj.weight.T, lifted)[0]
        expected.append(u if gamma is None else u.pow(1 / gamma))
    same(pool(*padded(x, lengths)), torch.stack(expected), x)


@pytest.mark.peer("framework_pool", "sklearn")
def test_k_means():
    cluster = pytest.importorskip("sklearn.cluster")
    x = torch.randn(60, 8, dtype=torch.float64)
    pool = pooling.k_means_parts(8, 3, iterations=8).double()
    with torch.no_grad():
        pool.start.query.copy_(x[:3])
    fitted = cluster.KMeans(3, init=x[:3].numpy(), n_init=1, max_iter=8, tol=0.0).fit(x.numpy())
    y, weights = pool(x[None], return_weights=True)
    torch.testing.assert_close(y[0], torch.tensor(fitted.cluster_centers_))
    assert weights.shape == (1, 3, 60)
