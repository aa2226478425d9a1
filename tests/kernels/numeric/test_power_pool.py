"""Generalized means against the pool of the library in float64: exponents of all kinds, masks, ragged sets, parts."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels.common import DEVICE, DTYPES, ON_GPU, close, pairwise
from kernels.pools import LENGTHS, exact, laid_out, make, mask_of, offsets

from mhlib.kernels import parts, power_pool


def positive(*shape, dtype=torch.float32):
    """Most of them positive; values below the least one among them, and none close to it, where fp16 would decide."""
    x = make(*shape, dtype=dtype, grad=False)
    return torch.where(x.abs() < 0.05, 0.05, x + 1).to(dtype).requires_grad_()


def reference(x, p, *, key_mask=None, eps=1e-6):
    """The powers as they stand, in float64; by their largest, so that they stay finite."""
    p = p.repeat_interleave(x.shape[-1] // len(p))
    logits = p * torch.where(x < eps, eps, x).log()
    keep = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if key_mask is None else key_mask
    nothing = ~keep.any(1)[:, None, None]
    logits = torch.where(keep[..., None] | nothing, logits, float("-inf"))
    count = keep.sum(1, keepdim=True).double()
    mean = ((logits.logsumexp(1) - count.clamp_min(1).log()) / p).exp() if x.shape[1] else x.sum(1)
    return torch.where(count > 0, mean, 0.0)


def one_by_one(x, p, *, cu_seqlens, eps=1e-6):
    at = cu_seqlens.tolist()
    return torch.cat([reference(x[None, a:b], p, eps=eps) for a, b in zip(at, at[1:])])


def agree(x, p, dtype, want=reference, **options):
    y = power_pool(x, p, **options)
    x64, p64 = exact(x), exact(p)
    wanted = want(x64, p64, **options)
    assert y.dtype == dtype
    close(y, wanted, "output", dtype, factor=2)
    d_y = torch.randn_like(y)
    got, expected = torch.autograd.grad(y, (x, p), d_y), torch.autograd.grad(wanted, (x64, p64), d_y.double())
    for name, a, b in zip(("x", "p"), got, expected):
        close(a, b, f"gradient of {name}", dtype, factor=10)


OPTIONS = {
    "tokens": [1, 15, 16, 37, 64],
    "p": [(3.0,), (0.5, 1.0, 7.0), (-2.0, -0.5), (0.05,), "channels"],
    "dim": [6, 48],
    "key_mask": [None, "right", "holes", "nothing"],
    "dtype": DTYPES,
    "layout": ["plain", "turned", "strided"],
    "wanted": [1, 8, 10**6],
}


@pytest.mark.parametrize("row", pairwise(OPTIONS), ids=str)
def test_pairs_of_options(row, monkeypatch):
    monkeypatch.setattr(parts, "WANTED", row["wanted"])
    torch.manual_seed(0)
    p = torch.linspace(0.5, 6, row["dim"]) if row["p"] == "channels" else torch.tensor(row["p"])
    x = laid_out(positive(2, row["tokens"], row["dim"], dtype=row["dtype"]), row["layout"])
    p = p.to(DEVICE, torch.promote_types(row["dtype"], torch.float32)).requires_grad_()
    agree(x, p, row["dtype"], key_mask=mask_of(row["key_mask"], 2, row["tokens"]), eps=2.0**-10)


@pytest.mark.parametrize("row", pairwise({"lengths": LENGTHS, "dtype": DTYPES, "wanted": [1, 10**6]}), ids=str)
def test_ragged(row, monkeypatch):
    monkeypatch.setattr(parts, "WANTED", row["wanted"])
    torch.manual_seed(1)
    p = torch.tensor([3.0, -1.5], dtype=torch.promote_types(row["dtype"], torch.float32), device=DEVICE, requires_grad=True)
    agree(positive(sum(row["lengths"]), 6, dtype=row["dtype"]), p, row["dtype"], one_by_one, cu_seqlens=offsets(row["lengths"]))


@settings(max_examples=15 if not ON_GPU else 200, deadline=None)
@given(
    batch=st.integers(1, 3), tokens=st.integers(1, 50), groups=st.integers(1, 4), width=st.integers(1, 9),
    power=st.floats(0.25, 8) | st.floats(-8, -0.25), seed=st.integers(0, 2**31),
)  # fmt: skip
def test_any_shape(batch, tokens, groups, width, power, seed):
    torch.manual_seed(seed)
    p = torch.full((groups,), power, device=DEVICE, requires_grad=True)
    agree(positive(batch, tokens, groups * width), p, torch.float32, eps=2.0**-10)


def test_the_library_computes_the_same():
    from mhlib.pooling import GroupGeneralizedMeanPool

    torch.manual_seed(2)
    pool = GroupGeneralizedMeanPool(12, 3).to(DEVICE, torch.float64)
    with torch.no_grad():
        pool.p.copy_(torch.tensor([0.5, 3.0, 8.0]))
    x, keep = positive(3, 40, 12), mask_of("right", 3, 40)
    close(power_pool(x, pool.p.float(), key_mask=keep), pool(x.double(), keep), "output", torch.float32)


def test_large_powers_neither_overflow_nor_vanish():
    x = torch.tensor([[[1e-3, 1e4, 2.0], [5e-4, 3e4, 2.0], [1e-3, 1e4, 2.0]]], device=DEVICE, requires_grad=True)
    for power, expected in ((200.0, x.amax(1)), (-200.0, x.amin(1))):
        p = torch.tensor([power], device=DEVICE, requires_grad=True)
        y = power_pool(x, p)
        assert (y / expected - 1).abs().max() < 0.01
        d_x, d_p = torch.autograd.grad(y.sum(), (x, p))
        assert d_x.isfinite().all() and d_p.isfinite().all()
        torch.testing.assert_close((d_x * x).sum(1), y, rtol=1e-4, atol=0)  # Euler's theorem; 200 times float32's rounding


def test_equal_tokens_do_not_care_for_the_exponent():
    x = torch.full((2, 20, 4), 0.7, device=DEVICE)
    p = torch.tensor([0.01, 3.0], device=DEVICE, requires_grad=True)
    y = power_pool(x, p)
    torch.testing.assert_close(y, x[:, 0], rtol=1e-4, atol=0)
    assert torch.autograd.grad(y.sum(), p)[0].abs().max() < 0.1


def test_padding_may_hold_anything():
    torch.manual_seed(5)
    x, p, keep = positive(2, 40, 8), torch.tensor([2.5], device=DEVICE, requires_grad=True), mask_of("holes", 2, 40)
    results = []
    for junk in (0.0, float("nan"), float("inf")):
        held = torch.where(keep[..., None], x, junk).detach().requires_grad_()
        y = power_pool(held, p, key_mask=keep)
        results.append((y, *torch.autograd.grad(y.square().sum(), (held, p))))
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other))


@pytest.mark.parametrize("batch, tokens", [(0, 4), (2, 0)])
def test_nothing_at_all(batch, tokens):
    x, p = make(batch, tokens, 8), torch.ones(1, device=DEVICE, requires_grad=True)
    y = power_pool(x, p)
    assert y.shape == (batch, 8) and (y == 0).all()
    d_x, d_p = torch.autograd.grad(y.sum(), (x, p))
    assert d_x.shape == x.shape and (d_p == 0).all()


def test_gradcheck():
    if ON_GPU:
        pytest.skip("float64 runs in the interpreter alone")
    x = (torch.rand(2, 5, 4, dtype=torch.float64) + 0.1).requires_grad_()
    p = torch.tensor([2.5, -0.7], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(power_pool, (x, p), fast_mode=True)


@pytest.mark.parametrize("ragged", [False, True])
def test_operator_is_well_behaved(ragged):
    """Schema, fake tensors, autograd registration and tracing with dynamic shapes, by PyTorch's own check.

    Of its three results the gradient belongs to the first, so the comparison of gradients is left to the tests above.
    """
    x, p = positive(1 if ragged else 2, 9, 8), torch.full((8,), 2.0, device=DEVICE, requires_grad=True)
    at = offsets([4, 5]) if ragged else None
    torch.library.opcheck(torch.ops.mhlib.power_pool.default, (x, p, at, None if ragged else mask_of("right", 2, 9), 1e-6))


def test_compiles_without_a_break():
    x, p = positive(2, 20, 8), torch.tensor([2.0, 3.0], device=DEVICE, requires_grad=True)
    step = lambda *inputs: power_pool(*inputs).square().sum()  # noqa: E731
    got = torch.autograd.grad(torch.compile(step, fullgraph=True, backend="aot_eager")(x, p), (x, p))
    for a, b in zip(got, torch.autograd.grad(step(x, p), (x, p))):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(
    "change, match",
    [
        (dict(x=torch.zeros(4, 8)), r"power_pool wants x of shape \(batch, tokens, dim\) without cu_seqlens, got \(4, 8\)"),
        (dict(p=torch.ones(3)), r"p must be \(groups,\) where groups divides dim=8, got \(3,\)"),
        (dict(p=torch.tensor(3.0)), r"p must be \(groups,\) .* got \(\)"),
        (dict(eps=0.0), "eps must be positive: the logarithm of 0 is not finite; got 0.0"),
        (dict(key_mask=torch.ones(2, 9)), r"key_mask must be boolean"),
    ],
)
def test_errors_say_what_was_expected(change, match):
    given = dict(x=torch.zeros(2, 9, 8), p=torch.ones(1)) | change
    with pytest.raises(ValueError, match=match):
        power_pool(**given)
