"""One query per class: every class looks for itself, and one shared vector scores what each has found (row 284).

Differs from attention pooling in that there are as many queries as classes, and in ``merge``: a number for each.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mhlib.heads.call import Call
from mhlib.pooling.attentive.query_pool import AttentionPool
from mhlib.registry import Reduction, register

__all__ = ["ClassQueryPool"]


def _is_attention_pool_scored():
    pool, plain = ClassQueryPool(8, 4, 2), AttentionPool(8, 2, num_queries=4)
    plain.load_state_dict(pool.state_dict(), strict=False)
    return pool, lambda x: pool.presence(plain.to(x.dtype)(x))[..., 0]


def _equal_queries_say_nothing():
    pool = ClassQueryPool(8, 4, 2)
    with torch.no_grad():
        pool.query.zero_()
    return pool, lambda x: pool.presence(pool.o_proj(pool.v_proj(x).mean(1))).expand(-1, 4)


@register(
    "class_query_pool",
    kind="pool",
    family="pool-attentive",
    papers=(284,),
    properties=("invariant", "duplicable", "compiles"),
    example=lambda: ClassQueryPool(8, 4, 2),
    reductions=(
        Reduction("the shared vector applied to attention pooling with a query per class", _is_attention_pool_scored),
        Reduction("queries of zeros: all logits are the score of the mean", _equal_queries_say_nothing),
    ),
    peers=("torch",),
)
class ClassQueryPool(AttentionPool):
    r"""Class queries: each class attends to the tokens with a query of its own, and one shared vector scores the result (row 284).

    .. math:: y_c = w \cdot z_c + b, \qquad z_c = \mathrm{attention}(u_c, x)
        \quad\Longrightarrow\quad y_c = b + \sum_h \sum_n A^{(h)}_{cn} s^{(h)}_n, \quad s^{(h)}_n = w^\top W_O^{(h)\top} W_V^{(h)\top} x_n

    The score s of a token is the same for all classes: classes differ only in where they look. ``return_aux`` gives the
    scores as "scores" (batch, heads, tokens) and what each class found as "found" (batch, classes, dim).

    Args:
        dim: width of the tokens.
        num_classes: number of classes, at least 2.
        num_heads: number of heads.

    All else as in :class:`mhlib.pooling.AttentionPool`. The output is (batch, classes): logits.
    Source: Paul et al., "A simple interpretable transformer for fine-grained image classification and analysis", arXiv
    2311.04157 (row 284): its last cross-attention alone; :class:`mhlib.pooling.ClassQueryDecoder` is the whole decoder.
    """

    def __init__(self, dim: int, num_classes: int, num_heads: int = 1, **options: Any):
        if num_classes < 2:
            raise ValueError(f"num_classes must be at least 2, got {num_classes}")
        super().__init__(dim, num_heads, num_queries=num_classes, **options)
        self.presence = nn.Linear(dim, 1)

    def merge(self, heads: Tensor, call: Call) -> Float[Tensor, "batch classes"]:
        found = super().merge(heads, call)
        call.aux["found"], call.aux["scores"] = found, self.scores(call.context)
        return self.presence(found)[..., 0]

    def scores(self, x: Float[Tensor, "batch tokens dim"]) -> Float[Tensor, "batch heads tokens"]:
        """What each token would add to the logit of any class that gave it, in that head, all of its weight."""
        read = (self.presence.weight @ self.o_proj.weight).view(self.num_heads, 1, self.v_head_dim)
        values = self.v_proj(x).unflatten(-1, (self.num_kv_heads, self.v_head_dim))
        values = values.repeat_interleave(self.num_heads // self.num_kv_heads, 2)
        return (values.permute(0, 2, 1, 3) * read).sum(-1)
