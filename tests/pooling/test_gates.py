"""ULSAM and triplet attention: maps that sum to one, gates that see what they should, exact counts."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mhlib.pooling import ULSAM, AxisGate, TripletAttention


def shaken(module):
    """In float64 with other numbers than at the start, statistics included."""
    with torch.no_grad():
        for name, t in module.double().state_dict().items():
            if t.is_floating_point():
                t.uniform_(0.5, 2.0) if name.endswith("var") else t.add_(0.5 * torch.randn_like(t))
    return module.eval()


def maps(batch=2, channels=6, height=5, width=4):
    return torch.randn(batch, channels, height, width, dtype=torch.float64)


@pytest.mark.parametrize("norm", [True, False])
def test_ulsam_group_by_group(norm):
    gate, x = shaken(ULSAM(6, 3, norm=norm)), maps()
    y, found = gate(x, return_map=True)
    for g in range(3):
        part = x[:, 2 * g : 2 * g + 2]
        a = part * gate.depth.weight[2 * g : 2 * g + 2].view(1, 2, 1, 1) + gate.depth.bias[2 * g : 2 * g + 2].view(1, 2, 1, 1)
        a = gate.depth_norm(_at(a, 6, 2 * g))[:, 2 * g : 2 * g + 2].relu() if norm else a
        a = F.max_pool2d(a, 3, 1, 1)
        a = (a * gate.point.weight[g].view(1, 2, 1, 1)).sum(1, keepdim=True) + gate.point.bias[g]
        a = gate.point_norm(_at(a, 3, g))[:, g : g + 1].relu() if norm else a
        weights = a.flatten(1).softmax(-1).view_as(a)
        torch.testing.assert_close(found[:, g : g + 1], weights)
        torch.testing.assert_close(y[:, 2 * g : 2 * g + 2], weights * part + part)


def _at(part, channels, first):
    """A map of so many channels that holds `part` from channel `first` on."""
    whole = part.new_zeros(part.shape[0], channels, *part.shape[2:])
    whole[:, first : first + part.shape[1]] = part
    return whole


def test_ulsam_maps_sum_to_one_so_their_mean_is_one_over_the_places():
    gate, x = shaken(ULSAM(8, 4)), maps(channels=8, height=7, width=9)
    _, found = gate(x, return_map=True)
    torch.testing.assert_close(found.sum((2, 3)), torch.ones(2, 4, dtype=torch.float64))


def test_ulsam_parameters():
    count = lambda channels, groups, **options: sum(p.numel() for p in ULSAM(channels, groups, **options).parameters())  # noqa: E731
    for channels, groups in ((8, 4), (512, 4), (16, 16)):
        assert count(channels, groups, norm=False) == 3 * channels + groups  # 2C weights, C + g biases
        assert count(channels, groups) == 5 * channels + 3 * groups  # and two numbers per normalised channel


def test_ulsam_biases_before_a_normalisation_do_not_learn():
    gate, x = ULSAM(6, 3).double().train(), maps()
    gate(x).square().sum().backward()
    assert gate.depth.bias.grad.abs().max() < 1e-9 < gate.depth.weight.grad.abs().max()
    assert gate.point.bias.grad.abs().max() < 1e-9 < gate.point.weight.grad.abs().max()


@pytest.mark.parametrize("spatial", [True, False])
def test_triplet_by_hand(spatial):
    gate, x = shaken(TripletAttention(3, spatial=spatial)), maps()

    def branch(t, axis_gate):
        pooled = torch.cat([t.max(1, keepdim=True).values, t.mean(1, keepdim=True)], 1)
        bn = axis_gate.norm
        z = F.conv2d(pooled, axis_gate.conv.weight, padding=1)
        z = (z - bn.running_mean) / (bn.running_var + 1e-5).sqrt() * bn.weight + bn.bias
        return t * z.sigmoid()

    parts = [
        branch(x.permute(0, 2, 1, 3), gate.over_rows).permute(0, 2, 1, 3),
        branch(x.permute(0, 3, 2, 1), gate.over_columns).permute(0, 3, 2, 1),
    ]
    parts += [branch(x, gate.over_channels)] if spatial else []
    torch.testing.assert_close(gate(x), sum(parts) / len(parts))


def test_triplet_and_the_order_of_channels():
    """The spatial branch does not see it; the other two slide along it."""
    gate, x, order = shaken(TripletAttention(3)), maps(), [3, 0, 5, 1, 4, 2]
    torch.testing.assert_close(gate.over_channels(x[:, order]), gate.over_channels(x))
    assert (gate(x[:, order]) - gate(x)[:, order]).abs().max() > 1e-3


def test_triplet_parameters_do_not_depend_on_channels():
    for k in (3, 7):
        assert sum(p.numel() for p in TripletAttention(k).parameters()) == 6 * k**2 + 6
        assert sum(p.numel() for p in TripletAttention(k, spatial=False).parameters()) == 4 * k**2 + 4


def test_maximum_and_mean_agree_on_a_constant_axis():
    gate, x = shaken(AxisGate(3)), maps(channels=1)
    with torch.no_grad():
        swapped = nn.Conv2d(2, 1, 3, padding=1, bias=False).double()
        swapped.weight.copy_(gate.conv.weight.flip(1))
        expected = gate(x.expand(-1, 4, -1, -1))
        gate.conv = swapped
        torch.testing.assert_close(gate(x.expand(-1, 4, -1, -1)), expected)


@pytest.mark.parametrize("gate", [ULSAM(6, 3), TripletAttention(3)])
def test_gates_are_finite_at_ties_and_in_all_sizes(gate):
    for x in (torch.zeros(2, 6, 4, 4), torch.ones(2, 6, 1, 1), 1e4 * torch.randn(2, 6, 3, 5)):
        y = gate.train()(x.requires_grad_()) if x.shape[-1] > 1 else gate.eval()(x.requires_grad_())
        assert y.shape == x.shape and y.isfinite().all()
        assert torch.autograd.grad(y.sum(), x)[0].isfinite().all()


def test_errors(as_a_user):
    with pytest.raises(ValueError, match="groups must divide channels, got channels=6, groups=4"):
        ULSAM(6, 4)
    with pytest.raises(ValueError, match=r"ULSAM wants \(batch, 6, height, width\), got \(2, 3, 4, 4\)"):
        ULSAM(6, 3)(torch.zeros(2, 3, 4, 4))
    with pytest.raises(ValueError, match="kernel_size must be odd"):
        TripletAttention(4)
    with pytest.raises(ValueError, match=r"TripletAttention wants \(batch, channels, height, width\), got \(3, 4, 4\)"):
        TripletAttention(3)(torch.zeros(3, 4, 4))
