"""The bytes that the pooling kernels state are those of the tensors that go in and come out."""

import pytest
import torch
from kernels.pools import make

from mhlib.kernels import attention_pool, power_pool, soft_pool2d, statistics_pool
from mhlib.kernels.attention_pool import counts as count_attention
from mhlib.kernels.power_pool import counts as count_powers
from mhlib.kernels.soft_pool2d import counts as count_soft
from mhlib.kernels.statistics_pool import counts as count_statistics


def sizes(tensors):
    return sum(x.numel() * x.element_size() for x in tensors)


@pytest.mark.parametrize("per_set, shared", [(False, False), (True, False), (False, True)])
def test_attention(per_set, shared):
    q, k = make(*([3] if per_set else []), 4, 2, 16), make(3, 2, 10, 16)
    v = None if shared else make(3, 2, 10, 8)
    inputs = [x for x in (q, k, v) if x is not None]
    results = attention_pool(q, k, v, return_lse=True)
    how = dict(itemsize=4, per_set=per_set, shared=shared)
    found = count_attention(3, 4, 2, 2, 30, 16, 16 if shared else 8, **how)
    assert found.bytes == sizes([*inputs, *results])
    gradients = torch.autograd.grad(results[0].sum(), inputs)
    back = count_attention(3, 4, 2, 2, 30, 16, 16 if shared else 8, backward=True, **how)
    # the output and its gradient come in, and the log-sum-exp
    assert back.bytes == sizes([*inputs, *gradients, results[0], *results])


def test_statistics():
    x, w = make(3, 10, 8), torch.rand(3, 10, 2, requires_grad=True, device=make(1).device)
    results = statistics_pool(x, w)
    assert count_statistics(3, 30, 8, groups=2, itemsize=4).bytes == sizes([x, w, *results])
    gradients = torch.autograd.grad(sum(r.sum() for r in results), (x, w))
    assert count_statistics(3, 30, 8, groups=2, itemsize=4, backward=True).bytes == sizes([x, w, *gradients, *results])


def test_powers():
    x, p = make(3, 10, 8), torch.full((8,), 2.0, device=make(1).device)
    y = power_pool(x, p)
    assert count_powers(3, 30, 8, itemsize=4).bytes == sizes([x, p, y])
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert count_powers(3, 30, 8, itemsize=4, backward=True).bytes == sizes([x, p, gradient, y])


@pytest.mark.parametrize("kernel, stride", [(2, 2), (3, 1)])
def test_soft_pool(kernel, stride):
    x = make(2, 3, 8, 6)
    y = soft_pool2d(x, kernel, stride)
    assert count_soft(2, 3, 8, 6, kernel, stride, itemsize=4).bytes == sizes([x, y])
    (gradient,) = torch.autograd.grad(y.sum(), x)
    # the gradient that comes in, the output and the log-sum-exp have the size of y
    assert count_soft(2, 3, 8, 6, kernel, stride, itemsize=4, backward=True).bytes == sizes([x, gradient, y, y, y])
