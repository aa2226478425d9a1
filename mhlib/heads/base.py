"""Multi-head attention in five stages, each a method that a mechanism may override.

project -> (update, expand, select) -> score -> normalize -> aggregate -> merge. As long as score, normalize and aggregate
stay as they are here, they run fused; every other mechanism of the library is told as a diff against this file.
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from mhlib.cost import stages
from mhlib.cost.model import StageCost
from mhlib.functional import attention as functional
from mhlib.functional.backends.reference import scores, weighted_sum
from mhlib.functional.normalizers import softmax
from mhlib.functional.positions import Rotary
from mhlib.heads.cache import Cache, KVCache
from mhlib.heads.call import Call
from mhlib.heads.checks import check_inputs, check_options, check_sizes
from mhlib.masks import Mask
from mhlib.registry import Reduction, register

__all__ = ["MultiHeadAttention"]

PositionBias = Callable[[Tensor, Tensor], Tensor]


def _is_scaled_dot_product_attention():
    layer = MultiHeadAttention(16, 1)
    with torch.no_grad():
        for proj in (layer.q_proj, layer.k_proj, layer.v_proj, layer.o_proj):
            proj.weight.copy_(torch.eye(16))
    return layer, lambda x, causal=False: nn.functional.scaled_dot_product_attention(x, x, x, is_causal=causal)


@register(
    "multi_head_attention",
    kind="head",
    family="core",
    stage="project, score, normalize, aggregate, merge",
    properties=("causal", "decodes", "equivariant", "compiles"),
    example=lambda: MultiHeadAttention(16, 4),
    reductions=(
        Reduction(
            "one head with identity projections: scaled dot-product attention",
            _is_scaled_dot_product_attention,
            ({}, {"causal": True}),
        ),
    ),
    peers=("torch", "transformers"),
)
class MultiHeadAttention(nn.Module):
    r"""Multi-head attention: H heads attend side by side, each in its own subspace of width d_h, and are merged.

    .. math::
        y = \mathrm{concat}_h\!\left(\mathrm{softmax}\!\left(\frac{(x W_Q^h)(c\,W_K^h)^\top}{\sqrt{d_h}} + b\right)
        c\,W_V^h\right) W_O

    with the tokens x as queries and the context c (x itself by default) as keys and values.

    Args:
        dim: width of the tokens, and of the output.
        num_heads: number of heads H.
        num_kv_heads: number of key and value heads (H by default); each serves a group of H / num_kv_heads heads.
        head_dim: width of a query and a key, dim / num_heads by default.
        v_head_dim: width of a value, head_dim by default.
        context_dim: width of the context's tokens, dim by default.
        bias: whether the four projections add a bias.
        dropout: probability with which an attention weight is dropped in training.
        rope: rotary positions for queries and keys (before they are cached).
        position_bias: ``(q_pos, k_pos) -> (1, heads, queries, keys)`` added to the logits: ALiBi, relative positions.
        backend: which implementation of :func:`mhlib.attention` the fused path uses.

    Weights start as those of ``torch.nn.Linear``: uniform in ±1/sqrt(fan-in).
    Source: Vaswani et al., "Attention is all you need", arXiv 1706.03762.
    """

    #: Names of further inputs that ``forward`` takes; a misspelt argument is so not silently ignored.
    inputs: tuple[str, ...] = ()
    #: What the class was registered with; it refuses to be causal or to decode unless that is among it.
    promises: frozenset[str] = frozenset()
    least_head_dim = 1

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        v_head_dim: int | None = None,
        context_dim: int | None = None,
        bias: bool = False,
        dropout: float = 0.0,
        rope: Rotary | None = None,
        position_bias: PositionBias | None = None,
        backend: str = "auto",
    ):
        super().__init__()
        check_sizes(dim, num_heads, num_kv_heads, head_dim, self.least_head_dim)
        self.dim, self.num_heads = dim, num_heads
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        self.head_dim = dim // num_heads if head_dim is None else head_dim
        self.v_head_dim = self.head_dim if v_head_dim is None else v_head_dim
        self.context_dim = dim if context_dim is None else context_dim
        self.dropout, self.rope, self.position_bias, self.backend = dropout, rope, position_bias, backend
        check_options(dropout, backend, rope, *self.turned())
        self.scale = max(self.head_dim, 1) ** -0.5
        self.make_projections(bias)

    def make_projections(self, bias: bool) -> None:
        """The learned maps of ``project`` and ``merge``."""
        self.q_proj = nn.Linear(self.dim, self.num_heads * self.head_dim, bias=bias)
        self.k_proj = nn.Linear(self.context_dim, self.num_kv_heads * self.head_dim, bias=bias)
        self.v_proj = nn.Linear(self.context_dim, self.num_kv_heads * self.v_head_dim, bias=bias)
        self.o_proj = nn.Linear(self.num_heads * self.v_head_dim, self.dim, bias=bias)

    def turned(self) -> tuple[int, tuple[int, int]]:
        """What ``rope`` turns: the width of a head, and how many heads of queries and of keys."""
        return self.head_dim, (self.num_heads, self.num_kv_heads)

    # The five stages ---------------------------------------------------------------------------------------------------

    def project(
        self, x: Float[Tensor, "batch queries dim"], context: Float[Tensor, "batch new context_dim"], call: Call
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Tokens to queries (batch, heads, queries, head_dim) and to exactly what a cache keeps: here keys and values."""
        q = split_heads(self.q_proj(x), self.num_heads)
        k = split_heads(self.k_proj(context), self.num_kv_heads)
        v = split_heads(self.v_proj(context), self.num_kv_heads)
        if self.rope is not None:
            q, k = self.rope.rotate(q, call.q_pos), self.rope.rotate(k, call.k_pos)
        return q, (k, v)

    def score(self, q: Tensor, k: Tensor, call: Call) -> Float[Tensor, "batch heads queries keys"]:
        """Logits of every query with every key."""
        logits = scores(q, k, self.scale)
        bias = self.bias(q, k, call)
        return logits if bias is None else logits + bias.to(logits.dtype)

    def normalize(
        self, logits: Float[Tensor, "batch heads queries keys"], mask: Bool[Tensor, "..."] | None, call: Call
    ) -> Float[Tensor, "batch heads queries keys"]:
        """Logits to weights; ``mask`` has causality in it."""
        return softmax(logits, mask)

    def aggregate(
        self, weights: Float[Tensor, "batch heads queries keys"], v: Tensor, call: Call
    ) -> Float[Tensor, "batch heads queries v_head_dim"]:
        """Weighted sums of the values."""
        return weighted_sum(weights, v)

    def merge(
        self, heads: Float[Tensor, "batch heads queries v_head_dim"], call: Call
    ) -> Float[Tensor, "batch queries dim"]:
        """Heads side by side, through the output projection."""
        return self.o_proj(heads.transpose(1, 2).flatten(2))

    # Hooks between project and score -----------------------------------------------------------------------------------

    def update(self, kv: tuple[Tensor, ...], call: Call) -> tuple[Tensor, ...]:
        """Put the new tokens into the cache, if there is one, and return all."""
        return kv if call.cache is None else call.cache.append(kv)

    def expand(self, kv: tuple[Tensor, ...], call: Call) -> tuple[Tensor, Tensor]:
        """What the cache keeps to keys (batch, kv_heads, keys, head_dim) and values."""
        return kv

    def select(self, q: Tensor, k: Tensor, call: Call) -> Tensor | None:
        """Which query may attend to which key, causality apart; content-based sparsity goes here."""
        return call.mask

    def bias(self, q: Tensor, k: Tensor, call: Call) -> Tensor | None:
        """Terms added to the logits that leave the fused path open."""
        if self.position_bias is None:
            return None
        return self.position_bias(call.q_pos, torch.arange(call.keys, device=q.device))

    # The middle --------------------------------------------------------------------------------------------------------

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, call: Call) -> Tensor:
        """score, normalize and aggregate: fused where that is the same, one after the other otherwise."""
        if self._fused_is_current and not call.return_weights:
            return self.fused(q, k, v, mask, call)
        weights = self.normalize(self.score(q, k, call), call.allowed(mask), call)
        if call.return_weights:
            call.aux["weights"] = weights
        if self.training and self.dropout:
            weights = torch.dropout(weights, self.dropout, True)
        return self.aggregate(weights, v, call)

    def fused(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, call: Call) -> Tensor:
        """The three stages as one operation. A subclass that overrides a stage may give its own fast form here."""
        return functional.attention(
            q, k, v, mask=mask, bias=self.bias(q, k, call), scale=self.scale, causal=call.causal,
            dropout=self.dropout if self.training else 0.0, backend=self.backend,
        )  # fmt: skip

    _fused_is_current = True

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """``fused`` speaks for a class only if no stage was overridden after it."""
        super().__init_subclass__(**kwargs)
        depth = {name: next(i for i, c in enumerate(cls.__mro__) if name in vars(c)) for name in (*FUSED_STAGES, "fused")}
        cls._fused_is_current = depth["fused"] <= min(depth[name] for name in FUSED_STAGES)

    # ------------------------------------------------------------------------------------------------------------------

    def forward(
        self,
        x: Float[Tensor, "batch queries dim"],
        context: Float[Tensor, "batch new context_dim"] | None = None,
        *,
        key_mask: Bool[Tensor, "batch keys"] | None = None,
        mask: Bool[Tensor, "_ _ _ keys"] | Mask | None = None,
        causal: bool = False,
        cache: Cache | None = None,
        grid: tuple[int, int] | None = None,
        return_weights: bool = False,
        return_aux: bool = False,
        **extra: Any,
    ) -> Tensor | tuple:
        """Attend from ``x`` to ``context`` (``x`` itself by default).

        Args:
            key_mask: True = a real token; for all keys, those in the cache first.
            mask: True = this query may attend to this key, (batch or 1, heads or 1, queries or 1, keys); a rule of
                :mod:`mhlib.masks` is written out as such a table.
            causal: no query sees a key after it; the last query stands at the last key.
            cache: from :meth:`init_cache`; the tokens are appended to it and all that it holds is attended to.
            grid: (height, width) when the tokens are a raster, for the mechanisms that look at it.
            return_weights: also return the attention weights (batch, heads, queries, keys).
            return_aux: also return a dict of what the mechanism reports: losses, scores, loads.

        Returns:
            y (batch, queries, dim), or (y, weights), (y, aux), (y, weights, aux) as asked for.
        """
        past = 0 if cache is None else cache.length
        context = x if context is None else context
        keys = past + context.shape[1]
        if isinstance(mask, Mask):
            mask = mask.dense(x.shape[1], keys, batch=x.shape[0], heads=self.num_heads, device=x.device)
        check_inputs(self, x, context, keys, key_mask, mask, causal, extra)
        if key_mask is not None:
            mask = key_mask[:, None, None] if mask is None else mask & key_mask[:, None, None]
        call = Call(
            x, context, torch.arange(keys - x.shape[1], keys, device=x.device), torch.arange(past, keys, device=x.device),
            keys, key_mask, mask, causal, return_weights, grid, cache, extra,
        )  # fmt: skip
        try:
            y = self._stages(call)
        except BaseException:
            if cache is not None:
                cache.length = past  # as if it had not been called
            raise
        weights = (call.aux.pop("weights", None),) if return_weights else ()
        return (y, *weights, *((call.aux,) if return_aux else ())) if return_weights or return_aux else y

    def _stages(self, call: Call) -> Tensor:
        q, kv = self.project(call.x, call.context, call)
        # Autocast gives a projection another dtype than a norm or a learned query; attention goes by the query's.
        k, v = (t.to(q.dtype) for t in self.expand(self.update(kv, call), call))
        return self.merge(self.attend(q, k, v, self.select(q, k, call), call), call)

    def cache_shapes(self) -> list[tuple[int, int]]:
        """(heads, width) of each tensor that a cache keeps per token."""
        return [(self.num_kv_heads, self.head_dim), (self.num_kv_heads, self.v_head_dim)]

    def init_cache(self, batch: int, max_len: int, *, dtype: torch.dtype | None = None) -> Cache:
        """An empty cache for decoding up to ``max_len`` tokens of ``batch`` sequences.

        Its dtype is that of the weights unless given. What is read from it is converted to the dtype of the new tokens, so a
        narrower cache serves, and so does any under autocast.
        """
        if "decodes" not in self.promises:
            raise ValueError(f"{type(self).__name__} cannot decode step by step: its output for a token needs later tokens")
        like = next(self.parameters())
        return KVCache(batch, max_len, self.cache_shapes(), dtype=dtype or like.dtype, device=like.device)

    def stage_costs(self, batch: int, queries: int, keys: int, new_keys: int) -> dict[str, StageCost]:
        """What each stage costs when ``new_keys`` of the keys are projected now; see :mod:`mhlib.cost`."""
        return stages.multi_head_attention(self, batch, queries, keys, new_keys)

    def extra_repr(self) -> str:
        kv = "" if self.num_kv_heads == self.num_heads else f", num_kv_heads={self.num_kv_heads}"
        return f"dim={self.dim}, num_heads={self.num_heads}{kv}, head_dim={self.head_dim}"


FUSED_STAGES = ("score", "normalize", "aggregate")


def split_heads(x: Float[Tensor, "batch tokens width"], heads: int) -> Float[Tensor, "batch heads tokens _"]:
    """Cut the last axis into heads and put them before the tokens."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)
