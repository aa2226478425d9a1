"""AdaPool: attention pooling that asks with the set itself, its mean or one of its tokens.

Differs from attention pooling in ``queries``, and for a focal token in ``merge``, which adds that token.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mhlib.functional.pooling import masked_mean
from mhlib.heads.call import Call
from mhlib.pooling.attentive.query_pool import AttentionPool
from mhlib.registry import Reduction, register

__all__ = ["AdaPool"]


def _no_query_is_mean():
    pool = AdaPool(8, 2)
    with torch.no_grad():
        pool.q_proj.weight.zero_()
        for proj in (pool.v_proj, pool.o_proj):
            proj.weight.copy_(torch.eye(8))
    return pool, lambda x: x.mean(1)


def _scale_is_a_scale():
    """Dividing by the root of the whole width is the same as making the query map smaller."""
    narrow, wide = AdaPool(8, 2), AdaPool(8, 2, scale="model")
    wide.load_state_dict(narrow.state_dict())
    with torch.no_grad():
        wide.q_proj.weight *= 2**0.5
    return wide, narrow


@register(
    "ada_pool",
    kind="pool",
    family="pool-attentive",
    stage="project",
    papers=(69,),
    properties=("invariant", "duplicable", "compiles"),
    example=lambda: AdaPool(8, 2),
    reductions=(
        Reduction("a query map of zeros, values and output unchanged: mean pooling", _no_query_is_mean),
        Reduction("scale='model' is scale='head' with a query map smaller by the root of the heads", _scale_is_a_scale),
    ),
    peers=("torch",),
)
class AdaPool(AttentionPool):
    r"""AdaPool: one query per set, a function of the set.

    .. math:: y = \mathrm{concat}_h\!\left(\mathrm{softmax}\!\left(s\,(q W_Q^h)(x W_K^h)^\top\right) x W_V^h\right) W_O
        \;[+\, q]

    with :math:`q = \frac1N \sum_n x_n`, or :math:`q = x_f` for a focal token f (then q is added to the output), or the mean
    over some tokens. Without biases it is odd, :math:`y(-X) = -y(X)`.

    Args:
        dim: width of the tokens and of the output.
        num_heads: number of heads.
        focus: None asks with the mean of all tokens, an int with the token of that index, a sequence of ints with the mean
            of these tokens. A masked token counts as absent, a focal one as zeros.
        scale: "head" for :math:`s = 1/\sqrt{d_h}`, "model" for :math:`s = 1/\sqrt d` as in the paper and its release.

    All else as in :class:`AttentionPool`. With a focal token the pool is not permutation invariant.
    Source: Brothers, "Robust noise attenuation via adaptive pooling of transformer outputs", arXiv 2506.09215 (row 69).
    """

    def __init__(
        self, dim: int, num_heads: int = 1, *, focus: int | Sequence[int] | None = None, scale: str = "head", **options: Any
    ):
        if scale not in ("head", "model"):
            raise ValueError(f"scale must be 'head' or 'model', got {scale!r}")
        if isinstance(focus, Sequence) and not focus:
            raise ValueError("focus names no token; use None for the mean of all")
        super().__init__(dim, num_heads, **options)
        self.focus = focus
        if scale == "model":
            self.scale = dim**-0.5

    def make_queries(self) -> None:
        """Nothing to learn: the set asks."""
        if self.num_queries != 1:
            raise ValueError(f"AdaPool asks one query per set, got num_queries={self.num_queries}")

    def queries(
        self, x: Float[Tensor, "batch tokens dim"], key_mask: Tensor | None, extra: dict[str, Any]
    ) -> Float[Tensor, "batch 1 dim"]:
        if self.focus is None:
            return masked_mean(x, key_mask)[:, None]
        chosen = [self.focus] if isinstance(self.focus, int) else list(self.focus)
        tokens = x.shape[1]
        if max(chosen) >= tokens or min(chosen) < -tokens:
            raise ValueError(f"focus is {self.focus}, but the sets have {tokens} tokens")
        return masked_mean(x[:, chosen], None if key_mask is None else key_mask[:, chosen])[:, None]

    def merge(self, heads: Tensor, call: Call) -> Tensor:
        y = super().merge(heads, call)
        return y + call.x if isinstance(self.focus, int) else y
