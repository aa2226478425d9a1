"""One query over keys on many devices: attention on each of them, in the rounds and with the numbers that theory says."""

import math

import pytest
import torch

import mhlib
from mhlib.experiments.devices import all_reduce, ring_decode, three_step_decode, tree_decode

B, H, G, WIDTH, KEYS = 2, 4, 2, 8, 3  # KEYS on each device


def up(p: int) -> int:
    return math.ceil(math.log2(p))


FORMULAS = {
    ring_decode: lambda p: (p - 1, p * (p - 1) * 2 * B * G * KEYS * WIDTH),
    tree_decode: lambda p: (2 * up(p), 2 * (p - 1) * B * H * (WIDTH + 1)),
    three_step_decode: lambda p: (6 * up(p), 2 * (p - 1) * B * H * (WIDTH + 2)),
}


@pytest.mark.parametrize("decode", FORMULAS)
@pytest.mark.parametrize("p", [1, 2, 3, 4, 7, 8, 13])
def test_is_attention_and_counts_as_derived(decode, p):
    q = torch.randn(B, H, 1, WIDTH, dtype=torch.float64)
    k, v = torch.randn(2, B, G, p * KEYS, WIDTH, dtype=torch.float64)
    outs, rounds, sent = decode(q, list(zip(k.chunk(p, -2), v.chunk(p, -2))))
    for out in outs:
        torch.testing.assert_close(out, mhlib.attention(q, k, v))
    assert (len(outs), rounds, sum(sent)) == (p, *FORMULAS[decode](p))


def test_all_reduce_leaves_the_same_everywhere():
    values = [(torch.tensor([float(i)]),) for i in range(6)]
    reduced, rounds, sent = all_reduce(values, lambda a, b: (a[0] + b[0],))
    assert [value.item() for (value,) in reduced] == [15.0] * 6 and rounds == 6 and sum(sent) == 10
