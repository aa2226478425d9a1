"""SoftPool against the reference in float64: windows and strides of all kinds, layouts of memory; values and gradients."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels.common import DEVICE, DTYPES, ON_GPU, close, pairwise
from kernels.pools import exact, make

from mhlib.functional import soft_pool2d as reference
from mhlib.kernels import soft_pool2d


def agree(x, dtype, kernel, stride, beta=1.0):
    y, x64 = soft_pool2d(x, kernel, stride, beta=beta), exact(x)
    want = reference(x64, kernel, stride, beta=beta)
    assert y.dtype == dtype
    close(y, want, "output", dtype)
    d_y = torch.randn_like(y)
    got, expected = torch.autograd.grad(y, x, d_y)[0], torch.autograd.grad(want, x64, d_y.double())[0]
    assert got.stride() == torch.empty_like(x).stride()
    close(got, expected, "gradient", dtype, factor=2)


def laid_out(x, layout):
    x = x.detach()
    if layout == "channels last":
        x = x.to(memory_format=torch.channels_last)
    elif layout == "turned":
        x = x.mT.contiguous().mT
    elif layout == "strided":
        x = x.repeat_interleave(2, -1)[..., ::2]
    return x.requires_grad_()


OPTIONS = {
    "shape": [(2, 3, 9, 11), (1, 1, 5, 4), (2, 5, 4, 4)],
    "kernel": [1, 2, (3, 2), (4, 3)],
    "stride": [None, 1, 2, (3, 1), (5, 5)],
    "beta": [1.0, 0.25, -2.0, 0.0],
    "dtype": DTYPES,
    "layout": ["plain", "channels last", "turned", "strided"],
}


@pytest.mark.parametrize("row", pairwise(OPTIONS), ids=str)
def test_pairs_of_options(row):
    torch.manual_seed(0)
    agree(laid_out(make(*row["shape"], dtype=row["dtype"]), row["layout"]), row["dtype"], row["kernel"], row["stride"], row["beta"])


@settings(max_examples=25 if not ON_GPU else 200, deadline=None)
@given(
    planes=st.tuples(st.integers(1, 2), st.integers(1, 3)), kernel=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    more=st.tuples(st.integers(0, 7), st.integers(0, 7)), stride=st.none() | st.tuples(st.integers(1, 6), st.integers(1, 6)),
    seed=st.integers(0, 2**31),
)  # fmt: skip
def test_any_window(planes, kernel, more, stride, seed):
    torch.manual_seed(seed)
    agree(make(*planes, kernel[0] + more[0], kernel[1] + more[1]), torch.float32, kernel, stride)


def test_large_activations_keep_their_gradient():
    """Near 1000 float16 rounds y by a quarter, and 1 + x - y with it."""
    torch.manual_seed(1)
    x = (1000 + make(1, 2, 8, 8, grad=False)).half().requires_grad_()
    y = soft_pool2d(x, 2)
    got = torch.autograd.grad(y.sum(), x)[0]
    x64 = exact(x)
    want = torch.autograd.grad(reference(x64, 2).sum(), x64)[0]
    close(got, want, "gradient", torch.float16)


def test_a_window_far_below_the_others_counts_like_any():
    x = make(1, 1, 4, 4, grad=False)
    x[..., 2:] += 1000
    torch.testing.assert_close(soft_pool2d(x, 2)[..., :1], soft_pool2d(x[..., :2], 2))


def test_nothing_at_all():
    x = make(0, 2, 4, 4)
    y = soft_pool2d(x, 2)
    assert y.shape == (0, 2, 2, 2) and torch.autograd.grad(y.sum(), x)[0].shape == x.shape


def test_gradcheck():
    if ON_GPU:
        pytest.skip("float64 runs in the interpreter alone")
    x = make(1, 2, 5, 4, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x: soft_pool2d(x, (3, 2), (1, 2)), x, fast_mode=True)


def test_operator_is_well_behaved():
    """Schema, fake tensors, autograd registration and tracing with dynamic shapes, by PyTorch's own check."""
    for dtype in (torch.float32, torch.float16):
        torch.library.opcheck(torch.ops.mhlib.soft_pool2d.default, (make(1, 2, 5, 4, dtype=dtype), [3, 2, 1, 2], 1.0))


def test_compiles_without_a_break():
    x = make(1, 2, 6, 6)
    step = lambda x: soft_pool2d(x, 2).square().sum()  # noqa: E731
    got = torch.autograd.grad(torch.compile(step, fullgraph=True, backend="aot_eager")(x), x)[0]
    torch.testing.assert_close(got, torch.autograd.grad(step(x), x)[0])


def test_a_dtype_that_is_not_served():
    wrong = torch.float64 if ON_GPU else torch.bfloat16
    with pytest.raises(ValueError, match=f"soft_pool2d cannot run: soft_pool2d takes .*, got {wrong}"):
        soft_pool2d(torch.zeros(1, 1, 4, 4, dtype=wrong, device=DEVICE), 2)
