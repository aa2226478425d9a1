"""Plain pools at their limits: one token, constant tokens, ties, padding on either side, long streams, few bytes."""

import pytest
import torch

from mhlib import pooling
from mhlib.experiments import peak_memory
from mhlib.functional.pooling import masked_mean

STREAMS = {
    "mean": lambda: pooling.MeanPool(8),
    "max": lambda: pooling.MaxPool(8),
    "min": lambda: pooling.MinPool(8),
    "std": lambda: pooling.StdPool(8),
    "log_sum_exp": lambda: pooling.LogSumExpPool(8, 0.3),
    "gem": lambda: pooling.GeneralizedMeanPool(8),
    "ggem": lambda: pooling.GroupGeneralizedMeanPool(8, 4),
}
ONE = {
    **STREAMS,
    "first": lambda: pooling.FirstPool(8),
    "last": lambda: pooling.LastPool(8),
    "median": lambda: pooling.MedianPool(8),
    "quantile": lambda: pooling.QuantilePool(8, 0.2),
}


def doubles(*shape):
    return torch.randn(*shape, dtype=torch.float64)


@pytest.mark.parametrize("name", ONE)
@pytest.mark.parametrize("tokens", [1, 5])
def test_tokens_that_are_all_alike_pool_to_themselves(name, tokens):
    pool = ONE[name]().double()
    token = doubles(3, 1, 8).abs() + 0.1  # positive, so that the clamp of the generalized mean leaves it
    want = torch.zeros_like(token[:, 0]) if name == "std" else token[:, 0]
    torch.testing.assert_close(pool(token.expand(-1, tokens, -1)), want)


@pytest.mark.parametrize("name", ONE)
def test_gradients_are_finite_at_ties_and_zero_variance(name):
    pool = ONE[name]().double()
    x = doubles(2, 1, 8).abs().expand(-1, 4, -1).clone().requires_grad_()
    gradient = torch.autograd.grad(pool(x).sum(), x)[0]
    assert gradient.isfinite().all()
    total = gradient.sum(1)
    torch.testing.assert_close(total, torch.zeros_like(total) if name == "std" else torch.ones_like(total))


@pytest.mark.parametrize("name", STREAMS)
def test_a_million_instances_in_pieces_equal_the_whole(name):
    pool = STREAMS[name]()
    x = torch.rand(1, 1_000_000, 8) + 0.1
    with torch.no_grad():
        state = pool.start(1, x)
        for piece in x.split(4096, 1):
            state = pool.update(state, piece)
        torch.testing.assert_close(pool.finish(state), pool.double()(x.double()).float(), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["log_sum_exp", "ggem", "std"])
def test_a_stream_needs_the_memory_of_one_piece(name):
    pool, piece = STREAMS[name](), torch.rand(1, 4096, 8)

    def stream(pieces):
        state = pool.start(1, piece)
        for _ in range(pieces):
            state = pool.update(state, piece)
        return pool.finish(state)

    with torch.no_grad():
        few, many = (peak_memory(lambda n=n: stream(n)) for n in (2, 64))
    assert few > 0 and many <= 1.1 * few, f"{few} bytes for 2 pieces, {many} for 64"


def test_the_ends_with_padding_on_either_side():
    x = doubles(2, 5, 3)
    left = torch.tensor([[False, False, True, True, True]] * 2)
    right = left.flip(1)
    first, last = pooling.FirstPool(3), pooling.LastPool(3)
    assert torch.equal(last(x, right), x[:, 2]) and torch.equal(last(x, left), x[:, 4])
    assert torch.equal(first(x, left), x[:, 2]) and torch.equal(first(x, right), x[:, 0])
    holes = torch.tensor([[False, True, False, True, False]] * 2)
    assert torch.equal(first(x, holes), x[:, 1]) and torch.equal(last(x, holes), x[:, 3])
    _, weights = last(x, right, return_weights=True)
    assert weights.tolist() == [[0, 0, 1, 0, 0]] * 2


def test_one_outlier_moves_the_mean_and_not_the_median():
    x = doubles(1, 9, 4)
    wild = x.clone()
    wild[0, 0] = 1e6
    assert (pooling.MeanPool(4)(wild) - pooling.MeanPool(4)(x)).abs().min() > 1e4
    assert (pooling.MedianPool(4)(wild) - pooling.MedianPool(4)(x)).abs().max() < 5


def test_ties_share_the_gradient_of_the_maximum():
    x = torch.tensor([[[1.0], [3.0], [3.0]]], requires_grad=True)
    assert torch.autograd.grad(pooling.MaxPool(1)(x).sum(), x)[0].flatten().tolist() == [0, 0.5, 0.5]


def test_a_small_deviation_beside_a_large_mean():
    x = 1e4 + 1e-2 * torch.randn(1, 5000, 4)
    want = x.double().std(1, correction=0).float()
    pool = pooling.StdPool(4)
    state = pool.start(1, x)
    for piece in x.split(500, 1):
        state = pool.update(state, piece)
    for y in (pool(x), pool.finish(state)):
        torch.testing.assert_close(y, want, rtol=0.02, atol=0)


HALVES = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)


@HALVES
@pytest.mark.parametrize("q", [0.0, 0.5, 0.99, 1.0])
def test_a_quantile_of_many_tokens_in_half_precision(dtype, q):
    for tokens in (300, 1001, 5000):
        x = torch.randn(1, tokens, 3).to(dtype)
        want = x.double().quantile(q, 1).to(dtype)
        torch.testing.assert_close(pooling.QuantilePool(3, q)(x), want, atol=0, rtol=2 * torch.finfo(dtype).eps)


@HALVES
def test_sums_that_do_not_fit_into_half_precision(dtype):
    tolerance = dict(atol=0, rtol=2 * torch.finfo(dtype).eps)
    many, wide = torch.full((1, 70_000, 1), 100.0), 300 * torch.randn(1, 50, 1)
    for x in (many.to(dtype), wide.to(dtype), torch.randn(1, 70_000, 1).to(dtype)):
        spread = x.double().std(1, correction=0).to(dtype)
        torch.testing.assert_close(pooling.StdPool(1)(x), spread, **tolerance)
        for mean in (masked_mean(x), masked_mean(x, torch.ones(x.shape[:2], dtype=torch.bool))):
            torch.testing.assert_close(mean, x.double().mean(1).to(dtype), atol=1e-4, rtol=tolerance["rtol"])
        pool = pooling.StdPool(1)
        state = pool.start(1, x)
        for piece in x.tensor_split(5, 1):
            state = pool.update(state, piece)
        torch.testing.assert_close(pool.finish(state).to(dtype), spread, **tolerance)
    assert pooling.MeanPool(1)(many.to(dtype)).item() == 100


def test_a_piece_without_tokens_leaves_the_state_as_it_is():
    for name, make in STREAMS.items():
        pool, x = make(), torch.rand(2, 5, 8)
        state = pool.update(pool.start(2, x), x)
        for nothing in (pool.update(state, x[:, :0]), pool.update(state, x[:, :0], torch.ones(2, 0, dtype=torch.bool))):
            assert all(torch.equal(a, b) for a, b in zip(nothing, state)), name


def test_wrong_arguments(as_a_user):
    with pytest.raises(ValueError, match="between 0 and 1, got 1.5"):
        pooling.QuantilePool(4, 1.5)
    with pytest.raises(ValueError, match="eps must not be negative, got -1"):
        pooling.StdPool(4, -1.0)
    with pytest.raises(ValueError, match="no weights to return"):
        pooling.MaxPool(4)(torch.randn(1, 2, 4), return_weights=True)
