"""Pooling a pair (row 36) and pooling with a context (row 186)."""

import math

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from mhlib import cost
from mhlib.pooling import AttentivePairPool, LowRankContextPool


def random(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def keep(batch, tokens):
    mask = torch.rand(batch, tokens) > 0.4
    mask[:, 0] = True
    return mask


def test_pair_by_hand():
    pool, x, other = AttentivePairPool(4).double().requires_grad_(False), random(1, 3, 4), random(1, 5, 4)
    table = [[math.tanh(x[0, n] @ pool.form[0] @ other[0, m]) for m in range(5)] for n in range(3)]
    rows = torch.tensor([max(row) for row in table], dtype=torch.float64).softmax(0)
    columns = torch.tensor([max(column) for column in zip(*table)], dtype=torch.float64).softmax(0)
    y, z, weights, other_weights = pool(x, other, return_weights=True)
    torch.testing.assert_close(weights[0, 0], rows)
    torch.testing.assert_close(other_weights[0, 0], columns)
    torch.testing.assert_close(y[0], rows @ x[0])
    torch.testing.assert_close(z[0], columns @ other[0])


def test_heads_are_pools_of_slices():
    pool, x, other = AttentivePairPool(6, 2).double(), random(2, 3, 6), random(2, 5, 6)
    results = []
    for h in range(2):
        one = AttentivePairPool(3).double()
        with torch.no_grad():
            one.form.copy_(pool.form[h : h + 1])
        results.append(one(x[..., 3 * h : 3 * h + 3], other[..., 3 * h : 3 * h + 3]))
    for whole, parts in zip(pool(x, other), zip(*results)):
        torch.testing.assert_close(whole, torch.cat(parts, -1))


def test_pair_padding_is_as_if_absent():
    pool, x, other = AttentivePairPool(6, 2).double(), random(4, 7, 6), random(4, 5, 6)
    mine, theirs = keep(4, 7), keep(4, 5)
    junk = [torch.where(mask[..., None], side, 1e3 * random(*side.shape)) for side, mask in ((x, mine), (other, theirs))]
    y, z, w, u = pool(*junk, mine, theirs, return_weights=True)
    assert (w.transpose(1, 2)[~mine] == 0).all() and (u.transpose(1, 2)[~theirs] == 0).all()
    for i in range(4):
        alone = pool(x[i : i + 1, mine[i]], other[i : i + 1, theirs[i]])
        torch.testing.assert_close((y[i], z[i]), (alone[0][0], alone[1][0]))


def test_pair_order_does_not_count():
    pool, x, other = AttentivePairPool(6).double(), random(2, 7, 6), random(2, 5, 6)
    torch.testing.assert_close(pool(x[:, torch.randperm(7)], other[:, torch.randperm(5)]), pool(x, other))


@pytest.mark.parametrize("empty", ["key_mask", "other_mask"])
def test_a_side_without_tokens(empty):
    pool = AttentivePairPool(6).double()
    x, other = random(2, 4, 6).requires_grad_(), random(2, 4, 6).requires_grad_()
    mask = torch.tensor([[True] * 4, [False] * 4])
    y, z = pool(x, other, **{empty: mask})
    nothing, there, side = (y, z, other) if empty == "key_mask" else (z, y, x)
    assert (nothing[1] == 0).all()
    torch.testing.assert_close(there[1], side[1].mean(0))
    gradients = torch.autograd.grad(y.sum() + z.sum(), (x, other, pool.form))
    assert all(g.isfinite().all() for g in gradients)


def test_no_token_can_count_more_than_the_tanh_allows():
    """Logits lie in -1..1, so a weight is at most e^2 / (e^2 + N - 1), however sure the form is."""
    for n in (2, 10, 100):
        x = torch.cat([torch.ones(1, 1, 1), -torch.ones(1, n - 1, 1)], 1).double()
        pool = AttentivePairPool(1).double()
        with torch.no_grad():
            pool.form.fill_(1e3)
        _, _, weights, _ = pool(x, torch.ones(1, 1, 1).double(), return_weights=True)
        torch.testing.assert_close(weights.max().item(), math.e**2 / (math.e**2 + n - 1))


def test_pair_errors(as_a_user):
    pool = AttentivePairPool(6)
    x, other = torch.randn(2, 4, 6), torch.randn(2, 5, 6)
    for call, text in (
        (lambda: AttentivePairPool(6, 4), "must divide dim, got dim=6 and num_heads=4"),
        (lambda: pool(x[0], other), r"wants x of shape \(batch, tokens, 6\), got \(4, 6\)"),
        (lambda: pool(x, other[..., :5]), r"wants other of shape \(batch, tokens, 6\), got \(2, 5, 5\)"),
        (lambda: pool(x[:1], other), "got 1 and 2 sequences"),
        (lambda: pool(x, other, torch.ones(2, 4)), "key_mask must be boolean .* got torch.float32"),
        (lambda: pool(x, other, None, torch.ones(2, 4, dtype=torch.bool)), r"other_mask .* \(2, 5\), got \(2, 4\)"),
    ):
        with pytest.raises(ValueError, match=text):
            call()


def test_context_by_hand():
    pool, x = LowRankContextPool(4, 3, rank=2).double().requires_grad_(False), random(1, 5, 4)
    p, q = (w.weight.unflatten(0, (3, 2)) for w in (pool.q_proj, pool.k_proj))
    c = x[0].mean(0)
    f = torch.tensor([[math.tanh(sum((p[h, r] @ c) * (q[h, r] @ t) for r in range(2))) for t in x[0]] for h in range(3)])
    a = (f / f.square().sum(0).sqrt()).double().softmax(1)
    y, weights = pool(x, return_weights=True)
    torch.testing.assert_close(weights[0, :, 0], a, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(y[0], (a @ x[0]).flatten(), atol=1e-6, rtol=1e-6)


def test_one_head_keeps_the_size_of_its_logits():
    pool, x = LowRankContextPool(4, 1).double(), random(2, 5, 4)
    z = torch.tanh((x.mean(1, keepdim=True) @ pool.q_proj.weight.T) * (x @ pool.k_proj.weight.T))
    torch.testing.assert_close(pool(x), (z.softmax(1) * x).sum(1))


def test_a_given_context_replaces_the_mean():
    given, mean = LowRankContextPool(4, 2, context="given").double(), LowRankContextPool(4, 2).double()
    given.load_state_dict(mean.state_dict())
    x, mask = random(3, 6, 4), keep(3, 6)
    centre = torch.stack([t[m].mean(0) for t, m in zip(x, mask)])
    torch.testing.assert_close(given(x, mask, query=centre), mean(x, mask))
    assert not torch.allclose(given(x, mask, query=-centre), mean(x, mask))


@pytest.mark.parametrize("context", ["mean", "learned"])
def test_cost_is_counted(context):
    pool = LowRankContextPool(8, 3, rank=2, context=context)
    counted = cost.of(pool, queries=1, keys=9, batch=2)
    assert counted.parameters == sum(p.numel() for p in pool.parameters())
    with FlopCounterMode(display=False) as counter:
        pool(torch.randn(2, 9, 8), return_weights=True)
    assert counted.matmul_flops == counter.get_total_flops()


def test_context_errors(as_a_user):
    with pytest.raises(ValueError, match="context must be one of mean, learned, given, got 'sum'"):
        LowRankContextPool(4, 2, context="sum")
    with pytest.raises(ValueError, match="must be at least 1, got 2 and 0"):
        LowRankContextPool(4, 2, rank=0)
    pool = LowRankContextPool(4, 2, context="given")
    with pytest.raises(TypeError, match="needs the argument query"):
        pool(torch.randn(2, 3, 4))
    with pytest.raises(ValueError, match=r"query must be \(batch, dim\) = \(2, 4\), got \(2, 5\)"):
        pool(torch.randn(2, 3, 4), query=torch.randn(2, 5))
