"""Bag pools against torch_geometric's aggregations of the instances' probabilities and scores."""

import pytest
import torch
from torch import nn

from mhlib import pooling


@pytest.fixture
def bags():
    """Ragged bags as torch_geometric has them: all instances in one tensor, and the number of each one's bag."""
    lengths = torch.tensor([3, 1, 6])
    x = torch.randn(10, 5, dtype=torch.float64, requires_grad=True)
    return x, lengths, torch.arange(3).repeat_interleave(lengths)


def same(ours, theirs, x):
    torch.testing.assert_close(ours, theirs)
    weight = torch.randn_like(ours)
    torch.testing.assert_close(*(torch.autograd.grad((y * weight).sum(), x, retain_graph=True)[0] for y in (ours, theirs)))


@pytest.mark.peer("mean_instance_pool", "torch_geometric")
def test_mean(bags):
    aggr = pytest.importorskip("torch_geometric.nn.aggr")
    x, lengths, index = bags
    pool = pooling.MeanInstancePool(5, 2).double()
    same(pool.ragged(x, lengths), aggr.MeanAggregation()(pool.score(x).sigmoid(), index), x)


@pytest.mark.peer("max_instance_pool", "torch_geometric")
def test_max(bags):
    aggr = pytest.importorskip("torch_geometric.nn.aggr")
    x, lengths, index = bags
    pool = pooling.MaxInstancePool(5, 2).double()
    same(pool.ragged(x, lengths), aggr.MaxAggregation()(pool.score(x).sigmoid(), index), x)


@pytest.mark.peer("attention_instance_pool", "torch_geometric")
def test_attention_of_probabilities(bags):
    aggr = pytest.importorskip("torch_geometric.nn.aggr")
    x, lengths, index = bags
    pool = pooling.AttentionInstancePool(5, 2).double()
    gate = nn.Linear(5, 2).double()  # its bias cancels
    with torch.no_grad():
        gate.weight.copy_(pool.attend.weight)
    theirs = aggr.AttentionalAggregation(gate, nn.Sequential(pool.score, nn.Sigmoid()))
    same(pool.ragged(x, lengths), theirs(x, index), x)


@pytest.mark.peer("attention_score_pool", "torch_geometric")
def test_attention_of_scores(bags):
    aggr = pytest.importorskip("torch_geometric.nn.aggr")
    x, lengths, index = bags
    pool = pooling.AttentionScorePool(5).double()
    theirs = aggr.AttentionalAggregation(pool.attend, pool.score)
    same(pool.ragged(x, lengths), theirs(x, index).sigmoid(), x)
