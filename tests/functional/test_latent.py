"""Attention over one shared latent is attention whose values are part of the keys."""

import pytest
import torch

from mhlib import attention
from mhlib.functional import latent_attention


@pytest.mark.parametrize("backend", ["auto", "reference", "sdpa", "chunked"])
@pytest.mark.parametrize("masked", [False, True])
def test_it_is_attention_with_gradients(backend, masked):
    torch.manual_seed(0)
    q, latent = torch.randn(2, 4, 3, 10, requires_grad=True), torch.randn(2, 1, 7, 10, requires_grad=True)
    options = dict(scale=0.4, causal=True, mask=(torch.rand(2, 1, 1, 7) > 0.4) if masked else None)
    got = latent_attention(q, latent, 6, backend=backend, **options)
    want = attention(q, latent, latent[..., :6], backend="reference", **options)
    torch.testing.assert_close(got, want)
    upstream = torch.randn_like(want)
    for a, b in zip(*(torch.autograd.grad(y, (q, latent), upstream) for y in (got, want))):
        torch.testing.assert_close(a, b)


def test_the_kernel_is_refused_on_the_cpu(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with torch.no_grad(), pytest.raises(ValueError, match="backend 'triton' cannot serve this request: .*need a GPU"):
        latent_attention(torch.zeros(1, 2, 1, 8), torch.zeros(1, 1, 3, 8), 6, scale=1.0, backend="triton")
