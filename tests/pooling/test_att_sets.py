"""AttSets at its limits, streamed, and trained in two stages."""

import copy
import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mhlib.experiments.memory import peak_memory
from mhlib.pooling import AttSets, AttSetsMaps, SetModel, faset


def sets(batch=3, tokens=7, dim=5):
    return torch.randn(batch, tokens, dim, dtype=torch.float64)


def test_by_hand_with_two_outputs():
    pool, x = AttSets(5, num_outputs=2).double(), sets()
    y, weights = pool(x, return_weights=True)
    for p in range(2):
        w = (x @ pool.score.weight[5 * p : 5 * p + 5].T).softmax(1)
        torch.testing.assert_close(y[:, p], (w * x).sum(1))
        torch.testing.assert_close(weights[:, p], w.mT)


def test_a_set_of_one_is_itself_and_its_scores_learn_nothing():
    pool, x = AttSets(5).double(), sets(tokens=1)
    torch.testing.assert_close(pool(x), x[:, 0])
    gradient = torch.autograd.grad(pool(x).square().sum(), pool.score.weight)[0]
    assert gradient.abs().max() < 1e-12


def test_a_bias_of_the_scores_cancels():
    pool, x = AttSets(5).double(), sets()
    bias = torch.randn(5, dtype=torch.float64, requires_grad=True)
    shifted = (((pool.score(x) + bias).softmax(1)) * x).sum(1)
    torch.testing.assert_close(shifted, pool(x))
    assert torch.autograd.grad(shifted.square().sum(), bias)[0].abs().max() < 1e-12


def test_a_large_identity_is_the_maximum():
    pool, x = AttSets(5).double(), sets()
    errors = []
    for beta in (1.0, 10.0, 1e4):
        with torch.no_grad():
            pool.score.weight.copy_(beta * torch.eye(5))
        errors.append((pool(x) - x.amax(1)).abs().max())
    assert errors[0] > errors[1] > errors[2] and errors[2] < 1e-3


def test_ties_have_finite_gradients():
    pool, x = AttSets(5).double(), torch.ones(2, 4, 5, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(pool(x), x[:, 0])
    assert torch.autograd.grad(pool(x).sum(), x)[0].isfinite().all()


def test_squashed_scores():
    pool, x = AttSets(5, tanh=True).double(), sets()
    torch.testing.assert_close(pool(x), ((pool.score(x).tanh()).softmax(1) * x).sum(1))


def test_a_million_elements_in_bounded_memory():
    pool, pieces = AttSets(4), 100

    def piece(seed):
        return torch.randn(1, 10_000, 4, generator=torch.Generator().manual_seed(seed))

    @torch.no_grad()
    def streamed():
        state = pool.start(1, torch.empty(0))
        for seed in range(pieces):
            state = pool.update(state, piece(seed))
        return state

    held = peak_memory(streamed)
    whole = 4 * 4 * 10_000 * pieces  # bytes of the bag alone
    assert held < whole / 10, f"{held} bytes for a bag of {whole}"
    state = streamed()
    assert [t.numel() for t in state] == [4, 4, 4]
    with torch.no_grad():
        bag = torch.cat([piece(seed) for seed in range(pieces)], 1).double()
        torch.testing.assert_close(pool.finish(state).double(), pool.double()(bag), atol=1e-5, rtol=1e-3)


def test_maps_are_weighed_at_every_place():
    pool, x = AttSetsMaps(2).double(), torch.randn(2, 3, 2, 4, 5, dtype=torch.float64)
    scores = torch.stack([F.conv2d(one, pool.score.weight, padding=1) for one in x.unbind(1)], 1)
    torch.testing.assert_close(pool(x), (scores.softmax(1) * x).sum(1))
    torch.testing.assert_close(pool(x[:, [2, 0, 1]]), pool(x))
    torch.testing.assert_close(pool(x[:, :1]), x[:, 0])


def model():
    return SetModel(4, nn.Linear(4, 3), AttSets(3), nn.Sequential(nn.Tanh(), nn.Linear(3, 2)))


def batches(views=3, count=5):
    return [(torch.randn(6, views, 4), torch.randn(6, 2)) for _ in range(count)]


def test_each_stage_trains_its_own_part():
    start, data = model(), batches()
    first = faset(start, data, steps=(4, 0), loss=F.mse_loss)
    second = faset(start, data, steps=(4, 4), loss=F.mse_loss)
    before, after = start.state_dict(), second.state_dict()
    for name, value in first.state_dict().items():
        moved = not torch.equal(value, before[name])
        assert moved != name.startswith("pool"), f"stage 1 and {name}"
        assert torch.equal(value, after[name]) != name.startswith("pool"), f"stage 2 and {name}"
    assert all(p.requires_grad and p.grad is None for p in second.parameters())


def test_stage_one_sees_single_elements_with_their_sets_target():
    seen = []

    def loss(y, target):
        seen.append((tuple(y.shape), target.clone()))
        return F.mse_loss(y, target)

    data = batches(views=3, count=1)
    faset(model(), data, steps=(1, 1), loss=loss)
    assert seen[0][0] == (18, 2) and seen[1][0] == (6, 2)
    torch.testing.assert_close(seen[0][1], data[0][1].repeat_interleave(3, 0))


def test_two_stages_learn():
    torch.manual_seed(0)
    data, start = batches(), model()
    trained = faset(start, data, steps=(150, 150), loss=F.mse_loss, lr=2e-2)
    mean = lambda m: sum(F.mse_loss(m(x), y).item() for x, y in data)  # noqa: E731
    stage_one = faset(start, data, steps=(150, 0), loss=F.mse_loss, lr=2e-2)
    assert mean(trained) < mean(stage_one) < mean(start)


def test_batches_may_be_an_iterator_and_must_be_enough():
    endless = (batches(count=1)[0] for _ in itertools.count())
    assert isinstance(faset(model(), endless, steps=(2, 2), loss=F.mse_loss), SetModel)
    with pytest.raises(ValueError, match="batches ended after 1 of 2 steps"):
        faset(model(), iter(batches(count=3)), steps=(2, 2), loss=F.mse_loss)


def test_frozen_parameters_come_back_as_they_were():
    start = model()
    start.encoder.bias.requires_grad_(False)
    kept = copy.deepcopy(start.encoder.bias)
    trained = faset(start, batches(), steps=(2, 2), loss=F.mse_loss)
    assert not trained.encoder.bias.requires_grad and torch.equal(trained.encoder.bias, kept)


def test_errors(as_a_user):
    with pytest.raises(ValueError, match="num_outputs must be at least 1, got 0"):
        AttSets(4, num_outputs=0)
    with pytest.raises(ValueError, match="kernel_size must be odd"):
        AttSetsMaps(4, kernel_size=2)
    with pytest.raises(ValueError, match=r"wants \(batch, elements, 4, height, width\), got \(2, 4, 5, 5\)"):
        AttSetsMaps(4)(torch.zeros(2, 4, 5, 5))
