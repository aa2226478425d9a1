"""Statistics pooling against the reference in float64: weights of all kinds, masks, ragged sets, parts; values and gradients."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels.common import DEVICE, DTYPES, ON_GPU, close, pairwise
from kernels.pools import LENGTHS, exact, laid_out, make, mask_of, offsets

from mhlib.functional import masked_mean, masked_std, weighted_statistics
from mhlib.kernels import parts, statistics_pool


def weights_of(groups, *shape, dtype):
    """Not negative, some of them zero; None, one per token, or one per token and group."""
    if groups is None:
        return None
    return make(*shape, *groups, dtype=dtype, grad=False).relu().requires_grad_()


def reference(x, w=None, *, key_mask=None, eps=0.0):
    w = w[..., None] if w is not None and w.ndim == x.ndim - 1 else w
    return weighted_statistics(x, w, key_mask, eps=eps)


def one_by_one(x, w=None, *, cu_seqlens, eps=0.0):
    at = cu_seqlens.tolist()
    found = [reference(x[None, a:b], None if w is None else w[None, a:b], eps=eps) for a, b in zip(at, at[1:])]
    return tuple(torch.cat(parts) for parts in zip(*found))


def agree(x, w, dtype, want=reference, **options):
    """Both moments and all gradients, with random gradients of both coming in."""
    inputs = [a for a in (x, w) if a is not None]
    got = statistics_pool(x, w, **options)
    inputs64 = [exact(a) for a in inputs]
    wanted = want(*inputs64, **options)
    for name, a, b in zip(("mean", "deviation"), got, wanted):
        assert a.dtype == dtype
        close(a, b, name, dtype)
    # where all tokens are alike, rounding alone says whether there is a gradient
    known = wanted[1] > options.get("eps", 0.0) ** 0.5 + 1e-3
    come = [torch.randn_like(got[0]), torch.where(known.to(DEVICE), torch.randn_like(got[1]), 0.0)]
    gradients = torch.autograd.grad(got, inputs, come)
    for name, a, b in zip(("x", "weights"), gradients, torch.autograd.grad(wanted, inputs64, [c.double() for c in come])):
        assert a.dtype == dtype
        close(a, b, f"gradient of {name}", dtype, factor=5)


OPTIONS = {
    "tokens": [1, 15, 16, 37, 64],
    "dim": [12, 48],
    "groups": [None, (), (1,), (3,), (12,), "channels"],
    "key_mask": [None, "right", "holes", "nothing"],
    "dtype": DTYPES,
    "layout": ["plain", "turned", "strided"],
    "wanted": [1, 8, 10**6],
    "eps": [0.0, 0.5],
}


@pytest.mark.parametrize("row", pairwise(OPTIONS), ids=str)
def test_pairs_of_options(row, monkeypatch):
    monkeypatch.setattr(parts, "WANTED", row["wanted"])
    torch.manual_seed(0)
    dtype, groups = row["dtype"], (row["dim"],) if row["groups"] == "channels" else row["groups"]
    x = laid_out(make(2, row["tokens"], row["dim"], dtype=dtype), row["layout"])
    w = weights_of(groups, 2, row["tokens"], dtype=dtype)
    agree(x, w, dtype, key_mask=mask_of(row["key_mask"], 2, row["tokens"]), eps=row["eps"])


RAGGED = {"lengths": LENGTHS, "dtype": DTYPES, "groups": [None, (), (3,), (12,)], "wanted": [1, 10**6]}


@pytest.mark.parametrize("row", pairwise(RAGGED), ids=str)
def test_ragged(row, monkeypatch):
    monkeypatch.setattr(parts, "WANTED", row["wanted"])
    torch.manual_seed(1)
    total, dtype = sum(row["lengths"]), row["dtype"]
    agree(make(total, 12, dtype=dtype), weights_of(row["groups"], total, dtype=dtype), dtype, one_by_one, cu_seqlens=offsets(row["lengths"]))


@settings(max_examples=15 if not ON_GPU else 200, deadline=None)
@given(
    batch=st.integers(1, 3), tokens=st.integers(1, 50), width=st.integers(1, 9), groups=st.integers(0, 6),
    seed=st.integers(0, 2**31),
)  # fmt: skip
def test_any_shape(batch, tokens, width, groups, seed):
    torch.manual_seed(seed)
    x = make(batch, tokens, width * max(groups, 1))
    agree(x, weights_of((groups,), batch, tokens, dtype=torch.float32) if groups else None, torch.float32)


def test_the_library_computes_the_same():
    torch.manual_seed(2)
    x, keep = make(3, 40, 20), mask_of("right", 3, 40)
    mean, deviation = statistics_pool(x, key_mask=keep)
    close(mean, masked_mean(x.double(), keep), "mean", torch.float32)
    close(deviation, masked_std(x.double(), keep), "deviation", torch.float32)


@pytest.mark.parametrize("wanted", [1, 10**6])
def test_a_large_mean_swallows_no_small_deviation(wanted, monkeypatch):
    """What mean of squares minus square of mean gets wrong; parts and gradient included."""
    monkeypatch.setattr(parts, "WANTED", wanted)
    torch.manual_seed(3)
    x = (1000 + make(2, 60, 8, grad=False)).requires_grad_()
    x64 = exact(x)
    mean, deviation = statistics_pool(x)
    want = masked_std(x64)
    naive = (x.square().mean(1) - x.mean(1).square()).clamp_min(0).sqrt()
    assert (naive - want).abs().max() > 1e-3
    close(deviation, want, "deviation", torch.float32, factor=10)
    close(*(torch.autograd.grad(y.sum(), a)[0] for y, a in ((deviation, x), (want, x64))), "gradient", torch.float32, factor=30)


def test_equal_tokens_have_no_deviation_and_no_gradient():
    x = torch.full((2, 20, 8), 0.1, device=DEVICE, requires_grad=True)
    for eps in (0.0, 0.25):
        mean, deviation = statistics_pool(x, eps=eps)
        torch.testing.assert_close(mean, x[:, 0])
        # rounding leaves nothing of it: every token is the mean
        assert (deviation == eps**0.5).all()
        assert (torch.autograd.grad(deviation.sum(), x)[0] == 0).all()


def test_weights_of_zero_are_no_token():
    torch.manual_seed(4)
    x, w = make(2, 20, 8), torch.zeros(2, 20, device=DEVICE, requires_grad=True)
    mean, deviation = statistics_pool(x, w)
    assert (mean == 0).all() and (deviation == 0).all()
    assert all(g.isfinite().all() for g in torch.autograd.grad((mean.sum() + deviation.sum()), (x, w)))


def test_padding_may_hold_anything():
    torch.manual_seed(5)
    x, w, keep = make(2, 40, 8), weights_of((2,), 2, 40, dtype=torch.float32), mask_of("holes", 2, 40)
    results = []
    for junk in (0.0, float("nan"), float("inf")):
        held = [torch.where(keep[..., None], a, junk).detach().requires_grad_() for a in (x, w)]
        found = statistics_pool(*held, key_mask=keep)
        results.append((*found, *torch.autograd.grad(sum(f.square().sum() for f in found), held)))
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other))


@pytest.mark.parametrize("batch, tokens", [(0, 4), (2, 0)])
def test_nothing_at_all(batch, tokens):
    x = make(batch, tokens, 8)
    mean, deviation = statistics_pool(x)
    assert mean.shape == (batch, 8) and (mean == 0).all() and (deviation == 0).all()
    assert torch.autograd.grad(mean.sum() + deviation.sum(), x)[0].shape == x.shape


def test_gradcheck():
    if ON_GPU:
        pytest.skip("float64 runs in the interpreter alone")
    x, w = make(2, 5, 4, dtype=torch.float64), torch.rand(2, 5, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(statistics_pool, (x, w), fast_mode=True)


@pytest.mark.parametrize("groups, ragged", [(0, False), (1, True), (4, False)])
def test_operator_is_well_behaved(groups, ragged):
    """Schema, fake tensors, autograd registration and tracing with dynamic shapes, by PyTorch's own check."""
    x = make(1 if ragged else 2, 9, 8)
    w = torch.rand(*x.shape[:2], groups, device=DEVICE, requires_grad=True) if groups else None
    at = offsets([4, 5]) if ragged else None
    torch.library.opcheck(torch.ops.mhlib.statistics_pool.default, (x, w, at, None if ragged else mask_of("right", 2, 9), 0.0))


def test_compiles_without_a_break():
    x, w = make(2, 20, 8), torch.rand(2, 20, device=DEVICE, requires_grad=True)
    step = lambda *inputs: torch.cat(statistics_pool(*inputs), -1).square().sum()  # noqa: E731
    got = torch.autograd.grad(torch.compile(step, fullgraph=True, backend="aot_eager")(x, w), (x, w))
    for a, b in zip(got, torch.autograd.grad(step(x, w), (x, w))):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(
    "change, match",
    [
        (dict(x=torch.zeros(4, 8)), r"statistics_pool wants x of shape \(batch, tokens, dim\) without cu_seqlens, got \(4, 8\)"),
        (dict(cu_seqlens=torch.tensor([0, 2])), r"x of shape \(total, dim\) with cu_seqlens, got \(2, 9, 8\)"),
        (dict(weights=torch.zeros(2, 9, 3)), r"weights must be \(2, 9\) or have a last axis that divides dim=8, got \(2, 9, 3\)"),
        (dict(weights=torch.zeros(2, 8)), r"weights must be \(2, 9\)"),
        (dict(key_mask=torch.ones(2, 9)), r"key_mask must be boolean \(batch, tokens\) = \(2, 9\), got torch.float32"),
        (dict(eps=-1.0), "eps must not be negative, got -1.0"),
    ],
)
def test_errors_say_what_was_expected(change, match):
    given = dict(x=torch.zeros(2, 9, 8)) | change
    with pytest.raises(ValueError, match=match):
        statistics_pool(**given)


def test_a_dtype_that_is_not_served():
    wrong = torch.float64 if ON_GPU else torch.bfloat16
    with pytest.raises(ValueError, match=f"statistics_pool cannot run: statistics_pool takes .*, got {wrong}"):
        statistics_pool(torch.zeros(2, 9, 8, dtype=wrong, device=DEVICE))
