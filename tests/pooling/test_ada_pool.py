"""AdaPool: what its query is, what masks do to it, the bound on the weight of noise, and that it is odd."""

import math

import pytest
import torch

from mhlib.pooling import AdaPool, MaxPool


def doubles(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def identity(pool):
    with torch.no_grad():
        for proj in (pool.q_proj, pool.k_proj, pool.v_proj, pool.o_proj):
            proj.weight.copy_(torch.eye(pool.dim))
    return pool.double()


def test_a_focal_token_is_added_and_the_mean_is_not():
    x = doubles(2, 5, 4)
    for focus, extra in ((None, 0), (2, x[:, 2]), (-1, x[:, -1]), ((0, 3), 0)):
        pool = AdaPool(4, 2, focus=focus).double()
        silent = AdaPool(4, 2, focus=focus).double()
        silent.load_state_dict(pool.state_dict())
        with torch.no_grad():
            silent.o_proj.weight.zero_()
        torch.testing.assert_close(silent(x), torch.zeros(2, 4, dtype=torch.float64) + extra)
        assert not torch.allclose(pool(x), silent(x))


def test_several_tokens_ask_with_their_mean():
    x, pool = doubles(2, 5, 4), identity(AdaPool(4, focus=(1, 3)))
    logits = x[:, [1, 3]].mean(1)[:, None] @ x.mT / 2
    torch.testing.assert_close(pool(x), (logits.softmax(-1) @ x)[:, 0])


@pytest.mark.parametrize("focus", [None, 1, (0, 1, 4)])
def test_masked_tokens_are_absent_from_the_query_too(focus):
    pool = AdaPool(4, 2, focus=focus).double()
    x, keep = doubles(2, 6, 4), torch.tensor([[True, True, True, True, False, False]] * 2)
    junk = torch.where(keep[..., None], x, 1e3)
    torch.testing.assert_close(pool(junk, keep), pool(x, keep))
    absent = AdaPool(4, 2, focus=4).double()
    torch.testing.assert_close(absent(junk, keep), absent(x, keep))


def test_scale_of_the_model_width():
    pool = identity(AdaPool(4, 2, scale="model"))
    x = doubles(1, 6, 4)
    weights = pool(x, return_weights=True)[1]
    logits = x.mean(1).view(1, 2, 1, 2) @ x.view(1, 6, 2, 2).transpose(1, 2).mT / 2
    torch.testing.assert_close(weights, logits.softmax(-1))


def test_a_margin_bounds_the_weight_of_noise():
    signal, noise, margin, spread = 3, 29, 2.5, 0.4
    signals = margin + spread * torch.rand(200, signal, dtype=torch.float64)
    noises = -3 * torch.rand(200, noise, dtype=torch.float64)
    weights = torch.cat([signals, noises], 1).softmax(-1)
    bound = noise * math.exp(-margin) / (signal + noise * math.exp(-margin))
    assert weights[:, signal:].sum(1).max() <= bound
    assert (weights[:, :signal].amax(1) / weights[:, :signal].amin(1)).max() <= math.exp(spread)
    tight = torch.tensor([margin] * signal + [0.0] * noise, dtype=torch.float64).softmax(-1)
    assert tight[signal:].sum().item() == pytest.approx(bound)


def test_a_large_margin_gives_the_mean_of_the_signal():
    """Signal vectors that share a direction, noise orthogonal to it, a query map that is large."""
    direction = torch.tensor([1.0, 0, 0, 0], dtype=torch.float64)
    x = doubles(2, 12, 4) * (1 - direction)
    x[:, :3] += direction
    pool = identity(AdaPool(4))
    with torch.no_grad():
        pool.q_proj.weight.copy_(1e4 * torch.outer(direction, direction))
    torch.testing.assert_close(pool(x), x[:, :3].mean(1))


def test_without_biases_it_is_odd_and_the_maximum_is_not():
    x = doubles(2, 7, 4)
    for focus in (None, 0, (1, 2)):
        pool = AdaPool(4, 2, focus=focus).double()
        torch.testing.assert_close(pool(-x), -pool(x))
    assert not torch.allclose(MaxPool(4)(-x), -MaxPool(4)(x))


@pytest.mark.parametrize(
    "call, text",
    [
        (lambda: AdaPool(4, scale="width"), "'head' or 'model', got 'width'"),
        (lambda: AdaPool(4, focus=()), "names no token"),
        (lambda: AdaPool(4, num_queries=2), "got num_queries=2"),
        (lambda: AdaPool(4, focus=5)(torch.randn(1, 3, 4)), "focus is 5, but the sets have 3"),
        (lambda: AdaPool(4, focus=-4)(torch.randn(1, 3, 4)), "focus is -4, but the sets have 3"),
    ],
)
def test_wrong_arguments(call, text, as_a_user):
    with pytest.raises(ValueError, match=text):
        call()
