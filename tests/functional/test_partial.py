"""Partial results: merging is a commutative monoid, and the energy's second derivative is the covariance of the values."""

import torch

import mhlib
from mhlib.functional.partial import attend_partial, attention_energy, merge_partials


def draw(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def test_the_hessian_of_the_energy_is_the_covariance_of_the_values():
    q, k, v = draw(1, 1, 1, 8), draw(1, 1, 20, 8), draw(1, 1, 20, 4)
    out, weights = mhlib.attention(q, k, v, return_weights=True)
    source = torch.zeros(1, 1, 1, 4, dtype=torch.float64)
    hessian = torch.autograd.functional.hessian(lambda zeta: attention_energy(q, k, v, zeta).sum(), source)
    centred = v[0, 0] - out[0, 0, 0]
    torch.testing.assert_close(hessian.view(4, 4), (weights[0, 0, 0, :, None] * centred).T @ centred)


def test_merging_is_associative_and_commutative():
    q = draw(2, 4, 3, 8)
    a, b, c = (attend_partial(q, draw(2, 2, keys, 8), draw(2, 2, keys, 6)) for keys in (1, 5, 9))
    for left, right in (
        (merge_partials(a, b), merge_partials(b, a)),
        (merge_partials(merge_partials(a, b), c), merge_partials(a, merge_partials(b, c))),
    ):
        torch.testing.assert_close(left.out, right.out)
        torch.testing.assert_close(left.lse, right.lse)


def test_no_keys_are_the_neutral_element():
    q, k, v = draw(2, 4, 3, 8), draw(2, 2, 5, 8), draw(2, 2, 5, 6)
    nothing, part = attend_partial(q, k[..., :0, :], v[..., :0, :]), attend_partial(q, k, v)
    assert (nothing.lse == float("-inf")).all() and not nothing.out.any()
    for merged in (merge_partials(nothing, part), merge_partials(part, nothing)):
        assert torch.equal(merged.out, part.out) and torch.equal(merged.lse, part.lse)
    both = merge_partials(nothing, nothing)
    assert (both.lse == float("-inf")).all() and not both.out.any()
