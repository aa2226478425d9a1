"""What to compute in when numbers have 16 bits: sums over thousands of tokens, and their number, do not fit into them."""

import torch
from torch import Tensor

__all__ = ["accumulator", "widened"]


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """The dtype to count and sum numbers of ``dtype`` in: float32 for half precision, itself otherwise."""
    return torch.promote_types(dtype, torch.float32)


def widened(x: Tensor) -> Tensor:
    """``x`` in the dtype that its sums need."""
    return x.to(accumulator(x.dtype))
