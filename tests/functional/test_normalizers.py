"""Normalizers: closed forms, masks, limits, gradients, and agreement with the entmax package."""

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mhlib.functional import normalizers as nz

ALL = {
    "softmax": nz.softmax,
    "softmax_one": nz.softmax_one,
    "sink_softmax": partial(nz.sink_softmax, sink=torch.tensor([0.3, -1.0], dtype=torch.float64)),
    "relu": nz.relu,
    "sigmoid": nz.sigmoid,
    "sparsemax": nz.sparsemax,
    "entmax15": nz.entmax15,
    "entmax": partial(nz.entmax, alpha=1.3),
}
SUMS_TO_ONE = ["softmax", "sparsemax", "entmax15", "entmax"]


def logits(*shape, spread=3.0):
    return (torch.randn(*(shape or (2, 2, 3, 7)), dtype=torch.float64) * spread).requires_grad_()


@pytest.mark.parametrize("name", ALL)
def test_masked_keys_are_as_if_absent(name):
    z = logits()
    mask = torch.tensor([True, False, True, True, False, True, False])
    full = ALL[name](z, mask.view(1, 1, 1, -1))
    assert (full[..., ~mask] == 0).all()
    torch.testing.assert_close(full[..., mask], ALL[name](z[..., mask]))
    gradient = torch.autograd.grad(full.square().sum(), z)[0]
    assert (gradient[..., ~mask] == 0).all() and gradient.isfinite().all()


@pytest.mark.parametrize("name", ALL)
def test_a_row_without_keys_gets_zeros_and_no_gradient(name):
    z = logits()
    weights = ALL[name](z, torch.zeros(1, 1, 1, 7, dtype=torch.bool))
    assert (weights == 0).all()
    assert (torch.autograd.grad(weights.sum(), z)[0] == 0).all()


@pytest.mark.parametrize("name", SUMS_TO_ONE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("spread", [0.0, 1.0, 1e4])
def test_rows_are_distributions(name, dtype, spread):
    weights = ALL[name](logits(3, 2, 4, 9, spread=spread).to(dtype))
    assert (weights >= 0).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(3, 2, 4, dtype=dtype))


@pytest.mark.parametrize("name", ALL)
def test_gradients(name):
    mask = torch.rand(2, 2, 3, 7) > 0.2
    assert torch.autograd.gradcheck(lambda z: ALL[name](z, mask), logits(spread=1.0))


def test_softmax_one_is_a_sink_at_zero():
    z, mask = logits(), torch.rand(2, 1, 3, 7) > 0.3
    torch.testing.assert_close(nz.softmax_one(z, mask), nz.sink_softmax(z, mask, sink=torch.zeros(2)))
    torch.testing.assert_close(nz.softmax_one(z), z.exp() / (1 + z.exp().sum(-1, keepdim=True)))


def test_sink_softmax_is_softmax_with_one_more_column():
    z, sink = logits(), torch.randn(2, dtype=torch.float64)
    column = sink.view(1, 2, 1, 1).expand(2, 2, 3, 1)
    torch.testing.assert_close(nz.sink_softmax(z, sink=sink), torch.cat([z, column], -1).softmax(-1)[..., :-1])
    torch.testing.assert_close(nz.sink_softmax(z, sink=torch.full((2,), -1e9)), z.softmax(-1))


def test_relu_and_sigmoid_count_only_keys_that_may_be_seen():
    z = torch.ones(1, 1, 1, 5)
    mask = torch.tensor([True, True, False, False, False]).view(1, 1, 1, -1)
    torch.testing.assert_close(nz.relu(z, mask)[0, 0, 0], torch.tensor([0.5, 0.5, 0, 0, 0]))
    expected = 1 / (1 + 2 * torch.tensor(-1.0).exp())
    torch.testing.assert_close(nz.sigmoid(z, mask)[0, 0, 0, :2], expected.expand(2))
    torch.testing.assert_close(nz.sigmoid(z, bias=0.5), (z + 0.5).sigmoid())


@settings(deadline=None, max_examples=40)
@given(keys=st.integers(1, 12), spread=st.floats(0.1, 20), seed=st.integers(0, 2**31))
def test_entmax_special_cases(keys, spread, seed):
    torch.manual_seed(seed)
    z = logits(4, keys, spread=spread)
    torch.testing.assert_close(nz.entmax(z, alpha=2.0), nz.sparsemax(z))
    torch.testing.assert_close(nz.entmax(z, alpha=1.5), nz.entmax15(z))
    torch.testing.assert_close(nz.entmax(z, alpha=1.0), z.softmax(-1), atol=1e-5, rtol=1e-4)


def test_sparsemax_is_the_projection_onto_the_simplex():
    z = logits(50, 6, spread=1.0)
    weights = nz.sparsemax(z)
    for _ in range(50):  # no other point of the simplex is nearer
        other = torch.rand(50, 6, dtype=z.dtype).softmax(-1)
        assert ((weights - z).norm(dim=-1) <= (other - z).norm(dim=-1) + 1e-12).all()


def test_entmax_learns_alpha():
    z = logits(2, 2, 3, 7, spread=1.0)
    alpha = torch.tensor([1.2, 1.8], dtype=torch.float64).view(2, 1, 1).requires_grad_()
    assert torch.autograd.gradcheck(lambda z, a: nz.entmax(z, alpha=a), (z, alpha))


@pytest.mark.peer("entmax", "entmax")
def test_against_the_entmax_package():
    peer = pytest.importorskip("entmax")
    z = logits(5, 30)
    for ours, theirs in (
        (nz.sparsemax(z), peer.sparsemax(z, -1)),
        (nz.entmax15(z), peer.entmax15(z, -1)),
        (nz.entmax(z, alpha=1.7), peer.entmax_bisect(z, 1.7)),
    ):
        torch.testing.assert_close(ours, theirs, atol=1e-7, rtol=1e-6)
        torch.testing.assert_close(
            *(torch.autograd.grad(w.pow(3).sum(), z, retain_graph=True)[0] for w in (ours, theirs)), atol=1e-6, rtol=1e-5
        )
    alpha = torch.tensor(1.4, dtype=z.dtype, requires_grad=True)
    ours, theirs = nz.entmax(z, alpha=alpha), peer.entmax_bisect(z, alpha)
    torch.testing.assert_close(
        *(torch.autograd.grad(w.pow(3).sum(), alpha)[0] for w in (ours, theirs)), atol=1e-6, rtol=1e-5
    )


def test_unknown_names_are_told():
    with pytest.raises(ValueError, match="must be one of softmax, softmax_one.*got 'hardmax'"):
        nz.get_normalizer("hardmax")
