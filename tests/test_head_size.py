"""The low-rank bottleneck: exact when wide enough, and the best that a narrow head can do."""

import pytest
import torch

from mhlib.analysis import fit_attention, nearest_pattern


def formed(x, pattern, head_dim):
    w_q, w_k = fit_attention(x, pattern, head_dim)
    assert w_q.shape == w_k.shape == (x.shape[1], head_dim)
    return ((x @ w_q) @ (x @ w_k).T / head_dim**0.5).softmax(-1)


def test_exact_from_as_many_dimensions_as_tokens():
    x, pattern = torch.randn(6, 9, dtype=torch.float64), torch.randn(6, 6, dtype=torch.float64).softmax(-1)
    for head_dim in (6, 8):
        torch.testing.assert_close(formed(x, pattern, head_dim), pattern, atol=1e-9, rtol=0)
    assert (formed(x, pattern, 3) - pattern).abs().max() > 1e-3


def test_the_nearest_pattern_comes_nearer_with_width_and_beats_truncation():
    x, pattern = torch.randn(8, 9, dtype=torch.float64), (2 * torch.randn(8, 8, dtype=torch.float64)).softmax(-1)
    divergence = lambda p: (pattern * (pattern / p).log()).sum(-1).mean().item()  # noqa: E731
    near = [divergence(nearest_pattern(pattern, width)) for width in (1, 3, 5, 7)]
    assert near == sorted(near, reverse=True) and near[-1] < 1e-4 < near[0]  # a softmax ignores one rank: width n - 1 is enough
    assert near[1] < divergence(formed(x, pattern, 3))


def test_errors():
    with pytest.raises(ValueError, match="4 tokens of width 3 cannot be linearly independent; give at most 3"):
        fit_attention(torch.randn(4, 3), torch.full((4, 4), 0.25), 2)
    with pytest.raises(ValueError, match="positive everywhere"):
        fit_attention(torch.randn(2, 3), torch.eye(2), 2)
