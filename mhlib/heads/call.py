"""One call of an attention layer: what came in, and what the stages tell each other."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mhlib.heads.cache import Cache

__all__ = ["Call"]


@dataclass
class Call:
    """Made by ``forward`` and handed to every stage, so that nothing has to be remembered on the module."""

    x: Tensor  # (batch, queries, dim)
    context: Tensor  # (batch, new keys, context_dim); x itself for self-attention
    q_pos: Tensor  # (queries,) positions, counted in keys: the last query stands at the last key
    k_pos: Tensor  # (new keys,)
    keys: int  # how many keys there are, those in the cache included
    key_mask: Tensor | None = None  # (batch, keys), True = a real token
    mask: Tensor | None = None  # (batch or 1, heads or 1, queries or 1, keys), key_mask included; not causality
    causal: bool = False
    return_weights: bool = False
    grid: tuple[int, int] | None = None  # height and width, when the tokens are a raster
    cache: Cache | None = None
    extra: dict[str, Any] = field(default_factory=dict)  # further inputs, and notes from stage to stage
    aux: dict[str, Any] = field(default_factory=dict)  # losses, scores, loads: what return_aux returns

    @property
    def self_attention(self) -> bool:
        return self.context is self.x

    def allowed(self, mask: Tensor | None) -> Tensor | None:
        """``mask`` with causality in it, as one boolean table; None when every query sees every key."""
        if not self.causal:
            return mask
        causal = self.q_pos[:, None] >= torch.arange(self.keys, device=self.q_pos.device)
        return causal[None, None] if mask is None else mask & causal
