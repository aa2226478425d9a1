"""Attention pooling against the reference in float64: queries of all kinds, masks, ragged sets, parts; values and gradients."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels.common import DEVICE, DTYPES, ON_GPU, close, pairwise
from kernels.pools import LENGTHS, exact, laid_out, make, mask_of, offsets

from mhlib import attention
from mhlib.kernels import attention_pool, parts


def reference(q, k, v=None, *, scale=None, key_mask=None):
    """Output and log-sum-exp by the formula: the table of logits."""
    q = q.expand(k.shape[0], *q.shape[-3:])
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, 1) for x in (k, k if v is None else v))
    logits = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    if key_mask is not None:
        logits = logits.masked_fill(~key_mask[:, None, None], float("-inf"))
    nothing = (logits == float("-inf")).all(-1, keepdim=True)
    logits = logits.masked_fill(nothing, 0.0)
    weights = torch.where(nothing, 0.0, logits.softmax(-1)) if logits.shape[-1] else logits
    lse = torch.where(nothing, float("-inf"), logits.logsumexp(-1, keepdim=True))[..., 0]
    return weights @ v, lse


def one_by_one(q, k, v=None, *, cu_seqlens, **options):
    """Each set through the reference on its own."""
    at = cu_seqlens.tolist()
    found = [
        reference(q if q.ndim == 3 else q[i : i + 1], k[None, :, a:b], None if v is None else v[None, :, a:b], **options)
        for i, (a, b) in enumerate(zip(at, at[1:]))
    ]
    return torch.cat([out for out, _ in found]), torch.cat([lse for _, lse in found])


def agree(q, k, v, dtype, want=reference, **options):
    """Output, log-sum-exp and all gradients, with a random gradient of both results coming in."""
    inputs = [x for x in (q, k, v) if x is not None]
    out, lse = attention_pool(q, k, v, return_lse=True, **options)
    assert out.dtype == dtype and lse.dtype == torch.promote_types(dtype, torch.float32)
    inputs64 = [exact(x) for x in inputs]
    out64, lse64 = want(*inputs64, **options)
    close(out, out64, "output", dtype)
    close(lse, lse64, "log-sum-exp", torch.promote_types(dtype, torch.float32), factor=100 if dtype.itemsize == 2 else 3)
    d_out, d_lse = torch.randn_like(out), torch.where(lse.isfinite(), torch.randn_like(lse), 0.0)
    got = torch.autograd.grad((out, lse), inputs, (d_out, d_lse))
    wanted = torch.autograd.grad((out64, lse64), inputs64, (d_out.double(), d_lse.double()))
    for name, a, b in zip("qkv", got, wanted):
        assert a.dtype == dtype
        close(a, b, f"gradient of {name}", dtype, factor=5)


OPTIONS = {
    "tokens": [1, 15, 16, 37, 64],
    "heads": [(2, 2), (4, 2), (3, 1)],
    "queries": [1, 3, 16],
    "widths": [(16, 16), (24, 40), (5, 1)],
    "per_set": [False, True],
    "shared": [False, True],
    "key_mask": [None, "right", "holes", "nothing"],
    "dtype": DTYPES,
    "layout": ["plain", "turned", "strided"],
    "wanted": [1, 8, 10**6],
    "scale": [None, 0.5],
}


@pytest.mark.parametrize("row", pairwise(OPTIONS), ids=str)
def test_pairs_of_options(row, monkeypatch):
    monkeypatch.setattr(parts, "WANTED", row["wanted"])
    torch.manual_seed(0)
    (heads, kv_heads), (dim, width), dtype = row["heads"], row["widths"], row["dtype"]
    q = make(*([2] if row["per_set"] else []), heads, row["queries"], dim, dtype=dtype)
    k = laid_out(make(2, kv_heads, row["tokens"], dim, dtype=dtype), row["layout"])
    v = None if row["shared"] else laid_out(make(2, kv_heads, row["tokens"], width, dtype=dtype), row["layout"])
    agree(q, k, v, dtype, key_mask=mask_of(row["key_mask"], 2, row["tokens"]), scale=row["scale"])


RAGGED = {"lengths": LENGTHS, "dtype": DTYPES, "per_set": [False, True], "shared": [False, True], "wanted": [1, 10**6], "kv_heads": [1, 2]}


@pytest.mark.parametrize("row", pairwise(RAGGED), ids=str)
def test_ragged(row, monkeypatch):
    monkeypatch.setattr(parts, "WANTED", row["wanted"])
    torch.manual_seed(1)
    lengths, dtype = row["lengths"], row["dtype"]
    q = make(*([len(lengths)] if row["per_set"] else []), 2, 3, 16, dtype=dtype)
    k = make(row["kv_heads"], sum(lengths), 16, dtype=dtype)
    v = None if row["shared"] else make(row["kv_heads"], sum(lengths), 24, dtype=dtype)
    agree(q, k, v, dtype, want=one_by_one, cu_seqlens=offsets(lengths))


@settings(max_examples=15 if not ON_GPU else 200, deadline=None)
@given(
    batch=st.integers(1, 3), kv_heads=st.integers(1, 2), group=st.integers(1, 3), queries=st.integers(1, 5),
    tokens=st.integers(1, 50), dim=st.integers(1, 33), width=st.integers(1, 33), seed=st.integers(0, 2**31),
)  # fmt: skip
def test_any_shape(batch, kv_heads, group, queries, tokens, dim, width, seed):
    torch.manual_seed(seed)
    q, k = make(kv_heads * group, queries, dim), make(batch, kv_heads, tokens, dim)
    agree(q, k, make(batch, kv_heads, tokens, width), torch.float32)


def test_the_library_computes_the_same():
    torch.manual_seed(2)
    dtype = torch.float32 if ON_GPU else torch.float64
    q, k, v = make(4, 3, 24, dtype=dtype), make(2, 2, 37, 24, dtype=dtype), make(2, 2, 37, 20, dtype=dtype)
    keep = mask_of("holes", 2, 37)
    want = attention(q.expand(2, -1, -1, -1), k, v, mask=keep[:, None, None], backend="reference")
    close(attention_pool(q, k, v, key_mask=keep), want.double(), "output", dtype)


def test_the_most_queries():
    """A full tile of them, in half precision."""
    torch.manual_seed(3)
    q, k, v = (make(*shape, dtype=torch.float16) for shape in ((4, 32, 128), (1, 2, 40, 128), (1, 2, 40, 128)))
    agree(q, k, v, torch.float16)


def test_huge_logits_stay_finite():
    q, k, v = make(2, 3, 16), make(2, 2, 40, 16), make(2, 2, 40, 16)
    for factor in (1e4, -1e4):
        out, lse = attention_pool(q * factor, k, v, return_lse=True)
        assert out.isfinite().all() and lse.isfinite().all()
        assert all(g.isfinite().all() for g in torch.autograd.grad(out.sum(), (q, k, v)))


def test_padding_may_hold_anything():
    torch.manual_seed(4)
    q, k, v = make(2, 3, 16), make(2, 2, 40, 16), make(2, 2, 40, 16)
    keep, results = mask_of("holes", 2, 40), []
    for junk in (0.0, float("nan"), float("inf")):
        held = [torch.where(keep[:, None, :, None], x, junk).detach().requires_grad_() for x in (k, v)]
        out = attention_pool(q, *held, key_mask=keep)
        results.append((out, *torch.autograd.grad(out.square().sum(), (q, *held))))
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other))


def test_two_runs_agree_to_the_bit(monkeypatch):
    torch.manual_seed(5)
    q, k = make(2, 3, 16, dtype=torch.float16), make(3, 2, 50, 16, dtype=torch.float16)
    runs = [attention_pool(q, k) for _ in range(2)]
    assert torch.equal(*runs)
    for a, b in zip(*(torch.autograd.grad(out.sum(), (q, k)) for out in runs)):
        assert torch.equal(a, b)


@pytest.mark.parametrize("batch, tokens", [(0, 4), (2, 0)])
def test_nothing_at_all(batch, tokens):
    q, k = make(2, 3, 16), make(batch, 2, tokens, 16)
    out, lse = attention_pool(q, k, return_lse=True)
    assert out.shape == (batch, 2, 3, 16) and (out == 0).all() and (lse == float("-inf")).all()
    for x, gradient in zip((q, k), torch.autograd.grad(out.sum(), (q, k))):
        assert gradient.shape == x.shape and (gradient == 0).all()


def test_gradcheck():
    if ON_GPU:
        pytest.skip("float64 runs in the interpreter alone")
    q, k, v = (make(*shape, dtype=torch.float64) for shape in ((2, 2, 4), (2, 1, 5, 4), (2, 1, 5, 3)))
    assert torch.autograd.gradcheck(lambda *x: attention_pool(*x, return_lse=True), (q, k, v), fast_mode=True)


@pytest.mark.parametrize("options", ["plain", "ragged", "masked"])
def test_operator_is_well_behaved(options):
    """Schema, fake tensors, autograd registration and tracing with dynamic shapes, by PyTorch's own check."""
    ragged, masked = options == "ragged", options == "masked"
    q, k = make(1, 2, 3, 16), make(1 if ragged else 2, 2, 9, 16)
    v = None if masked else make(*k.shape[:3], 8)
    at, keep = (offsets([4, 5]) if ragged else None), (mask_of("holes", 2, 9) if masked else None)
    torch.library.opcheck(torch.ops.mhlib.attention_pool.default, (q, k, v, at, keep, 0.25))


def test_compiles_without_a_break():
    q, k, v = make(2, 3, 16), make(2, 2, 20, 16), make(2, 2, 20, 16)
    step = lambda *x: attention_pool(*x).square().sum()  # noqa: E731
    got = torch.autograd.grad(torch.compile(step, fullgraph=True, backend="aot_eager")(q, k, v), (q, k, v))
    for a, b in zip(got, torch.autograd.grad(step(q, k, v), (q, k, v))):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(
    "change, match",
    [
        (dict(k=lambda k: k[0]), r"k and v must be \(batch, kv_heads, tokens, width\) without cu_seqlens, got q \(4, 3, 16\), k \(2, 9, 16\)"),
        (dict(q=lambda q: q[0]), r"q must be \(heads, queries, head_dim\) or"),
        (dict(q=lambda q: q[..., :8]), r"equally wide, .* got q \(4, 3, 8\)"),
        (dict(q=lambda q: q[:3]), "must divide"),
        (dict(q=lambda q: q.expand(3, -1, -1, -1)), "one for each of the 2 sets"),
        (dict(key_mask=torch.ones(2, 9)), r"key_mask must be boolean \(batch, tokens\) = \(2, 9\), got torch.float32 \(2, 9\)"),
        (dict(cu_seqlens=torch.tensor([0, 2])), r"must be \(kv_heads, total, width\) with cu_seqlens"),
        (dict(q=lambda q: q.half()), "share one dtype"),
        (dict(q=lambda q: q.repeat(1, 200, 1)), r"serves at most 256 queries of width 16 in torch.float32, got 1200: use flash_attention"),
    ],
)  # fmt: skip
def test_errors_say_what_was_expected(change, match):
    q, k, v = make(4, 3, 16), make(2, 2, 9, 16), make(2, 2, 9, 16)
    q, k = change.pop("q", lambda q: q)(q), change.pop("k", lambda k: k)(k)
    with pytest.raises(ValueError, match=match):
        attention_pool(q, k, v, **change)


def test_ragged_errors():
    q, k = make(4, 3, 16), make(2, 9, 16)
    with pytest.raises(ValueError, match="no padding to mask"):
        attention_pool(q, k, cu_seqlens=offsets([9]), key_mask=torch.ones(1, 9, dtype=torch.bool, device=DEVICE))
    with pytest.raises(ValueError, match=r"cu_seqlens must be integers \(sets \+ 1,\), .* got torch.float32 \(2,\)"):
        attention_pool(q, k, cu_seqlens=torch.tensor([0.0, 9.0], device=DEVICE))


def test_counts():
    """One query, one head: twice the operations of two dot products, and every number once."""
    from mhlib.kernels.attention_pool import counts

    found = counts(2, 1, 1, 1, 100, 8, 4, itemsize=2)
    assert found.matmul_flops == 2 * 100 * (8 + 4)
    assert found.bytes == 2 * (100 * (8 + 4) + 8 + 2 * 4) + 2 * 4
    back = counts(2, 1, 1, 1, 100, 8, 4, itemsize=2, backward=True)
    assert back.matmul_flops == 2 * 100 * (3 * 8 + 2 * 4) and back.bytes > 1.9 * found.bytes
