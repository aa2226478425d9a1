"""Sharing keys and values: conversions of a trained layer, and what they keep."""

import copy

import pytest
import torch

from mhlib.functional.positions import Rotary
from mhlib.heads import (
    GroupedQueryAttention,
    MultiHeadAttention,
    MultiHeadLatentAttention,
    MultiQueryAttention,
    WeightedGroupedQueryAttention,
)


@pytest.fixture
def x():
    return torch.randn(2, 5, 32)


def test_mean_pooling_averages_the_heads_of_a_group():
    mha = MultiHeadAttention(32, 8, bias=True, rope=Rotary(4))
    gqa = GroupedQueryAttention.from_multi_head(mha, 2)
    heads = mha.k_proj.weight.view(8, 4, 32)
    torch.testing.assert_close(gqa.k_proj.weight.view(2, 4, 32), torch.stack([heads[:4].mean(0), heads[4:].mean(0)]))
    torch.testing.assert_close(gqa.v_proj.bias.view(2, 4), mha.v_proj.bias.view(2, 4, 4).mean(1))
    assert gqa.rope == mha.rope and torch.equal(gqa.q_proj.weight, mha.q_proj.weight)


def test_first_head_and_random():
    mha = MultiHeadAttention(32, 8)
    first = GroupedQueryAttention.from_multi_head(mha, 2, pooling="first")
    torch.testing.assert_close(first.k_proj.weight.view(2, 4, 32), mha.k_proj.weight.view(8, 4, 32)[[0, 4]])
    random = GroupedQueryAttention.from_multi_head(mha, 2, pooling="random")
    torch.testing.assert_close(random.k_proj.weight.std(), mha.k_proj.weight.std(), rtol=0.15, atol=0)


@pytest.mark.parametrize("pooling", ["mean", "first"])
def test_lossless_when_the_heads_of_a_group_are_equal(x, pooling):
    mha = MultiHeadAttention(32, 8)
    with torch.no_grad():
        for proj in (mha.k_proj, mha.v_proj):
            proj.weight.copy_(proj.weight.view(4, 2, 4, 32)[:, :1].expand(-1, 2, -1, -1).reshape(32, 32))
    torch.testing.assert_close(GroupedQueryAttention.from_multi_head(mha, 4, pooling=pooling)(x), mha(x))


def test_a_grouped_layer_can_be_grouped_further(x):
    mha = MultiHeadAttention(32, 8)
    steps = GroupedQueryAttention.from_multi_head(GroupedQueryAttention.from_multi_head(mha, 4), 1)
    torch.testing.assert_close(steps(x), GroupedQueryAttention.from_multi_head(mha, 1)(x))
    torch.testing.assert_close(MultiQueryAttention.from_multi_head(mha)(x), steps(x))


class OwnScore(MultiHeadAttention):
    def score(self, q, k, call):
        return super().score(q, k, call).tanh()


@pytest.mark.parametrize(
    "layer, lost",
    [
        (lambda: OwnScore(32, 8), "OwnScore, whose own score would be lost"),
        (lambda: MultiHeadLatentAttention(32, 8, kv_rank=8), "MultiHeadLatentAttention, whose own make_projections, project"),
    ],
)
def test_a_mechanism_of_its_own_is_not_dropped(layer, lost):
    convert = GroupedQueryAttention, MultiQueryAttention, WeightedGroupedQueryAttention, MultiHeadLatentAttention
    for cls in convert:
        options = {"kv_rank": 8} if cls is MultiHeadLatentAttention else {"num_kv_heads": 1}
        with pytest.raises(ValueError, match=f"expected plain multi-head or grouped attention, got {lost}"):
            cls.from_multi_head(layer(), **options)


@pytest.mark.parametrize("granularity, numbers", [("scalar", 2 * 8), ("column", 2 * 8 * 4), ("row", 2 * 8 * 32)])
def test_weighted_grouping_learns_and_folds(x, granularity, numbers):
    mha = MultiHeadAttention(32, 8, bias=True)
    before = copy.deepcopy(mha.state_dict())
    layer = WeightedGroupedQueryAttention.from_multi_head(mha, 2, granularity=granularity)
    assert layer.k_weights.numel() + layer.v_weights.numel() == numbers  # row 231's count
    torch.testing.assert_close(layer(x), GroupedQueryAttention.from_multi_head(mha, 2)(x))
    target = torch.randn_like(x)
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    losses = []
    for _ in range(5):
        loss = (layer(x) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] and not torch.allclose(layer.k_weights, torch.full_like(layer.k_weights, 0.25))
    torch.testing.assert_close(layer.fold()(x), layer(x))
    assert all(torch.equal(value, before[name]) for name, value in mha.state_dict().items())


@pytest.mark.parametrize(
    "call, match",
    [
        (lambda mha: GroupedQueryAttention.from_multi_head(mha, 3), "must divide the layer's 8 key heads, got num_kv_heads=3"),
        (lambda mha: GroupedQueryAttention.from_multi_head(mha, 2, pooling="max"), "pooling must be one of mean, first, random"),
        (lambda mha: MultiQueryAttention(32, 8, num_kv_heads=2), "has one key head, got num_kv_heads=2"),
        (
            lambda mha: WeightedGroupedQueryAttention(32, 8, num_kv_heads=2, granularity="head"),
            "granularity must be one of scalar, column, row, got 'head'",
        ),
        (
            lambda mha: WeightedGroupedQueryAttention.from_multi_head(GroupedQueryAttention(32, 8, num_kv_heads=2), 1),
            "a key head per head, got 2 for 8 heads",
        ),
    ],
)
def test_errors(call, match):
    with pytest.raises(ValueError, match=match):
        call(MultiHeadAttention(32, 8))
