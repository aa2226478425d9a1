"""Attention pooling with learned queries: multi-head attention whose queries are parameters and whose keys are the set.

Differs from multi-head attention in where queries come from; all five stages are those of the heads.
"""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from mhlib.functional.kernel_backend import takes_kernel
from mhlib.heads.base import MultiHeadAttention
from mhlib.pooling.base import check_pool_inputs
from mhlib.registry import Reduction, register

__all__ = ["AttentionPool"]


def _no_query_is_mean():
    pool = AttentionPool(8, 2)
    with torch.no_grad():
        pool.query.zero_()
    return pool, lambda x: pool.o_proj(pool.v_proj(x.to(pool.query)).mean(1))


@register(
    "attention_pool",
    kind="pool",
    family="pool-attentive",
    properties=("invariant", "duplicable", "compiles"),
    example=lambda: AttentionPool(8, 2, num_queries=3),
    reductions=(Reduction("a query of zeros: mean pooling of the values", _no_query_is_mean),),
    peers=("torch",),
)
class AttentionPool(MultiHeadAttention):
    r"""Attention pooling: K learned queries attend to the tokens of a set.

    .. math:: y_k = \mathrm{concat}_h\!\left(\mathrm{softmax}\!\left(
        \frac{(u_k W_Q^h)(x W_K^h)^\top}{\sqrt{d_h}}\right) x W_V^h\right) W_O, \qquad k = 1..K

    with learned :math:`u_k` (normal, deviation 0.02). Subclasses override ``queries`` to take them from the set or from a
    context, or any stage of :class:`mhlib.heads.MultiHeadAttention`.

    Args:
        dim: width of the tokens and of the output.
        num_heads: number of heads.
        num_queries: number K of queries; with one, the output is (batch, dim), else (batch, K, dim).

    All else as in :class:`mhlib.heads.MultiHeadAttention`. Weights are (batch, heads, queries, tokens).
    Source: Lee et al., "Set transformer", arXiv 1810.00825 (pooling by multi-head attention).
    """

    def __init__(self, dim: int, num_heads: int = 1, *, num_queries: int = 1, **options: Any):
        super().__init__(dim, num_heads, **options)
        if num_queries < 1:
            raise ValueError(f"num_queries must be at least 1, got {num_queries}")
        self.num_queries = num_queries
        self.make_queries()

    def make_queries(self) -> None:
        """The parameters that queries come from."""
        self.query = nn.Parameter(0.02 * torch.randn(self.num_queries, self.dim))

    def queries(
        self, x: Float[Tensor, "batch tokens dim"], key_mask: Tensor | None, extra: dict[str, Any]
    ) -> Float[Tensor, "batch queries dim"]:
        """What asks: here the same learned vectors for every set."""
        return self.query.expand(x.shape[0], -1, -1)

    def fused(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, call: Any) -> Tensor:
        """On CUDA by :func:`mhlib.kernels.attention_pool`, which reads keys and values once for all queries."""
        dropout = self.dropout if self.training else 0.0
        over_keys = mask is None or mask.shape[1:3] == (1, 1)
        if self.backend == "auto" and takes_kernel("auto", k) and over_keys and not dropout and self.bias(q, k, call) is None:
            from mhlib.kernels.attention_pool import attention_pool, supports

            if supports(q, k, v):
                key_mask = None if mask is None else mask[:, 0, 0].expand(k.shape[0], k.shape[2])
                return attention_pool(q, k, v, scale=self.scale, key_mask=key_mask)
        return super().fused(q, k, v, mask, call)

    def forward(
        self,
        x: Float[Tensor, "batch tokens dim"],
        key_mask: Bool[Tensor, "batch tokens"] | None = None,
        *,
        return_weights: bool = False,
        return_aux: bool = False,
        **extra: Any,
    ) -> Tensor | tuple:
        """Pool each set; as in :class:`mhlib.pooling.Pool`."""
        check_pool_inputs(self, x, key_mask, extra)
        asked = self.queries(x, key_mask, extra)
        y, *rest = super().forward(
            asked, x, key_mask=key_mask, return_weights=return_weights, return_aux=True, **extra
        )
        y = y[:, 0] if y.shape[1] == 1 else y
        if key_mask is not None:
            y = torch.where(key_mask.any(1).view(-1, *[1] * (y.ndim - 1)), y, 0.0)
        rest = rest if return_aux else rest[:-1]
        return (y, *rest) if rest else y
