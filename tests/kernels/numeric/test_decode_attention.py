"""Decoding kernels against the formula in float64: every option, pairs of options, any split of the keys; and the path to them."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels.attention import reference
from kernels.common import DEVICE, DTYPES, ON_GPU, close, pairwise

from mhlib.functional.partial import Partial, attend_partial, merge_partials
from mhlib.kernels import decode_attention, flash_attention, latent_decode, split_keys


def make(*shape, dtype=torch.float32):
    return torch.randn(*shape).to(DEVICE, dtype)


def holes(batch, keys):
    return torch.rand(batch, keys, device=DEVICE) > 0.4


def agree(run, want, dtype, *inputs, lengths=None, **options):
    """Output and log-sum-exp; with lengths, each sequence on its own against the keys that it has."""
    exact = {n: t.double() if isinstance(t, torch.Tensor) and t.is_floating_point() else t for n, t in options.items()}
    q, *kv = (x.double() for x in inputs)
    if lengths is None:
        out64, lse64 = want(q, *kv, **exact)
        out, lse = run(*inputs, return_lse=True, **options)
    else:
        alone = [want(q[b : b + 1], *(x[b : b + 1, ..., :n, :] for x in kv), **exact) for b, n in enumerate(lengths.tolist())]
        out64, lse64 = (torch.cat(parts) for parts in zip(*alone))
        out, lse = run(*inputs, return_lse=True, lengths=lengths, **options)
    assert out.dtype == inputs[0].dtype and lse.dtype == torch.promote_types(dtype, torch.float32)
    close(out, out64, "output", dtype)
    close(lse, lse64, "log-sum-exp", torch.promote_types(dtype, torch.float32), factor=100 if dtype.itemsize == 2 else 3)


OPTIONS = {
    "keys": [1, 16, 75, 200],
    "queries": [1, 3],
    "heads": [(2, 2), (6, 2), (20, 1)],
    "widths": [(16, 16), (24, 40), (40, 8)],
    "dtype": DTYPES,
    "causal": [False, True],
    "window": [None, (9, 0), (70, 2), (None, 0)],
    "softcap": [None, 2.0],
    "sink": [False, True],
    "alibi": [False, True],
    "limits": [None, "mask", "nothing", "lengths"],
}


@pytest.mark.parametrize("row", pairwise(OPTIONS), ids=str)
def test_pairs_of_options(row):
    torch.manual_seed(0)
    (heads, kv_heads), (dim, width), keys, dtype = row["heads"], row["widths"], row["keys"], row["dtype"]
    q, k, v = make(2, heads, row["queries"], dim, dtype=dtype), make(2, kv_heads, keys, dim, dtype=dtype), make(2, kv_heads, keys, width, dtype=dtype)
    options = {name: row[name] for name in ("causal", "window", "softcap")}
    if row["sink"]:
        options["sink"] = make(heads)
    if row["alibi"]:
        options["alibi_slopes"] = torch.rand(heads, device=DEVICE)
    if row["limits"] == "mask":
        options["key_mask"] = holes(2, keys)
    elif row["limits"] == "nothing":
        options["key_mask"] = torch.tensor([[True], [False]], device=DEVICE).expand(2, keys)
    lengths = torch.tensor([keys, (keys + 1) // 2], device=DEVICE) if row["limits"] == "lengths" else None
    agree(decode_attention, reference, dtype, q, k, v, lengths=lengths, **options)


def latent_reference(q, latent, rank, *, key_mask=None, **options):
    return reference(q, latent[:, None], latent[:, None, :, :rank], key_mask=key_mask, **options)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("limits", [None, "mask", "lengths"])
@pytest.mark.parametrize("heads, queries, keys, rank, rope", [(3, 1, 90, 32, 16), (20, 2, 33, 40, 5), (4, 1, 70, 16, 0), (70, 1, 20, 24, 8)])
def test_latent_decode(dtype, limits, heads, queries, keys, rank, rope):
    torch.manual_seed(1)
    q, latent = make(2, heads, queries, rank + rope, dtype=dtype), make(2, keys, rank + rope, dtype=dtype)
    options = dict(key_mask=holes(2, keys)) if limits == "mask" else {}
    lengths = torch.tensor([keys // 2, keys], device=DEVICE) if limits == "lengths" else None
    run = lambda q, latent, **options: latent_decode(q, latent, rank, **options)  # noqa: E731
    want = lambda q, latent, **options: latent_reference(q, latent, rank, **options)  # noqa: E731
    agree(run, want, dtype, q, latent, lengths=lengths, causal=True, scale=0.3, **options)


def test_latent_of_deepseek_v2():
    torch.manual_seed(2)
    q, latent = make(1, 16, 1, 576, dtype=torch.float16), make(1, 80, 576, dtype=torch.float16)
    run = lambda q, latent, **options: latent_decode(q, latent, 512, **options)  # noqa: E731
    agree(run, lambda q, latent, **o: latent_reference(q, latent, 512, **o), torch.float16, q, latent, scale=192**-0.5)


@settings(max_examples=15 if not ON_GPU else 200, deadline=None)
@given(
    heads=st.integers(1, 3),
    group=st.integers(1, 5),
    queries=st.integers(1, 5),
    keys=st.integers(1, 400),
    left=st.none() | st.integers(0, 400),
    wanted=st.sampled_from([1, 4, 100]),
    seed=st.integers(0, 2**31),
)
def test_any_shape_and_any_split(heads, group, queries, keys, left, wanted, seed):
    torch.manual_seed(seed)
    q, k, v = make(1, heads * group, queries, 16), make(1, heads, keys, 16), make(1, heads, keys, 16)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(split_keys, "_wanted", lambda *_: wanted)
        agree(decode_attention, reference, torch.float32, q, k, v, causal=True, window=(left, None))


@pytest.mark.parametrize("keys, programs, block, wanted", [(1, 1, 16, 264), (0, 3, 64, 264), (100_000, 16, 64, 264), (4097, 1, 64, 264), (9999, 1, 16, 10**6)])
def test_parts_cover_the_keys(keys, programs, block, wanted):
    each, parts = split_keys.split(keys, programs, block, wanted)
    assert each % block == 0 and each * parts >= keys and each * (parts - 1) < max(keys, 1)
    assert 1 <= parts <= split_keys.MOST_PARTS and (parts == 1 or parts * programs <= wanted)


def test_the_parts_merge_as_the_algebra_says():
    """Two caches decoded apart and merged are one cache (row 184)."""
    torch.manual_seed(3)
    q, k, v = make(2, 4, 1, 16), make(2, 2, 130, 16), make(2, 2, 130, 16)
    cut = [Partial(*decode_attention(q, k[:, :, part], v[:, :, part], return_lse=True)) for part in (slice(0, 50), slice(50, 130))]
    for got, want in zip(merge_partials(*cut), attend_partial(q.double(), k.double(), v.double())):
        close(got, want, "merged", torch.float32, factor=3)


def test_what_a_cache_holds_after_its_length_is_not_read():
    torch.manual_seed(4)
    q, k, v = make(1, 2, 1, 16), make(1, 1, 40, 16), make(1, 1, 40, 16)
    want = decode_attention(q, k[:, :, :21], v[:, :, :21])
    k[:, :, 21:], v[:, :, 21:] = float("nan"), float("nan")
    assert torch.equal(decode_attention(q, k, v, lengths=torch.tensor([21], device=DEVICE)), want)
    padded = torch.arange(40, device=DEVICE)[None] < 21
    assert torch.equal(decode_attention(q, k, v, key_mask=padded), want)


def test_flash_and_decode_are_one_function():
    torch.manual_seed(5)
    q, k, v = make(2, 4, 2, 16), make(2, 2, 70, 16), make(2, 2, 70, 16)
    options = dict(causal=True, window=31, softcap=4.0, sink=make(4), key_mask=holes(2, 70))
    torch.testing.assert_close(decode_attention(q, k, v, **options), flash_attention(q, k, v, **options), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("batch, queries, keys", [(0, 1, 4), (2, 0, 4), (2, 1, 0)])
def test_nothing_at_all(batch, queries, keys):
    q, k, v = make(batch, 4, queries, 16), make(batch, 2, keys, 16), make(batch, 2, keys, 16)
    out, lse = decode_attention(q, k, v, return_lse=True)
    assert out.shape == (batch, 4, queries, 16) and (out == 0).all() and (lse == float("-inf")).all()


def test_operators_are_well_behaved():
    q, k, v, keep, lengths = make(1, 2, 1, 16), make(1, 1, 20, 16), make(1, 1, 20, 16), holes(1, 20), torch.tensor([17], dtype=torch.int32, device=DEVICE)
    torch.library.opcheck(torch.ops.mhlib.decode_attention.default, (q, k, v, make(2), None, keep, lengths, 0.25, 0.0, -1, 0))
    torch.library.opcheck(torch.ops.mhlib.latent_decode.default, (q, k[:, 0], keep, lengths, 12, 0.25, 0))


def test_they_compile_without_a_break():
    q, k, v = make(1, 2, 1, 16), make(1, 1, 20, 16), make(1, 1, 20, 16)

    def step(q, k, v):
        return decode_attention(q, k, v, window=9).sum() + latent_decode(q, k[:, 0], 12, scale=0.5).sum()

    torch.testing.assert_close(torch.compile(step, fullgraph=True, backend="aot_eager")(q, k, v), step(q, k, v))


@pytest.mark.parametrize(
    "options, match",
    [
        (dict(sink=torch.zeros(3)), r"sink must be \(heads,\) = \(4,\), got \(3,\)"),
        (dict(lengths=torch.tensor([1])), r"lengths must be \(batch,\) = \(2,\), got \(1,\)"),
        (dict(key_mask=torch.ones(2, 9)), r"key_mask must be boolean \(batch, keys\) = \(2, 45\), got torch.float32 \(2, 9\)"),
        (dict(softcap=0.0), "softcap must be positive, got 0.0"),
    ],
)
def test_errors_say_what_was_expected(options, match):
    q, k, v = make(2, 4, 1, 16), make(2, 2, 45, 16), make(2, 2, 45, 16)
    with pytest.raises(ValueError, match=match):
        decode_attention(q, k, v, **options)


def test_gradients_are_refused():
    q, k, v = make(2, 4, 1, 16).requires_grad_(), make(2, 2, 45, 16), make(2, 2, 45, 16)
    with pytest.raises(ValueError, match=r"decode_attention cannot run: it has no backward pass: use flash_attention, or torch.no_grad\(\)"):
        decode_attention(q, k, v)
    with pytest.raises(ValueError, match="latent_decode cannot run: it has no backward pass"):
        latent_decode(q, k[:, 0], 12, scale=1.0)
    with torch.no_grad():
        assert decode_attention(q, k, v).isfinite().all()


@pytest.mark.parametrize(
    "call, match",
    [
        (lambda: latent_decode(make(2, 3, 1, 16), make(2, 5, 12), 12, scale=1.0), r"got q \(2, 3, 1, 16\) and latent \(2, 5, 12\)"),
        (lambda: latent_decode(make(2, 3, 1, 16), make(2, 5, 16), 17, scale=1.0), "rank must be from 1 to the width of the latent, got 17"),
        (lambda: latent_decode(make(2, 3, 1, 600), make(2, 5, 600), 520, scale=1.0), r"at most 512 \+ 64 wide, got 520 \+ 80"),
        (lambda: latent_decode(make(2, 3, 1, 16), make(2, 5, 16).half(), 12, scale=1.0), "must share one dtype"),
        (lambda: latent_decode(make(2, 3, 1, 16), make(2, 5, 16), 12, scale=1.0, lengths=torch.ones(3)), r"lengths must be \(batch,\) = \(2,\)"),
        (lambda: latent_decode(make(2, 3, 1, 16), make(2, 5, 16), 12, scale=1.0, key_mask=torch.ones(2, 5)), "must be boolean"),
    ],
)
def test_latent_errors(call, match):
    with pytest.raises(ValueError, match=match):
        call()


def test_counts_are_what_the_tensors_hold():
    from mhlib.kernels import decode_attention as _  # noqa: F401
    from mhlib.kernels.decode_attention import counts
    from mhlib.kernels.latent_decode import counts as latent_counts

    q, k, v = make(2, 8, 1, 16).half(), make(2, 2, 100, 16).half(), make(2, 2, 100, 24).half()
    size = lambda *xs: sum(x.numel() * x.element_size() for x in xs)  # noqa: E731
    found = counts(2, 8, 2, 1, 100, 16, 24)
    assert found.bytes == size(q, k, v) + 2 * 8 * 24 * 2 + 2 * 8 * 4
    assert found.matmul_flops == 2 * 2 * 8 * 100 * (16 + 24)
    # Decoding is bound by memory: as many FLOPs for each byte as heads share a key; a shared latent serves twice.
    assert counts(1, 8, 8, 1, 10**5, 64, 64).intensity == pytest.approx(1, rel=0.01)
    assert counts(1, 8, 2, 1, 10**5, 64, 64).intensity == pytest.approx(4, rel=0.01)
    assert latent_counts(1, 128, 1, 10**5, 512, 64).intensity == pytest.approx(128 * (1 + 512 / 576), rel=0.02)
