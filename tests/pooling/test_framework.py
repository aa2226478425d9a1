"""SimPool's framework: each instance is the pool that it is said to be, and the parts behave at their limits."""

import pickle

import pytest
import torch
from torch import nn

from mhlib import pooling
from mhlib.pooling.attentive import assignments


def sets(batch=3, tokens=7, dim=5):
    return torch.randn(batch, tokens, dim, dtype=torch.float64)


def keep(batch=3, tokens=7):
    mask = torch.rand(batch, tokens) > 0.4
    mask[:, 0] = True
    return mask


def same(pool, expected, x):
    """Equal outputs and input gradients."""
    pool, x = pool.double(), x.requires_grad_()
    ours, theirs = pool(x), expected(x)
    weight = torch.randn_like(ours)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(*(torch.autograd.grad((y * weight).sum(), x)[0] for y in (ours, theirs)))


def test_average():
    same(pooling.average_parts(5), lambda x: x.mean(1), sets())


@pytest.mark.parametrize("gamma", [-1.0, 0.5, 1.0, 3.0])
def test_generalized_mean(gamma):
    same(pooling.gem_parts(5, gamma), lambda x: x.pow(gamma).mean(1).pow(1 / gamma), sets().abs() + 0.1)


@pytest.mark.parametrize("r", [-2.0, 0.1, 5.0])
def test_log_sum_exp(r):
    same(pooling.exponential_parts(5, r), lambda x: (r * x).exp().mean(1).log() / r, sets())


def test_maximum_is_the_limit_of_both_averages():
    x = sets().abs() + 0.1
    for instance in (pooling.gem_parts, pooling.exponential_parts):
        errors = [(instance(5, strength).double()(x) - x.amax(1)).abs().max() for strength in (10.0, 100.0, 1e4)]
        assert errors[0] > errors[1] > errors[2] and errors[2] < 1e-3
    for instance, mean in ((pooling.gem_parts, x.mean(1)), (pooling.exponential_parts, x.mean(1))):
        start = {pooling.gem_parts: 1.0, pooling.exponential_parts: 0.0}[instance]
        errors = [(instance(5, start + step).double()(x) - mean).abs().max() for step in (0.1, 1e-2, 1e-4)]
        assert errors[0] > errors[1] > errors[2] and errors[2] < 1e-3


def test_class_token():
    pool = pooling.class_token_parts(5).double()

    def class_token(x):
        q = pool.start.query @ pool.query.weight.T
        k, v = x @ pool.key.weight.T, x @ pool.value.weight.T
        return torch.nn.functional.scaled_dot_product_attention(q.expand(x.shape[0], -1, -1), k, v)[:, 0]

    same(pool, class_token, sets())


def test_k_means_with_a_query_that_gets_nothing():
    x = sets(batch=1, tokens=6)
    pool = pooling.k_means_parts(5, 3, iterations=1).double()
    with torch.no_grad():
        pool.start.query.copy_(torch.stack([x[0, :3].mean(0), x[0, 3:].mean(0), torch.full((5,), 1e3)]))
    y, weights = pool(x, return_weights=True)
    nearest = torch.cdist(pool.start.query, x[0]).argmin(0)
    for k in (0, 1):
        torch.testing.assert_close(y[0, k], x[0, nearest == k].mean(0))
    assert (weights[0, 2] == 0).all() and torch.equal(y[0, 2], pool.start.query[2]), "an empty query should stay where it is"


def test_slots_by_hand():
    pool = pooling.slot_parts(5, 3, iterations=2).double()
    x = sets(batch=1)

    def slots(x):
        u = pool.start.query
        for _ in range(2):
            q, k, v = pool.query(u), pool.key(x[0]), pool.value(x[0])
            share = (q @ k.T / 5**0.5).softmax(0)  # each token among the slots
            z = torch.stack([(row[:, None] * v).sum(0) / row.sum() for row in share])
            u = pool.update.gru(z, u)
            u = u + pool.update.mlp(u)
        return u[None]

    same(pool, slots, x)


def test_transport_shares_the_set_evenly():
    pool = pooling.transport_parts(5, 3, epsilon=20.0).double()  # soft enough to converge in few rounds
    x, mask = sets(), keep()
    _, weights = pool(x, mask, return_weights=True)
    torch.testing.assert_close(weights.sum(-1), torch.ones(3, 3, dtype=torch.float64))
    given = weights.sum(1) / 3 * mask.sum(1, keepdim=True)  # by each token, in units of 1/N
    torch.testing.assert_close(given, mask.double(), atol=1e-6, rtol=0)


@pytest.mark.parametrize("assign", [pooling.over_tokens, pooling.over_queries, pooling.nearest_query, pooling.sinkhorn])
def test_weights_sum_to_one_or_to_zero(assign):
    mask = keep()
    mask[2] = False
    similarity = 10 * torch.randn(3, 4, 7, dtype=torch.float64, requires_grad=True)
    weights = assign(similarity, mask[:, None])
    total = weights.sum(-1)
    assert ((total - 1).abs().lt(1e-9) | total.eq(0)).all() and (weights >= 0).all()
    assert (weights.masked_select(~mask[:, None]) == 0).all()
    if weights.requires_grad:
        assert torch.autograd.grad(weights.square().sum(), similarity)[0].isfinite().all()
    torch.testing.assert_close(assign(similarity), assign(similarity, torch.ones_like(mask)[:, None]))


@pytest.mark.parametrize("mean", [pooling.PowerMean(2.0, shift=True), pooling.PowerMean(-1.0), pooling.ExponentialMean(3.0)])
def test_averages_are_finite_where_it_is_hard(mean):
    pool = pooling.FrameworkPool(5, start=pooling.MeanStart(), similarity=pooling.no_similarity, mean=mean)
    for x in (torch.zeros(2, 3, 5), torch.full((2, 3, 5), -1e4), torch.randn(2, 1, 5), 1e4 * torch.randn(2, 3, 5)):
        y = pool(x.requires_grad_())
        assert y.isfinite().all() and torch.autograd.grad(y.sum(), x)[0].isfinite().all()
    x, mask = torch.randn(2, 3, 5, requires_grad=True), torch.tensor([[True, False, True], [False] * 3])
    y = pool(torch.where(mask[..., None], x, 1e30), mask)
    gradient = torch.autograd.grad(y.sum(), x)[0]
    assert y[0].isfinite().all() and (y[1] == 0).all() and gradient.isfinite().all()


def test_temperature():
    """A similarity times a large number picks one token, times zero all alike."""
    x = sets()

    def pool(sharpness):
        return pooling.FrameworkPool(
            5, start=pooling.MeanStart(), similarity=lambda q, k: sharpness * pooling.scaled_dot(q, k)
        )

    torch.testing.assert_close(pool(0.0)(x), x.mean(1))
    best = pooling.scaled_dot(x.mean(1, keepdim=True), x)[:, 0].argmax(-1)
    torch.testing.assert_close(pool(1e6)(x), x[torch.arange(3), best])


@pytest.mark.parametrize("make, queries", [(pooling.average_parts, ()), (pooling.transport_parts, (3,)), (pooling.slot_parts, (3,))])
def test_a_pool_can_be_pickled(make, queries):
    pool, x = make(5, *queries).double(), sets()
    torch.testing.assert_close(pickle.loads(pickle.dumps(pool))(x), pool(x))


def test_errors(as_a_user):
    with pytest.raises(ValueError, match="iterations must be at least 1, got 0"):
        pooling.FrameworkPool(5, start=pooling.MeanStart(), iterations=0)
    for mean, name in ((pooling.PowerMean, "gamma"), (pooling.ExponentialMean, "r")):
        with pytest.raises(ValueError, match=f"{name} must not be 0"):
            mean(0.0)


def test_all_assignments_are_public():
    assert {f for f in assignments.__all__} <= set(dir(pooling)) and isinstance(pooling.slot_parts(4, 2), nn.Module)


@pytest.mark.parametrize("behind", [50.0, 95.0, 1000.0])
def test_a_query_that_loses_every_token_has_a_finite_gradient(behind):
    """Its shares underflow, and so does their sum."""
    from mhlib.pooling.attentive.assignments import over_queries

    similarity = torch.randn(2, 3, 5)
    similarity[:, 1] -= behind
    similarity.requires_grad_()
    weights = over_queries(similarity)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 3))
    (gradient,) = torch.autograd.grad(weights.square().sum(), similarity)
    assert gradient.isfinite().all() and gradient[:, 1].abs().max() > 0
    shares = similarity.double().softmax(1)
    if behind < 100:
        torch.testing.assert_close(weights.double(), shares / shares.sum(-1, keepdim=True), atol=1e-5, rtol=1e-4)
