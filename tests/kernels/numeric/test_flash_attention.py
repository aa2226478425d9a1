"""Flash attention against the reference in float64: every option, pairs of options, ragged batches; values and gradients."""

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels.attention import reference
from kernels.common import DEVICE, DTYPES, ON_GPU, TOLERANCE, close, pairwise

from mhlib import attention
from mhlib.functional.normalizers import sink_softmax
from mhlib.kernels import flash_attention

GENERATOR = torch.Generator()


def make(*shape, dtype=torch.float32, grad=True):
    """Random numbers that ``dtype`` holds exactly, so that rounding of the inputs is no part of the error."""
    return torch.randn(*shape, generator=GENERATOR).to(DEVICE, dtype).requires_grad_(grad)


def tensors(batch=2, heads=4, kv_heads=2, queries=37, keys=45, dim=24, width=24, dtype=torch.float32):
    return (
        make(batch, heads, queries, dim, dtype=dtype),
        make(batch, kv_heads, keys, dim, dtype=dtype),
        make(batch, kv_heads, keys, width, dtype=dtype),
    )


def agree(q, k, v, dtype, run=flash_attention, want=reference, **options):
    """Output, log-sum-exp and all gradients, with a random gradient of both results coming in."""
    learned = [options[name] for name in ("sink",) if options.get(name) is not None]
    out, lse = run(q, k, v, return_lse=True, **options)
    assert out.dtype == q.dtype and lse.dtype == torch.promote_types(q.dtype, torch.float32)
    exact = {n: t.detach().double().requires_grad_() if isinstance(t, torch.Tensor) and t.is_floating_point() else t
             for n, t in options.items()}  # fmt: skip
    inputs = [x.detach().double().requires_grad_() for x in (q, k, v)]
    out64, lse64 = want(*inputs, **exact)
    close(out, out64, "output", dtype)
    close(lse, lse64, "log-sum-exp", torch.promote_types(dtype, torch.float32), factor=100 if dtype.itemsize == 2 else 3)
    d_out, d_lse = torch.randn_like(out), torch.where(lse.isfinite(), torch.randn_like(lse), 0.0)
    got = torch.autograd.grad((out, lse), [q, k, v, *learned], (d_out, d_lse))
    wanted = torch.autograd.grad(
        (out64, lse64), [*inputs, *([exact["sink"]] if learned else [])], (d_out.double(), d_lse.double())
    )
    for name, a, b in zip(("q", "k", "v", "sink"), got, wanted, strict=False):
        # A sink may be coarser than the tokens, and its gradient is as coarse as itself.
        close(a, b, f"gradient of {name}", max(dtype, a.dtype, key=TOLERANCE.get), factor=5)


#: Every option, with the values that take different paths through the kernels.
OPTIONS = {
    "shape": [
        dict(queries=37, keys=37),
        dict(queries=16, keys=48),  # whole blocks
        dict(queries=5, keys=41),
        dict(queries=33, keys=18),  # the first queries stand before the first key
        dict(queries=1, keys=1),
    ],
    "heads": [dict(heads=2, kv_heads=2), dict(heads=4, kv_heads=2), dict(heads=3, kv_heads=1)],
    "widths": [dict(dim=16, width=16), dict(dim=24, width=40), dict(dim=40, width=8)],
    "dtype": DTYPES,
    "causal": [False, True],
    "window": [None, (9, None), (20, 3), (0, 17), (None, 5)],
    "softcap": [None, 2.0],
    "sink": [False, True],
    "alibi": [False, True],
    "key_mask": [None, "right", "holes", "nothing"],
    "layout": ["heads first", "tokens first", "strided columns"],
}


def key_mask_of(kind, batch, keys):
    if kind is None:
        return None
    keep = torch.ones(batch, keys, dtype=torch.bool)
    if kind == "right":
        keep[0, (keys + 1) // 2 :] = False
    elif kind == "holes":
        keep = torch.rand(batch, keys) > 0.4
    else:
        keep[-1] = False
    return keep.to(DEVICE)


def laid_out(x, layout):
    """The same numbers elsewhere in memory."""
    if layout == "tokens first":
        return x.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_()
    if layout == "strided columns":
        return x.detach().repeat_interleave(2, -1)[..., ::2].requires_grad_()
    return x


@pytest.mark.parametrize("row", pairwise(OPTIONS), ids=str)
def test_pairs_of_options(row):
    torch.manual_seed(0)
    dtype = row["dtype"]
    q, k, v = (laid_out(x, row["layout"]) for x in tensors(**row["shape"], **row["heads"], **row["widths"], dtype=dtype))
    heads = q.shape[1]
    agree(
        q, k, v, dtype, causal=row["causal"], window=row["window"], softcap=row["softcap"],
        sink=make(heads) if row["sink"] else None, alibi_slopes=torch.rand(heads, device=DEVICE) if row["alibi"] else None,
        key_mask=key_mask_of(row["key_mask"], 2, k.shape[2]),
    )  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "options",
    [
        dict(),
        dict(causal=True),
        dict(window=7),
        dict(window=(19, 0)),
        dict(softcap=3.0),
        dict(sink=True),
        dict(alibi_slopes=True),
        dict(key_mask="right"),
        dict(scale=0.5),
    ],
    ids=str,
)
def test_each_option_alone(dtype, options):
    torch.manual_seed(1)
    q, k, v = tensors(heads=2, kv_heads=1, queries=33, keys=33, dim=16, width=16, dtype=dtype)
    made = {"sink": lambda _: make(2), "alibi_slopes": lambda _: torch.tensor([0.25, 0.5], device=DEVICE)}
    made["key_mask"] = lambda kind: key_mask_of(kind, 2, 33)
    agree(q, k, v, dtype, **{name: made[name](value) if name in made else value for name, value in options.items()})


@pytest.mark.parametrize("dim, width", [(16, 16), (32, 32), (64, 64), (72, 72), (128, 128), (192, 128), (256, 256), (8, 1), (5, 130)])
def test_widths(dim, width):
    torch.manual_seed(2)
    dtype = torch.float16
    q, k, v = tensors(batch=1, heads=2, kv_heads=1, queries=18, keys=18, dim=dim, width=width, dtype=dtype)
    agree(q, k, v, dtype, causal=True)


# ---- ragged ----------------------------------------------------------------------------------------------------------------------


def offsets(lengths):
    return torch.tensor([0, *lengths], dtype=torch.int32, device=DEVICE).cumsum(0, dtype=torch.int32)


def one_by_one(q, k, v, *, cu_seqlens, cu_seqlens_k=None, **options):
    """Each sequence through the reference on its own."""
    q_at, k_at = cu_seqlens.tolist(), (cu_seqlens if cu_seqlens_k is None else cu_seqlens_k).tolist()
    parts = [
        reference(q[None, :, a:b], k[None, :, c:d], v[None, :, c:d], **options)
        for a, b, c, d in zip(q_at, q_at[1:], k_at, k_at[1:])
    ]
    return torch.cat([out[0] for out, _ in parts], 1), torch.cat([lse[0] for _, lse in parts], 1)


RAGGED = {
    "lengths": [
        ([17, 1, 33, 0, 4], None),
        ([16, 32], [32, 16]),
        ([1], [20]),
        ([3, 0, 21], [18, 5, 0]),
        ([2] * 9, None),
    ],
    "dtype": DTYPES,
    "causal": [False, True],
    "window": [None, (6, 6)],
    "extras": [False, True],
    "kv_heads": [1, 2],
}


@pytest.mark.parametrize("row", pairwise(RAGGED), ids=str)
def test_ragged(row):
    torch.manual_seed(3)
    dtype = row["dtype"]
    lengths, k_lengths = row["lengths"]
    keys = sum(lengths if k_lengths is None else k_lengths)
    q = make(2, sum(lengths), 16, dtype=dtype)
    k, v = make(row["kv_heads"], keys, 16, dtype=dtype), make(row["kv_heads"], keys, 24, dtype=dtype)
    extras = dict(sink=make(2), softcap=4.0, alibi_slopes=torch.rand(2, device=DEVICE)) if row["extras"] else {}
    agree(
        q, k, v, dtype, want=one_by_one, cu_seqlens=offsets(lengths), causal=row["causal"], window=row["window"],
        cu_seqlens_k=None if k_lengths is None else offsets(k_lengths), **extras,
    )  # fmt: skip


def test_equal_lengths_are_a_batch():
    torch.manual_seed(4)
    q, k, v = tensors(batch=3, queries=20, keys=20, dim=16, width=16)
    packed = [x.detach().transpose(0, 1).flatten(1, 2) for x in (q, k, v)]
    got = flash_attention(*packed, causal=True, cu_seqlens=offsets([20] * 3))
    assert torch.equal(got.unflatten(1, (3, 20)).transpose(0, 1), flash_attention(q, k, v, causal=True))


# ---- shapes at random ------------------------------------------------------------------------------------------------------------


@settings(max_examples=12 if not ON_GPU else 200, deadline=None)
@given(
    batch=st.integers(1, 2),
    kv_heads=st.integers(1, 2),
    group=st.integers(1, 2),
    queries=st.integers(1, 40),
    keys=st.integers(1, 40),
    dim=st.integers(1, 33),
    width=st.integers(1, 33),
    causal=st.booleans(),
    window=st.none() | st.tuples(st.none() | st.integers(0, 40), st.none() | st.integers(0, 40)),
    seed=st.integers(0, 2**31),
)
def test_any_shape(batch, kv_heads, group, queries, keys, dim, width, causal, window, seed):
    torch.manual_seed(seed)
    q, k, v = tensors(batch, kv_heads * group, kv_heads, queries, keys, dim, width)
    agree(q, k, v, torch.float32, causal=causal, window=window)


# ---- what is promised beside the numbers ------------------------------------------------------------------------------------------


def test_the_library_computes_the_same():
    """The reference above is the library's own, sinks included."""
    torch.manual_seed(5)
    q, k, v = tensors(dtype=torch.float64 if not ON_GPU else torch.float32)
    sink = make(4, dtype=q.dtype)
    want = attention(q, k, v, causal=True, window=11, normalizer=partial(sink_softmax, sink=sink), backend="reference")
    close(flash_attention(q, k, v, causal=True, window=11, sink=sink), want.double(), "output", q.dtype)


def test_huge_logits_stay_finite():
    torch.manual_seed(6)
    q, k, v = tensors()
    for factor in (1e4, -1e4):
        out, lse = flash_attention(q * factor, k, v, causal=True, return_lse=True)
        assert out.isfinite().all()
        assert all(g.isfinite().all() for g in torch.autograd.grad(out.sum(), (q, k, v)))


def test_blocks_that_a_mask_rules_out_are_not_visited():
    """NaN in them would show: a masked weight of zero times NaN is NaN."""
    q, k, v = (x.detach() for x in tensors(batch=1, queries=64, keys=64, dim=16, width=16))
    for options, unseen in ((dict(causal=True), slice(48, None)), (dict(window=(5, 5)), slice(48, None)), (dict(window=(5, 0)), slice(0, 16))):
        rows = slice(0, 32) if unseen.start else slice(40, 64)
        holed_k, holed_v = k.clone(), v.clone()
        holed_k[:, :, unseen], holed_v[:, :, unseen] = float("nan"), float("nan")
        got = flash_attention(q, holed_k, holed_v, **options)[:, :, rows]
        assert torch.equal(got, flash_attention(q, k, v, **options)[:, :, rows])
        # the same for the gradient of queries that no key of a block is seen by
        q_grad = q.clone().requires_grad_()
        out = flash_attention(q_grad, holed_k, holed_v, **options)
        d_out = torch.zeros_like(out)
        d_out[:, :, rows] = 1.0
        assert torch.autograd.grad(out.nan_to_num(), q_grad, d_out)[0][:, :, rows].isfinite().all()


def test_junk_in_masked_keys_changes_nothing():
    torch.manual_seed(7)
    q, k, v = tensors(queries=20, keys=20)
    keep = key_mask_of("holes", 2, 20)
    results = []
    for junk in (0.0, float("nan"), float("inf")):
        k2 = torch.where(keep[:, None, :, None], k, junk).detach().requires_grad_()
        v2 = torch.where(keep[:, None, :, None], v, junk).detach().requires_grad_()
        out = flash_attention(q, k2, v2, key_mask=keep)
        results.append((out, *torch.autograd.grad(out.square().sum(), (q, k2, v2))))
    for other in results[1:]:
        for a, b in zip(results[0], other):
            assert torch.equal(a, b)


def test_two_runs_agree_to_the_bit():
    torch.manual_seed(8)
    q, k, v = tensors(dtype=torch.float16)
    runs = []
    for _ in range(2):
        out = flash_attention(q, k, v, causal=True)
        runs.append((out, *torch.autograd.grad(out.sum(), (q, k, v), retain_graph=True)))
    for a, b in zip(*runs):
        assert torch.equal(a, b)


@pytest.mark.parametrize("batch, queries, keys", [(0, 4, 4), (2, 0, 4), (2, 4, 0)])
def test_nothing_at_all(batch, queries, keys):
    q, k, v = tensors(batch=batch, queries=queries, keys=keys)
    out, lse = flash_attention(q, k, v, return_lse=True)
    assert out.shape == (batch, 4, queries, 24) and (out == 0).all() and (lse == float("-inf")).all()
    for x, gradient in zip((q, k, v), torch.autograd.grad(out.sum(), (q, k, v))):
        assert gradient.shape == x.shape and (gradient == 0).all()


def test_heads_merge_without_a_copy():
    q, k, v = tensors()
    out = flash_attention(q, k, v)
    assert out.transpose(1, 2).flatten(2).data_ptr() == out.data_ptr()


def test_gradcheck():
    if ON_GPU:
        pytest.skip("float64 runs in the interpreter alone")
    q, k, v = tensors(batch=1, heads=2, kv_heads=1, queries=3, keys=5, dim=4, width=3, dtype=torch.float64)
    sink = make(2, dtype=torch.float64)
    call = lambda q, k, v, sink: flash_attention(  # noqa: E731
        q, k, v, causal=True, softcap=2.0, sink=sink, alibi_slopes=torch.tensor([0.5, 0.25]), return_lse=True
    )
    assert torch.autograd.gradcheck(call, (q, k, v, sink), fast_mode=True)


@pytest.mark.parametrize("options", [dict(), dict(sink=True, ragged=True), dict(key_mask=True)], ids=str)
def test_operator_is_well_behaved(options):
    """Schema, fake tensors, autograd registration and tracing with dynamic shapes, by PyTorch's own check."""
    q, k, v = tensors(batch=1, heads=2, kv_heads=1, queries=9, keys=9, dim=16, width=8)
    at = offsets([4, 5]) if options.get("ragged") else None
    sink = make(2) if options.get("sink") else None
    keep = torch.ones(1, 9, dtype=torch.bool, device=DEVICE) if options.get("key_mask") else None
    torch.library.opcheck(
        torch.ops.mhlib.flash_attention.default, (q, k, v, sink, None, at, at, keep, 0.25, 0.0, -1, 0)
    )


def test_compiles_without_a_break():
    q, k, v = tensors(batch=1, queries=17, keys=17)

    def step(q, k, v):
        return flash_attention(q, k, v, causal=True, softcap=5.0).square().sum()

    got = torch.autograd.grad(torch.compile(step, fullgraph=True, backend="aot_eager")(q, k, v), (q, k, v))
    for a, b in zip(got, torch.autograd.grad(step(q, k, v), (q, k, v))):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(
    "change, match",
    [
        (dict(q=lambda q: q[0]), r"must be \(batch, heads, tokens, width\) without cu_seqlens, got q \(4, 37, 24\)"),
        (dict(q=lambda q: q[..., :8]), r"equally wide, .* got q \(2, 4, 37, 8\), k \(2, 2, 45, 24\)"),
        (dict(q=lambda q: q[:, :3]), "must divide"),
        (dict(sink=torch.zeros(3)), r"sink must be \(heads,\) = \(4,\), got \(3,\)"),
        (dict(alibi_slopes=torch.zeros(2)), r"alibi_slopes must be"),
        (dict(key_mask=torch.ones(2, 45)), r"key_mask must be boolean \(batch, keys\) = \(2, 45\), got torch.float32 \(2, 45\)"),
        (dict(cu_seqlens=torch.tensor([0, 2])), r"must be \(heads, tokens, width\) with cu_seqlens"),
        (dict(cu_seqlens_k=torch.tensor([0, 2])), "cu_seqlens_k needs cu_seqlens"),
        (dict(q=lambda q: q.half()), "must share one dtype, got torch.float16, torch.float32, torch.float32"),
        (dict(window=(-1, 2)), "window must be"),
        (dict(softcap=-1.0), "softcap must be positive, got -1.0"),
    ],
)
def test_errors_say_what_was_expected(change, match):
    q, k, v = tensors()
    q = change.pop("q", lambda q: q)(q)
    with pytest.raises(ValueError, match=match):
        flash_attention(q, k, v, **change)


def test_ragged_errors():
    q, k, v = (x[0].detach() for x in tensors())
    with pytest.raises(ValueError, match="cu_seqlens_k is needed"):
        flash_attention(q, k, v, cu_seqlens=offsets([37]))
    with pytest.raises(ValueError, match="no padding to mask"):
        flash_attention(q, k, v, cu_seqlens=offsets([37]), cu_seqlens_k=offsets([45]), key_mask=torch.ones(1, 45, dtype=torch.bool))


def test_too_wide_or_the_wrong_dtype():
    from mhlib.kernels.flash_attention import supports

    wide = torch.zeros(1, 1, 2, 264, device=DEVICE)
    assert "at most 256 wide, got 264" in supports(wide, wide, wide).reason
    wrong = torch.zeros(1, 1, 2, 16, device=DEVICE, dtype=torch.float64 if ON_GPU else torch.bfloat16)
    assert "got torch." in supports(wrong, wrong, wrong).reason


@pytest.mark.parametrize("options", [dict(), dict(causal=True), dict(window=(3, 2)), dict(window=4, causal=True), dict(window=(None, 1))], ids=str)
@pytest.mark.parametrize("queries, keys", [(7, 7), (3, 9), (9, 4)])
def test_counts_are_of_visible_pairs(options, queries, keys):
    from mhlib.kernels.flash_attention import counts

    sees = attention(
        torch.zeros(1, 1, queries, 1), torch.zeros(1, 1, keys, 1), torch.zeros(1, 1, keys, 1), return_weights=True, backend="reference", **options
    )[1]  # fmt: skip
    pairs = 2 * 4 * int((sees > 0).sum())
    forward, backward = (counts(2, 4, 2, queries, keys, 16, 24, backward=b, **options) for b in (False, True))
    assert forward.matmul_flops == 2 * pairs * (16 + 24) and backward.matmul_flops == 2 * pairs * (3 * 16 + 2 * 24)
    moved = 2 * (2 * 4 * queries + 2 * 2 * keys) * (16 + 24)
    assert forward.bytes == moved + 4 * 2 * 4 * queries and backward.bytes == 2 * moved + 4 * 2 * 4 * queries
