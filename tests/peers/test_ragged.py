"""Padding-free attention against PyTorch: nested tensors, and the encoder layer on a padded batch."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mhlib.functional import pack, ragged_attention
from mhlib.heads import PackedEncoderLayer

LENGTHS = [7, 2, 5]
AT = torch.tensor([0, *LENGTHS]).cumsum(0)


@pytest.mark.peer("ragged_attention", "torch")
def test_nested_tensors():
    torch.manual_seed(0)
    rows = [torch.randn(4, sum(LENGTHS), 8, dtype=torch.float64) for _ in range(3)]
    nested = [torch.nested.nested_tensor_from_jagged(x.transpose(0, 1).contiguous(), AT).transpose(1, 2) for x in rows]
    want = F.scaled_dot_product_attention(*nested).transpose(1, 2).values()
    torch.testing.assert_close(ragged_attention(*rows, AT).transpose(0, 1), want)


@pytest.mark.peer("ragged_attention", "torch")
def test_encoder_layers_on_a_padded_batch():
    torch.manual_seed(1)
    theirs = [nn.TransformerEncoderLayer(16, 4, 24, 0.0, "gelu", batch_first=True, dtype=torch.float64) for _ in range(2)]
    ours = [PackedEncoderLayer.from_torch(layer) for layer in theirs]
    x, key_mask = torch.randn(3, 7, 16, dtype=torch.float64), torch.arange(7) < torch.tensor(LENGTHS)[:, None]
    packed, want = pack(x, key_mask), x
    rows = packed.rows
    for a, b in zip(ours, theirs):
        rows, want = a(rows, packed.cu_seqlens), b(want, src_key_padding_mask=~key_mask)
    torch.testing.assert_close(packed.unpack(rows), torch.where(key_mask[..., None], want, 0.0))
