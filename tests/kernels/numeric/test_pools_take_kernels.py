"""Pools and functions of the library go to the kernels on CUDA, with the same result; and to the formulas everywhere else."""

import pytest
import torch
from kernels.common import DEVICE

from mhlib.functional import kernel_backend, soft_pool2d, weighted_statistics
from mhlib.pooling import AttentionPool, AttentiveAveragePool, GeneralizedMeanPool, GroupGeneralizedMeanPool, QKVPool, StdPool

@pytest.fixture(params=[False, True], ids=["elsewhere", "where kernels are fast"])
def fast(request, monkeypatch):
    """The interpreter's CPU stands in for a device."""
    monkeypatch.setattr(kernel_backend, "AUTO_DEVICES", (DEVICE,) if request.param else ())
    return request.param


class Called(torch.utils._python_dispatch.TorchDispatchMode):
    """Which operators run."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.add(func.name())
        return func(*args, **(kwargs or {}))


CASES = {
    "attention": (lambda: AttentionPool(16, 2, num_queries=3), "attention_pool"),
    "grouped attention": (lambda: AttentionPool(16, 4, num_kv_heads=2), "attention_pool"),
    "attentive average": (lambda: AttentiveAveragePool(16, 2), "attention_pool"),
    "means of attention": (lambda: QKVPool(16, 2), "attention_pool"),
    "deviation": (lambda: StdPool(16), "statistics_pool"),
    "powers": (lambda: GeneralizedMeanPool(16), "power_pool"),
    "powers of groups, shifted": (lambda: GroupGeneralizedMeanPool(16, 4, negative="shift"), "power_pool"),
}


@pytest.mark.parametrize("name", CASES)
def test_pools(name, fast):
    torch.manual_seed(0)
    build, operator = CASES[name]
    pool = build().to(DEVICE)
    x, keep = torch.randn(3, 20, 16, device=DEVICE), torch.rand(3, 20, device=DEVICE) > 0.3
    keep[-1] = False
    for key_mask in (None, keep):
        with Called() as called:
            y = pool(x.requires_grad_(), key_mask)
        assert (f"mhlib::{operator}" in called.seen) == fast
        exact = pool.double()(x.double(), key_mask)
        torch.testing.assert_close(y.double(), exact, atol=1e-5, rtol=1e-5)
        pool.float()
        learned = [x, *pool.parameters()]
        for got, want in zip(
            torch.autograd.grad(y.square().sum(), learned, allow_unused=True),
            torch.autograd.grad(exact.square().sum(), learned, allow_unused=True),
        ):
            assert (got is None) == (want is None)
            if got is not None:
                torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)


def test_what_the_kernel_cannot_do_goes_another_way(fast):
    """Weights to return, dropout, a backend that was asked for, more queries than a tile holds."""
    x = torch.randn(2, 20, 16, device=DEVICE)
    with Called() as called:
        AttentionPool(16, 2).to(DEVICE)(x, return_weights=True)
        AttentionPool(16, 2, dropout=0.5).to(DEVICE)(x)
        AttentionPool(16, 2, backend="sdpa").to(DEVICE)(x)
        AttentionPool(16, 2, num_queries=300).to(DEVICE)(x)
    assert "mhlib::attention_pool" not in called.seen


def test_functions(fast):
    x, image = torch.randn(2, 20, 8, device=DEVICE), torch.randn(1, 2, 6, 6, device=DEVICE)
    with Called() as called:
        moments, pooled = weighted_statistics(x), soft_pool2d(image, 2)
    assert ("mhlib::statistics_pool" in called.seen) == ("mhlib::soft_pool2d" in called.seen) == fast
    torch.testing.assert_close(moments, weighted_statistics(x, backend="reference"))
    torch.testing.assert_close(moments, weighted_statistics(x, backend="triton"))
    torch.testing.assert_close(pooled, soft_pool2d(image, 2, backend="reference"))
    torch.testing.assert_close(pooled, soft_pool2d(image, 2, backend="triton"))


def test_an_unknown_backend():
    with pytest.raises(ValueError, match="backend must be one of auto, reference, triton, got 'cuda'"):
        weighted_statistics(torch.zeros(1, 2, 3), backend="cuda")
