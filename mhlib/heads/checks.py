"""Errors for layers that were given the wrong thing: what was expected, what came."""

from typing import Any

import torch
from torch import Tensor

from mhlib._arguments import check_further
from mhlib.functional.attention import BACKENDS
from mhlib.functional.positions import Rotary


def check_sizes(dim: int, num_heads: int, num_kv_heads: int | None, head_dim: int | None, least: int = 1) -> None:
    """Sizes that a layer cannot be built with."""
    if dim < 1 or num_heads < 1:
        raise ValueError(f"dim and num_heads must be positive, got dim={dim}, num_heads={num_heads}")
    if head_dim is None and dim % num_heads:
        raise ValueError(f"num_heads must divide dim, got dim={dim}, num_heads={num_heads}; or give head_dim")
    if head_dim is not None and head_dim < least:
        raise ValueError(f"head_dim must be at least {least}, got {head_dim}")
    if num_kv_heads is not None and (num_kv_heads < 1 or num_heads % num_kv_heads):
        raise ValueError(f"num_kv_heads must divide num_heads, got num_kv_heads={num_kv_heads}, num_heads={num_heads}")


def check_options(dropout: float, backend: str, rope: Rotary | None, width: int, heads: tuple[int, ...]) -> None:
    """Choices that a layer cannot be built with.

    Args:
        width: of what ``rope`` turns in a head.
        heads: how many heads it turns, of queries and of keys.
    """
    if not 0.0 <= dropout < 1.0:
        raise ValueError(f"dropout is a probability in [0, 1), got {dropout}")
    if backend != "auto" and backend not in BACKENDS:
        raise ValueError(f"backend must be 'auto' or one of {', '.join(BACKENDS)}, got {backend!r}")
    if rope is None:
        return
    if not isinstance(rope, Rotary):
        raise TypeError(f"rope must be a mhlib.functional.Rotary or None, got {rope!r}")
    if rope.dim > width:
        raise ValueError(f"rope turns {rope.dim} numbers of a head, which has {width}: build Rotary(dim) with at most that")
    rows = len(rope.frequencies) if rope.frequencies and isinstance(rope.frequencies[0], tuple) else 1
    if any(n % rows for n in heads):
        raise ValueError(
            f"rope has frequencies for {rows} heads, which must divide the {heads[0]} query heads and the {heads[1]} key heads"
        )


def check_inputs(
    layer: Any,
    x: Tensor,
    context: Tensor,
    keys: int,
    key_mask: Tensor | None,
    mask: Tensor | None,
    causal: bool,
    extra: dict[str, Any],
) -> None:
    """Inputs that a layer cannot attend with."""
    name = type(layer).__name__
    if causal and "causal" not in layer.promises:
        raise ValueError(f"{name} cannot be causal: its output for a token depends on later tokens")
    for argument, tensor, width in (("x", x, layer.dim), ("context", context, layer.context_dim)):
        if tensor.ndim != 3 or tensor.shape[-1] != width:
            raise ValueError(f"{name} wants {argument} of shape (batch, tokens, {width}), got {tuple(tensor.shape)}")
    if context.shape[0] != x.shape[0]:
        raise ValueError(f"x and context must have the same batch size, got {tuple(x.shape)} and {tuple(context.shape)}")
    if key_mask is not None:
        _boolean("key_mask", key_mask)
        if key_mask.shape != (x.shape[0], keys):
            raise ValueError(f"key_mask must be (batch, keys) = {(x.shape[0], keys)}, got {tuple(key_mask.shape)}")
    if mask is not None:
        _boolean("mask", mask)
        full = (x.shape[0], layer.num_heads, x.shape[1], keys)
        if mask.ndim != 4 or any(size not in (1, want) for size, want in zip(mask.shape, full)):
            padding = "; a mask of padding, (batch, keys), goes into key_mask" if mask.ndim == 2 else ""
            raise ValueError(f"mask must broadcast to (batch, heads, queries, keys) = {full}, got {tuple(mask.shape)}{padding}")
    check_further(name, extra, layer.inputs)


def _boolean(name: str, mask: Tensor) -> None:
    if not isinstance(mask, Tensor):
        raise ValueError(f"{name} must be a boolean tensor (True = may attend), got {type(mask).__name__}")
    if mask.dtype != torch.bool:
        raise ValueError(f"{name} must be boolean (True = may attend), got {mask.dtype}")
