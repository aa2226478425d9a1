"""The small encoder: masks, positions, another feed-forward layer."""

import torch
from torch import nn

from mhlib.experiments import TinyEncoder
from mhlib.pooling import MemoryLayer


def test_masked_tokens_do_not_reach_the_others():
    encoder = TinyEncoder(8, 2).double()
    x, keep = torch.randn(2, 5, 8, dtype=torch.float64), torch.tensor([[True, True, True, False, False]] * 2)
    junk = torch.where(keep[..., None], x, 1e3)
    torch.testing.assert_close(encoder(junk, keep)[:, :3], encoder(x[:, :3]))


def test_positions_break_the_symmetry():
    x, order = torch.randn(1, 5, 8), torch.tensor([4, 2, 0, 1, 3])
    plain, placed = TinyEncoder(8, 2), TinyEncoder(8, 2, max_tokens=5)
    torch.testing.assert_close(plain(x[:, order]), plain(x)[:, order])
    with torch.no_grad():
        placed.positions.weight.normal_()
    assert (placed(x[:, order]) - placed(x)[:, order]).abs().max() > 1e-3


def test_other_parts():
    encoder = TinyEncoder(8, 2, num_layers=3, feed_forward=lambda: MemoryLayer(8, 10), norm=True)
    assert sum(isinstance(m, MemoryLayer) for m in encoder.modules()) == 3
    y = encoder(torch.randn(2, 5, 8))
    torch.testing.assert_close(y, nn.functional.layer_norm(y, (8,)), atol=1e-3, rtol=1e-3)
