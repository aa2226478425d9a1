"""Multi-query attention: all heads share one key head and one value head.

Differs from grouped-query attention in having one group.
"""

from mhlib.heads.base import MultiHeadAttention
from mhlib.heads.sharing.grouped_query import GroupedQueryAttention
from mhlib.registry import Reduction, register

__all__ = ["MultiQueryAttention"]


def _is_grouped():
    mqa = MultiQueryAttention(16, 4)
    gqa = GroupedQueryAttention(16, 4, num_kv_heads=1)
    gqa.load_state_dict(mqa.state_dict())
    return mqa, gqa


def _is_multi_head_with_tiled_heads():
    mqa = MultiQueryAttention(16, 4)
    mha = MultiHeadAttention(16, 4)
    state = mqa.state_dict()
    mha.load_state_dict(state | {name: state[name].repeat(4, 1) for name in ("k_proj.weight", "v_proj.weight")})
    return mqa, mha


def _is_single_head():
    mqa = MultiQueryAttention(16, 1)
    mha = MultiHeadAttention(16, 1)
    mha.load_state_dict(mqa.state_dict())
    return mqa, mha


@register(
    "multi_query_attention",
    kind="head",
    family="kv-sharing",
    stage="project",
    papers=(33,),
    properties=("causal", "decodes", "equivariant", "compiles"),
    example=lambda: MultiQueryAttention(16, 4),
    reductions=(
        Reduction("grouped-query attention with one group", _is_grouped, ({}, {"causal": True})),
        Reduction("multi-head attention whose key heads, and value heads, are all equal", _is_multi_head_with_tiled_heads),
        Reduction("num_heads = 1: single-head attention", _is_single_head),
    ),
    peers=("torch", "transformers"),
)
class MultiQueryAttention(GroupedQueryAttention):
    r"""Multi-query attention: H query heads read one key head and one value head.

    .. math:: o_h = \mathrm{softmax}(q_h k^\top / \sqrt{d_h})\, v

    The cache is H times smaller than that of multi-head attention. Arguments as in
    :class:`mhlib.heads.MultiHeadAttention`.
    Source: Shazeer, "Fast transformer decoding: one write-head is all you need", arXiv 1911.02150 (row 33).
    """

    def __init__(self, dim: int, num_heads: int, *, num_kv_heads: int = 1, **options):
        if num_kv_heads != 1:
            raise ValueError(f"multi-query attention has one key head, got num_kv_heads={num_kv_heads}; use GroupedQueryAttention")
        super().__init__(dim, num_heads, num_kv_heads=1, **options)

    @classmethod
    def from_multi_head(
        cls, mha: MultiHeadAttention, num_kv_heads: int = 1, *, pooling: str = "mean"
    ) -> "MultiQueryAttention":
        """Convert a trained layer: all its key and value heads are pooled into one, as in grouped-query attention."""
        return super().from_multi_head(mha, num_kv_heads, pooling=pooling)
