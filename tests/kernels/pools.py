"""What the tests of the pooling kernels share: sets of odd sizes, random tensors, and parts of every length."""

import pytest
import torch
from kernels.common import DEVICE

from mhlib.kernels import parts

GENERATOR = torch.Generator()

#: Sets of one token, of none, of whole blocks and of several.
LENGTHS = [(17, 1, 33, 0, 4), (1,), (32, 16), (0, 50), (2,) * 9]

#: Programs that are wanted: with many a part is one block, with one a part is the whole set.
one_part_or_many = pytest.mark.parametrize("wanted", [1, 3, 10**6], ids="wanted={}".format)


def make(*shape, dtype=torch.float32, grad=True):
    """Random numbers that ``dtype`` holds exactly, so that rounding of the inputs is no part of the error."""
    return torch.randn(*shape, generator=GENERATOR).to(DEVICE, dtype).requires_grad_(grad)


def offsets(lengths):
    return torch.tensor([0, *lengths], dtype=torch.int32, device=DEVICE).cumsum(0, dtype=torch.int32)


def mask_of(kind, batch, tokens):
    """Padding at the end, holes, a set of padding alone, or none at all."""
    if kind is None:
        return None
    keep = torch.ones(batch, tokens, dtype=torch.bool)
    if kind == "right":
        keep[0, (tokens + 1) // 2 :] = False
    elif kind == "holes":
        keep = torch.rand(batch, tokens, generator=GENERATOR) > 0.4
    else:
        keep[-1] = False
    return keep.to(DEVICE)


@pytest.fixture
def wanted_parts(monkeypatch):
    return lambda wanted: monkeypatch.setattr(parts, "WANTED", wanted)


def exact(x):
    """The same in float64, a leaf of its own."""
    return None if x is None else x.detach().double().requires_grad_(x.requires_grad)


def laid_out(x, layout):
    """The same numbers elsewhere in memory."""
    if layout == "turned":
        return x.detach().transpose(-1, -2).contiguous().transpose(-1, -2).requires_grad_(x.requires_grad)
    if layout == "strided":
        return x.detach().repeat_interleave(2, -1)[..., ::2].requires_grad_(x.requires_grad)
    return x
