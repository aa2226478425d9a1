"""Pools as functions of inner means, running means, the AUC's saddle point and its optimiser, MIDAM."""

import copy

import pytest
import torch
from torch import nn

from mhlib.experiments.memory import peak_memory
from mhlib.pooling import MIDAM, AttentionScorePool, AUCMinMax, RunningMeans, SmoothedMaxPool, midam

POOLS = [lambda: SmoothedMaxPool(4, temperature=0.5, squash=False), lambda: AttentionScorePool(4)]


def bags(count=5, tokens=9, dim=4):
    return torch.randn(count, tokens, dim, dtype=torch.float64)


def slopes(h, pool):
    return torch.autograd.grad(h.square().sum(), list(pool.parameters()), retain_graph=True)


@pytest.mark.parametrize("make", POOLS)
def test_whole_bags_and_gamma_one_give_the_exact_gradient(make):
    pool, x = make().double(), bags()
    means = RunningMeans(5, gamma=1.0).double()
    for _ in range(2):
        h = means(pool, x, torch.arange(5))
        torch.testing.assert_close(h, pool(x))
        torch.testing.assert_close(slopes(h, pool), slopes(pool(x), pool))


def test_smoothed_maximum_as_the_paper_writes_it():
    pool, means = SmoothedMaxPool(4, temperature=0.5, squash=False).double(), RunningMeans(5, 0.3, start=(0.0, 0.0)).double()
    s = torch.zeros(5, 1, dtype=torch.float64)
    for visit in range(4):
        index = torch.tensor([0, 3, 4]) if visit % 2 else torch.tensor([3, 1])
        x = bags(len(index), 2)
        sampled = (pool.score(x)[..., 0] / 0.5).exp().mean(1, keepdim=True)
        s[index] = 0.7 * s[index] + 0.3 * sampled.detach()
        h = means(pool, x, index)
        torch.testing.assert_close(h, 0.5 * s[index].log())
        by_hand = (2 * h.detach() * 0.5 / s[index] * sampled).sum()  # h dh, with dh = tau / s d(mean)
        want = torch.autograd.grad(by_hand, list(pool.parameters()))
        torch.testing.assert_close(slopes(h, pool), want)


def test_attention_as_the_paper_writes_it():
    pool, means = AttentionScorePool(4).double(), RunningMeans(5, 0.3, start=(1.0, 1.0)).double()
    u, v = torch.ones(2, 5, 1, dtype=torch.float64)
    for visit in range(4):
        index = torch.tensor([0, 3, 4]) if visit % 2 else torch.tensor([3, 1])
        x = bags(len(index), 2)
        weight, delta = pool.attend(x)[..., 0].exp(), pool.score(x)[..., 0]
        top, bottom = (weight * delta).mean(1, keepdim=True), weight.mean(1, keepdim=True)
        u[index] = 0.7 * u[index] + 0.3 * top.detach()
        v[index] = 0.7 * v[index] + 0.3 * bottom.detach()
        r = u[index] / v[index]
        h = means(pool, x, index)
        torch.testing.assert_close(h, r.sigmoid())
        dh = r.sigmoid() * (1 - r.sigmoid()) * (top / v[index] - u[index] / v[index].square() * bottom)
        want = torch.autograd.grad((2 * h.detach() * dh).sum(), list(pool.parameters()))
        torch.testing.assert_close(slopes(h, pool), want)


def test_a_start_at_zero_makes_the_first_score_too_low():
    """As released; by tau log(1 / gamma), and its gradient too large by 1 / gamma."""
    pool, x, index = SmoothedMaxPool(4, temperature=0.5).double(), bags(), torch.arange(5)
    zero, ours = (RunningMeans(5, 0.1, start=start).double()(pool, x, index) for start in ((0.0, 0.0), None))
    torch.testing.assert_close(ours - zero, torch.full_like(zero, 0.5).mul(torch.tensor(10.0).double().log()))
    grads = [torch.autograd.grad(h.sum(), pool.score.weight)[0] for h in (zero, ours)]
    torch.testing.assert_close(grads[0], 10 * grads[1])


def test_the_estimate_survives_scores_whose_exponential_overflows():
    pool = SmoothedMaxPool(4, temperature=0.1, squash=False)
    with torch.no_grad():
        pool.score.weight.fill_(30.0)
    x, means = 2 + bags().float().abs(), RunningMeans(5, 0.5)
    for _ in range(3):
        h = means(pool, x, torch.arange(5))
    torch.testing.assert_close(h, pool(x))
    assert (pool.score(x) / 0.1).exp().isinf().any() and all(g.isfinite().all() for g in slopes(h, pool))


@pytest.mark.parametrize("make", POOLS)
def test_running_means_are_less_biased_than_samples(make):
    """At fixed weights, two of 40 instances a visit: the estimate's score comes nearer to the bag's than the sample's does."""
    pool, x = make().double(), 2 * bags(1, 40)
    with torch.no_grad():
        pool.score.weight.mul_(3)
        want, gaps = pool(x), {}
        for gamma in (1.0, 0.05):
            means, seen = RunningMeans(1, gamma).double(), []
            for visit in range(800):
                chosen = torch.randperm(40)[:2]
                h = means(pool, x[:, chosen], torch.tensor([0]))
                if visit >= 100:
                    seen.append(h.item())
            gaps[gamma] = abs(sum(seen) / len(seen) - want.item()), torch.tensor(seen).std().item()
    assert gaps[0.05][1] < 0.5 * gaps[1.0][1], gaps  # and varies less
    if isinstance(pool, SmoothedMaxPool):  # the logarithm is concave: its bias has a sign
        assert gaps[0.05][0] < 0.5 * gaps[1.0][0], gaps


def test_padding_of_a_sample_does_not_count():
    pool, x = AttentionScorePool(4).double(), bags()
    keep = torch.ones(5, 9, dtype=torch.bool)
    keep[:, 6:] = False
    some, all_of_them = (RunningMeans(5).double() for _ in range(2))
    torch.testing.assert_close(some(pool, x, torch.arange(5), keep), all_of_them(pool, x[:, :6], torch.arange(5)))


@pytest.mark.parametrize("make", POOLS)
def test_a_million_instances_in_bounded_memory(make):
    pool, pieces = make(), 50
    piece = lambda seed: torch.randn(1, 20_000, 4, generator=torch.Generator().manual_seed(seed))  # noqa: E731

    @torch.no_grad()
    def streamed():
        state = pool.start(1, torch.empty(0))
        for seed in range(pieces):
            state = pool.update(state, piece(seed))
        return state

    held, whole = peak_memory(streamed), 4 * 4 * 20_000 * pieces
    assert held < whole / 5, f"{held} bytes for a bag of {whole}"
    with torch.no_grad():
        state, bag = streamed(), torch.cat([piece(seed) for seed in range(pieces)], 1).double()
        torch.testing.assert_close(pool.finish(state).double(), pool.double()(bag), atol=1e-5, rtol=1e-4)


def test_the_saddle_point_is_the_squared_loss_of_all_pairs():
    """At the best a, b and alpha the min-max is the mean of (c - (h+ - h-))^2 over pairs, exactly."""
    h, labels = torch.randn(12, 1, dtype=torch.float64), torch.tensor([1.0, 0, 0] * 4)
    loss = AUCMinMax(0.7).double()
    up, down = h[labels.bool(), 0], h[~labels.bool(), 0]
    gap = 0.7 + down.mean() - up.mean()
    with torch.no_grad():
        loss.a.fill_(up.mean())
        loss.b.fill_(down.mean())
        loss.alpha.fill_(gap)
    pairs = (0.7 - (up[:, None] - down)).square().mean()
    torch.testing.assert_close(loss(h, labels), pairs)
    assert all(p.grad is None or p.grad.abs() < 1e-12 for p in loss.parameters())
    loss(h, labels).backward()
    assert all(p.grad.abs() < 1e-12 for p in loss.parameters())


def test_the_optimizer_descends_averages_and_ascends():
    loss, w = AUCMinMax(1.0).double(), nn.Parameter(torch.tensor([1.0, -2.0]).double())
    optimizer = MIDAM([w, loss.a, loss.b], loss, 0.1, momentum=0.4, weight_decay=0.01)
    want, m, alpha = w.detach().clone(), None, 0.0
    labels, x = torch.tensor([1.0, 0.0, 0.0, 1.0]), torch.randn(4, 2).double()
    for _ in range(3):
        a, b = loss.a.item(), loss.b.item()
        h = x @ w.detach()
        up, down = h[labels.bool()], h[~labels.bool()]
        terms = 2 * (up - a) @ x[labels.bool()] / 2 + 2 * (down - b) @ x[~labels.bool()] / 2
        g = terms + 2 * alpha * (x[~labels.bool()].mean(0) - x[labels.bool()].mean(0)) + 0.01 * want
        m = g if m is None else 0.4 * m + 0.6 * g
        rise = 1.0 + down.mean().item() - up.mean().item() - alpha
        want, alpha = want - 0.1 * m, max(0.0, alpha + 0.1 * rise)
        loss((x @ w)[:, None], labels).backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.testing.assert_close(w.detach(), want)
        assert abs(loss.alpha.item() - alpha) < 1e-12


def test_alpha_does_not_become_negative():
    loss = AUCMinMax(0.1)
    h = torch.tensor([[5.0], [-5.0]], requires_grad=True)
    loss(h, torch.tensor([1.0, 0.0])).backward()
    MIDAM([loss.a, loss.b], loss, 0.5).step()
    assert loss.alpha.item() == 0


@pytest.mark.parametrize("make", [SmoothedMaxPool, AttentionScorePool])
def test_learns_to_rank_bags_with_a_witness(make):
    random = torch.Generator().manual_seed(0)
    x = torch.randn(60, 30, 4, generator=random)
    labels = (torch.arange(60) < 30).float()
    x[:30, 0] += 3.0  # one instance of each positive bag
    auc = lambda p: (p(x[:30]) > p(x[30:]).T).float().mean().item()  # noqa: E731
    found = []
    for seed in range(3):
        start = make(4, nn.Sequential(nn.Linear(4, 16), nn.Tanh()), 16)
        trained = midam(start, x, labels, steps=300, instances=6, per_class=8, gamma=0.5, seed=seed)
        found.append((auc(start), auc(trained)))
        assert all(p.grad is None for p in trained.parameters())
    before, after = torch.tensor(found).mean(0).tolist()
    assert after > max(0.9, before), found


def test_the_same_seed_gives_the_same_pool_and_the_global_generator_is_left_alone():
    x, labels, start = bags(6).float(), torch.tensor([1.0, 0, 1, 0, 1, 0]), AttentionScorePool(4)
    before = torch.get_rng_state()
    first, second, other = (midam(start, x, labels, steps=3, instances=2, per_class=2, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    pairs = list(zip(*(m.state_dict().values() for m in (first, second, other))))
    assert all(torch.equal(a, b) for a, b, _ in pairs) and not all(torch.equal(a, c) for a, _, c in pairs)


def test_samples_hold_real_instances_without_repetition():
    from mhlib.pooling.bags.midam import sample

    x = torch.arange(20.0).view(2, 10, 1)
    keep = torch.arange(10) < torch.tensor([[3], [10]])
    random = torch.Generator().manual_seed(0)
    for _ in range(20):
        chosen, real = sample(x, keep, 5, random)
        assert sorted(chosen[0, real[0]].flatten().tolist()) == [0, 1, 2]
        assert real[1].all() and len(set(chosen[1].flatten().tolist())) == 5


def test_errors(as_a_user):
    x, labels = bags(4).float(), torch.tensor([1.0, 0, 1, 0])
    with pytest.raises(ValueError, match="temperature must be positive, got 0"):
        SmoothedMaxPool(4, temperature=0)
    with pytest.raises(ValueError, match="gamma must be above 0 and at most 1, got 0: with 0 no sample"):
        RunningMeans(3, 0)
    with pytest.raises(ValueError, match="index must give the bag of each of the 4 samples, got shape"):
        RunningMeans(9)(AttentionScorePool(4), x, torch.arange(3))
    with pytest.raises(ValueError, match="margin must be positive, got -1"):
        AUCMinMax(-1)
    with pytest.raises(ValueError, match="positive and negative bags, got 4 positives of 4"):
        AUCMinMax()(x[:, 0, :1], torch.ones(4))
    loss = AUCMinMax()
    with pytest.raises(ValueError, match="holds the loss's alpha, which ascends"):
        MIDAM(loss.parameters(), loss)
    with pytest.raises(ValueError, match="momentum must be at least 0 and below 1, got 1"):
        MIDAM([loss.a], loss, momentum=1)
    with pytest.raises(ValueError, match="got 0 positive and 4 negative ones"):
        midam(AttentionScorePool(4), x, torch.zeros(4), steps=1, instances=2)
    with pytest.raises(ValueError, match="must be at least 1, got 1, 0 and 8"):
        midam(AttentionScorePool(4), x, labels, steps=1, instances=0)
    with pytest.raises(ValueError, match="the loss is .* at step .*: try a smaller lr than"):
        midam(copy.deepcopy(SmoothedMaxPool(4, squash=False)), 1e20 * x, labels, steps=9, instances=2, lr=1e6)
