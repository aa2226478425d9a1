"""Every backend computes what the reference computes: values, gradients, alignment, errors."""

import math
import subprocess
import sys
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from mhlib import attention, masks
from mhlib.functional.normalizers import sink_softmax
from mhlib.functional.request import Request


def tensors(heads=4, kv_heads=2, queries=7, keys=7, dim=8, width=8, batch=2, dtype=torch.float64, grad=True):
    make = lambda *shape: torch.randn(*shape, dtype=dtype).requires_grad_(grad)  # noqa: E731
    return make(batch, heads, queries, dim), make(batch, kv_heads, keys, dim), make(batch, kv_heads, keys, width)


def by_hand(q, k, v, causal=False, window=None, mask=None, bias=None, scale=None):
    """The formula with loops over queries and keys, independent of the library."""
    batch, heads, queries, dim = q.shape
    keys, group = k.shape[2], heads // k.shape[1]
    out = torch.zeros(batch, heads, queries, v.shape[-1], dtype=q.dtype)
    for b in range(batch):
        for h in range(heads):
            for i in range(queries):
                seen, logits, at = [], [], i + keys - queries
                for j in range(keys):
                    ok = not (causal and j > at)
                    if window is not None:
                        ok = ok and at - window[0] <= j <= at + window[1]
                    if mask is not None:
                        ok = ok and bool(mask.expand(batch, heads, queries, keys)[b, h, i, j])
                    if ok:
                        z = (q[b, h, i] @ k[b, h // group, j]) * (dim**-0.5 if scale is None else scale)
                        logits.append(z if bias is None else z + bias.expand(batch, heads, queries, keys)[b, h, i, j])
                        seen.append(v[b, h // group, j])
                if seen:
                    out[b, h, i] = torch.stack(logits).softmax(0) @ torch.stack(seen)
    return out


def test_reference_is_the_formula():
    q, k, v = tensors(queries=4, keys=6, width=5)
    mask = torch.rand(2, 4, 4, 6) > 0.4
    mask[:, :, 1] = False
    bias = torch.randn(1, 4, 1, 6, dtype=q.dtype)
    for options in (
        dict(),
        dict(causal=True),
        dict(mask=mask),
        dict(bias=bias, scale=0.3),
        dict(window=(1, 2)),
        dict(window=(2, 0), causal=True, mask=mask, bias=bias),
    ):
        torch.testing.assert_close(attention(q, k, v, backend="reference", **options), by_hand(q, k, v, **options))


SHAPES = st.fixed_dictionaries(
    dict(
        kv_heads=st.sampled_from([1, 2]),
        heads=st.sampled_from([2, 4]),
        queries=st.integers(1, 9),
        keys=st.integers(1, 9),
        dim=st.sampled_from([4, 8]),
        width=st.sampled_from([3, 8]),
    )
)


@settings(max_examples=60, deadline=None)
@given(
    shape=SHAPES,
    causal=st.booleans(),
    window=st.sampled_from([None, 3, (2, 1), (0, None)]),
    masked=st.sampled_from([None, "table", "keys", "rule"]),
    biased=st.booleans(),
    backend=st.sampled_from(["chunked", "sdpa", "auto"]),
    seed=st.integers(0, 2**31),
)
def test_backends_agree_with_gradients(shape, causal, window, masked, biased, backend, seed, monkeypatch_blocks):
    torch.manual_seed(seed)
    q, k, v = tensors(**shape)
    n, m, h = q.shape[2], k.shape[2], q.shape[1]
    mask = {
        None: lambda: None,
        "table": lambda: torch.rand(2, h, n, m) > 0.5,
        "keys": lambda: torch.rand(2, 1, 1, m) > 0.3,
        "rule": lambda: masks.Dilated(2, 2) | masks.Prefix(torch.tensor([1, 2])),
    }[masked]()
    bias = torch.randn(1, h, n, m, dtype=q.dtype, requires_grad=True) if biased else None
    inputs = [t for t in (q, k, v, bias) if t is not None]
    options = dict(mask=mask, bias=bias, causal=causal, window=window)
    want = attention(q, k, v, backend="reference", **options)
    got = attention(q, k, v, backend=backend, **options)
    torch.testing.assert_close(got, want)
    upstream = torch.randn_like(want)
    expected = torch.autograd.grad(want, inputs, upstream, allow_unused=True, materialize_grads=True)
    for name, a, b in zip("qkvb", torch.autograd.grad(got, inputs, upstream, allow_unused=True, materialize_grads=True), expected):
        torch.testing.assert_close(a, b, msg=lambda text, name=name: f"gradient of {name}: {text}")


@pytest.fixture(scope="module")
def monkeypatch_blocks():
    """Tiny blocks, so that small tensors cross several of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mhlib.functional.backends.chunked.BLOCK_Q", 3)
        patch.setattr("mhlib.functional.backends.chunked.BLOCK_K", 2)
        yield


@pytest.mark.parametrize("normalizer", ["softmax_one", "sink"])
def test_chunked_sinks(normalizer, monkeypatch_blocks):
    q, k, v = tensors(queries=5, keys=8)
    sink = torch.randn(4, dtype=q.dtype, requires_grad=True)
    norm = partial(sink_softmax, sink=sink) if normalizer == "sink" else normalizer
    mask = torch.rand(2, 4, 5, 8) > 0.6
    mask[0, :, 2] = False
    inputs = [q, k, v] + ([sink] if normalizer == "sink" else [])
    results = []
    for backend in ("reference", "chunked"):
        out = attention(q, k, v, mask=mask, causal=True, normalizer=norm, backend=backend)
        results.append((out, *torch.autograd.grad(out.square().sum(), inputs)))
    for want, got in zip(*results):
        torch.testing.assert_close(got, want)


def test_chunked_gradcheck(monkeypatch_blocks):
    q, k, v = tensors(heads=2, kv_heads=1, queries=3, keys=5, dim=2, width=2, batch=1)
    call = lambda q, k, v: attention(q, k, v, causal=True, backend="chunked")  # noqa: E731
    assert torch.autograd.gradcheck(call, (q, k, v))


@pytest.mark.parametrize("backend", ["reference", "chunked", "sdpa"])
@pytest.mark.parametrize("size", [1e4, -1e4])
def test_huge_logits_stay_finite(backend, size):
    q, k, v = tensors(dtype=torch.float32)
    bias = torch.full((1, 1, 1, 7), size)
    out = attention(q, k, v, bias=bias, causal=True, backend=backend)
    torch.testing.assert_close(out, attention(q, k, v, causal=True, backend="reference"), atol=2e-3, rtol=0)
    assert all(g.isfinite().all() for g in torch.autograd.grad(out.sum(), (q, k, v)))


@pytest.mark.parametrize("backend", ["reference", "chunked", "sdpa"])
def test_nothing_to_attend_to_gives_zeros(backend):
    q, k, v = tensors(dtype=torch.float32)
    out = attention(q, k, v, mask=torch.zeros(1, 1, 1, 7, dtype=torch.bool), backend=backend)
    assert (out == 0).all()
    for gradient in torch.autograd.grad(out.sum(), (q, k, v)):
        assert (gradient == 0).all()
    # More causal queries than keys: the first queries stand before the first key.
    out = attention(q, k[:, :, :4], v[:, :, :4], causal=True, backend=backend)
    assert (out[:, :, :3] == 0).all() and (out[:, :, 3:] != 0).all()


@pytest.mark.parametrize("backend", ["reference", "chunked", "sdpa"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_dtypes(backend, dtype):
    q, k, v = tensors(grad=False, keys=9)
    out = attention(q.to(dtype), k.to(dtype), v.to(dtype), causal=True, backend=backend)
    assert out.dtype == dtype
    tolerance = {torch.float16: 1e-2, torch.bfloat16: 6e-2, torch.float32: 1e-5}[dtype]
    torch.testing.assert_close(out.double(), attention(q, k, v, causal=True), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize(
    "kv_heads, options",
    [
        (4, dict(causal=True)),
        (1, dict(window=(3, 4), mask=masks.Document(torch.arange(40) // 9), bias=torch.randn(1, 4, 1, 40))),
    ],
)
def test_flex_without_gradients(kv_heads, options):
    q, k, v = tensors(kv_heads=kv_heads, queries=24, keys=40, dim=16, width=16, dtype=torch.float32, grad=False)
    want = attention(q, k, v, backend="reference", **options)
    torch.testing.assert_close(attention(q, k, v, backend="flex", **options), want, atol=1e-5, rtol=1e-4)


def test_window_as_an_integer():
    q, k, v = tensors(queries=9, keys=9)
    for causal, table in ((True, masks.SlidingWindow(3)), (False, masks.SlidingWindow(2, 2))):
        _, weights = attention(q, k, v, window=4, causal=causal, return_weights=True)
        assert torch.equal(weights[:1, :1] > 0, table.dense(9))


def test_dropout_drops_weights_and_keeps_the_mean():
    q, k, v = tensors(queries=1, keys=400, batch=1, grad=False)
    want = attention(q, k, v)
    for backend in ("reference", "sdpa"):
        runs = torch.stack([attention(q, k, v, dropout=0.3, backend=backend) for _ in range(400)])
        assert not torch.equal(runs[0], runs[1])
        torch.testing.assert_close(runs.mean(0), want, atol=5 * (runs.std(0) / math.sqrt(400)).max().item(), rtol=0)


@pytest.mark.parametrize("heads,kv_heads", [(8, 2), (4, 1)])
def test_grouped_decoding_equals_torch(heads, kv_heads):
    q, k, v = tensors(heads=heads, kv_heads=kv_heads, queries=1, keys=33)
    torch.testing.assert_close(
        attention(q, k, v, causal=True), F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    )


def test_auto_serves_everything(monkeypatch):
    """Long rules and windows go block by block; the result is the same."""
    monkeypatch.setattr("mhlib.functional.attention.LARGE", 2**10)
    q, k, v = tensors(queries=70, keys=90, grad=False)
    for options in (dict(causal=True), dict(mask=masks.Causal()), dict(window=8), dict(normalizer="softmax_one")):
        torch.testing.assert_close(attention(q, k, v, **options), attention(q, k, v, backend="reference", **options))


def bad(match, **options):
    return pytest.param(options, match, id=match[:30])


@pytest.mark.parametrize(
    "options, match",
    [
        bad(r"mask must be boolean.*float32", mask=torch.zeros(1, 1, 7, 7)),
        bad(r"mask must broadcast to .*\(2, 4, 7, 7\), got \(2, 7\).*key_mask", mask=torch.ones(2, 7, dtype=torch.bool)),
        bad(r"bias must broadcast to .*\(2, 4, 7, 7\), got \(4, 7, 7\)", bias=torch.zeros(4, 7, 7)),
        bad(r"normalizer must be one of softmax, .*got 'soft'", normalizer="soft"),
        bad(r"backend must be 'auto' or one of .*got 'fast'", backend="fast"),
        bad(r"'sdpa' cannot serve .*softmax alone; use reference", backend="sdpa", normalizer="sparsemax"),
        bad(r"'chunked' cannot serve .*weights; use reference", backend="chunked", return_weights=True),
        bad(r"'flex' cannot serve .*no backward pass on CPU", backend="flex"),
        bad(r"window must be a positive integer or a pair", window=(1, -2)),
        bad(r"window must be at least 1", window=0),
        bad(r"dropout is a probability", dropout=1.0),
    ],
)
@pytest.mark.usefixtures("as_a_user")
def test_errors_say_what_was_expected(options, match):
    with pytest.raises(ValueError, match=match):
        attention(*tensors(), **options)


@pytest.mark.parametrize(
    "change, match",
    [
        (lambda q, k, v: (q[0], k, v), r"must be \(batch, heads, tokens, head_dim\)"),
        (lambda q, k, v: (q.float(), k, v), "must share one float dtype"),
        (lambda q, k, v: (q[:1], k, v), "same batch size"),
        (lambda q, k, v: (q[..., :4], k, v), "equally wide"),
        (lambda q, k, v: (q, k, v[:, :, :5]), "agree in heads and tokens"),
        (lambda q, k, v: (q[:, :3], k, v), "must divide"),
    ],
)
@pytest.mark.usefixtures("as_a_user")
def test_errors_name_the_shapes(change, match):
    with pytest.raises(ValueError, match=match):
        attention(*change(*tensors()))


def test_every_backend_says_what_it_supports():
    q, k, v = tensors()
    from mhlib.functional.attention import attention_backends
    from mhlib.functional.normalizers import get_normalizer

    request = Request(q, k, v, None, None, 1.0, False, (None, None), get_normalizer("relu"), 0.0, False)
    support = attention_backends(request)
    assert support["reference"] and all(not ok and ok.reason for name, ok in support.items() if name != "reference")


def test_triton_stays_away_from_the_cpu(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ValueError, match=r"'triton' cannot serve .*need a GPU, the tensors are on cpu; .*; use reference or "):
        attention(*tensors(dtype=torch.float32), backend="triton")


def test_asking_for_a_backend_imports_no_triton():
    code = (
        "import sys, torch, mhlib; x = torch.ones(1, 1, 2, 16); mhlib.attention(x, x, x);"
        "from mhlib.functional.attention import attention_backends; assert 'triton' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
