"""What a hostile user found: empty inputs, half precision, second derivatives, autocast, rows of -inf."""

import subprocess
import sys
from functools import partial

import pytest
import torch

from mhlib import attention, masks
from mhlib.functional import normalizers as nz
from mhlib.functional.attention import BACKENDS

SUMMING = {"entmax15": nz.entmax15, "sparsemax": nz.sparsemax, "entmax": partial(nz.entmax, alpha=1.3), "softmax_one": nz.softmax_one}


def _qkv(*shape: int, dtype=torch.float64, grad: bool = False):
    return [torch.randn(shape, dtype=dtype, requires_grad=grad) for _ in range(3)]


@pytest.mark.parametrize("name", SUMMING)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_rows_are_those_of_float32(name, dtype):
    z = (10 * torch.randn(4, 2048)).to(dtype)
    got, want = SUMMING[name](z), SUMMING[name](z.float())
    assert got.dtype == dtype
    torch.testing.assert_close(got.float(), want, atol=torch.finfo(dtype).eps, rtol=torch.finfo(dtype).eps)


@pytest.mark.parametrize("name", ["relu", "sigmoid"])
def test_more_keys_than_half_precision_counts(name):
    z = torch.ones(1, 70_000).half()
    want = getattr(nz, name)(z.float())
    torch.testing.assert_close(getattr(nz, name)(z).float(), want, atol=1e-7, rtol=2e-3)


@pytest.mark.parametrize("name", [*nz._BY_NAME, "entmax"])
def test_rows_without_any_key(name):
    normalize = getattr(nz, name)
    assert normalize(torch.randn(2, 3, 0)).shape == (2, 3, 0)
    q, k, v = torch.randn(1, 2, 3, 4), torch.randn(1, 2, 0, 4), torch.randn(1, 2, 0, 5)
    assert torch.equal(attention(q, k, v, normalizer=normalize), torch.zeros(1, 2, 3, 5))


def test_a_learned_alpha_can_leave_one():
    z, probe = torch.randn(3, 7, dtype=torch.float64), torch.randn(3, 7, dtype=torch.float64)
    alpha = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad((nz.entmax(z, alpha=alpha) * probe).sum(), alpha)
    step = 1e-4
    ahead, here = ((nz.entmax(z, alpha=a) * probe).sum() for a in (1 + step, 1 + 1e-6))
    torch.testing.assert_close(slope, (ahead - here) / step, rtol=2e-2, atol=1e-3)


def test_flex_refuses_empty_inputs_instead_of_dividing_by_zero():
    code = (
        "import torch, mhlib; z = torch.randn(1, 2, 5, 16)\n"
        "try: mhlib.attention(z[:, :, :0], z, z, backend='flex')\n"
        "except ValueError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and "without queries or keys there are none" in done.stdout


def test_chunked_says_that_it_has_no_second_derivative():
    q, k, v = _qkv(1, 2, 5, 4, grad=True)
    loss = attention(q, k, v, backend="chunked").sum()
    with pytest.raises(RuntimeError, match="no second derivative.*use backend='reference'"):
        torch.autograd.grad(loss, q, create_graph=True)


@pytest.mark.parametrize("backend", ["reference", "chunked", "sdpa", "auto"])
def test_autocast_gives_every_backend_its_dtype(backend):
    q, k, v = _qkv(1, 2, 5, 8, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        y = attention(q.bfloat16(), k, v, backend=backend)  # a cache keeps another dtype than the projections give
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.float(), attention(q, k, v), atol=3e-2, rtol=3e-2)


@pytest.mark.parametrize("backend", ["reference", "sdpa", "auto"])
def test_shapes_without_data(backend):
    q, k, v = (torch.empty(1, 2, 5, 8, device="meta") for _ in range(3))
    assert attention(q, k, v, causal=True, backend=backend).shape == (1, 2, 5, 8)


@pytest.mark.parametrize("normalizer", ["softmax", "sparsemax", "entmax15"])
def test_a_bias_that_rules_out_everything(normalizer):
    q, k, v = _qkv(1, 2, 3, 4, grad=True)
    bias = torch.randn(1, 1, 3, 5, dtype=torch.float64)
    k, v = (torch.randn(1, 2, 5, 4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    bias[..., 0, :] = -torch.inf
    bias[..., 1, 2] = -torch.inf
    y, w = attention(q, k, v, bias=bias, normalizer=normalizer, return_weights=True)
    assert (w[:, :, 0] == 0).all() and (w[:, :, 1, 2] == 0).all() and (y[:, :, 0] == 0).all()
    assert all(g.isfinite().all() for g in torch.autograd.grad(y.sum(), (q, k, v)))
    if normalizer == "softmax":
        for backend in ("chunked", "sdpa"):
            torch.testing.assert_close(attention(q, k, v, bias=bias, backend=backend), y)


def test_products_that_leave_half_precision():
    q, k, v = (300 * x for x in _qkv(1, 1, 4, 16, dtype=torch.float32))
    want = attention(q, k, v, backend="reference")
    got = attention(q.half(), k.half(), v.half(), backend="reference")
    torch.testing.assert_close(got.float(), want, atol=1.0, rtol=2e-2)


@pytest.mark.usefixtures("as_a_user")
def test_what_would_mean_something_else_is_refused():
    q, k, v = _qkv(1, 2, 3, 4)
    with pytest.raises(ValueError, match="a boolean table goes in as mask"):
        attention(q, k, v, bias=torch.ones(1, 1, 3, 3, dtype=torch.bool))
    with pytest.raises(ValueError, match="multiply the queries by a learned scale"):
        attention(q, k, v, scale=torch.tensor(0.5))


class FirstHeadCausal(masks.Mask):
    per_head = True

    def rule(self, b, h, q, k):
        return (k <= q) | (h > 0)


def test_rules_that_look_at_the_head_mean_the_same_everywhere():
    q, k, v = _qkv(1, 2, 6, 8, dtype=torch.float32)
    want = torch.cat([attention(q[:, :1], k[:, :1], v[:, :1], causal=True), attention(q[:, 1:], k[:, 1:], v[:, 1:])], 1)
    for backend in ("reference", "chunked", "sdpa", "flex"):
        torch.testing.assert_close(attention(q, k, v, mask=FirstHeadCausal(), backend=backend), want)
    assert FirstHeadCausal().dense(6, heads=2).shape == (1, 2, 6, 6)
    assert (FirstHeadCausal() & masks.Causal()).dense(6, heads=2).shape == (1, 2, 6, 6)


def test_every_backend_has_been_asked():
    assert set(BACKENDS) == {"reference", "chunked", "sdpa", "flex", "triton"}
