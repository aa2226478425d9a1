"""Grouped-query attention: the heads of a group share one key head and one value head.

Differs from multi-head attention in the sizes of two projections; adds the conversion of a trained multi-head layer.
"""

import copy

import torch
from torch import Tensor

from mhlib.heads.base import MultiHeadAttention
from mhlib.registry import Reduction, register

__all__ = ["GroupedQueryAttention"]

POOLINGS = {
    "mean": lambda heads: heads.mean(1),
    "first": lambda heads: heads[:, 0],
    # As far from what was learned as it gets, at the scale of the weights that it replaces.
    "random": lambda heads: torch.randn_like(heads[:, 0]) * heads.std(),
}


STAGES = (
    "make_projections", "project", "update", "expand", "select", "bias", "score", "normalize", "aggregate", "merge", "attend",
    "fused", "forward",
)  # fmt: skip


def _is_multi_head():
    mha = MultiHeadAttention(16, 4)
    gqa = GroupedQueryAttention(16, 4, num_kv_heads=4)
    gqa.load_state_dict(mha.state_dict())
    return gqa, mha


def _is_multi_head_with_repeated_heads():
    gqa = GroupedQueryAttention(16, 4, num_kv_heads=2)
    mha = MultiHeadAttention(16, 4)
    state = gqa.state_dict()
    for name in ("k_proj.weight", "v_proj.weight"):
        state[name] = state[name].unflatten(0, (2, -1)).repeat_interleave(2, 0).flatten(0, 1)
    mha.load_state_dict(state)
    return gqa, mha


@register(
    "grouped_query_attention",
    kind="head",
    family="kv-sharing",
    stage="project",
    papers=(194,),
    properties=("causal", "decodes", "equivariant", "compiles"),
    example=lambda: GroupedQueryAttention(16, 4, num_kv_heads=2),
    reductions=(
        Reduction("num_kv_heads = num_heads: multi-head attention", _is_multi_head, ({}, {"causal": True})),
        Reduction(
            "any num_kv_heads: multi-head attention whose key and value heads are equal within a group",
            _is_multi_head_with_repeated_heads,
            ({}, {"causal": True}),
        ),
    ),
    peers=("transformers", "torch"),
)
class GroupedQueryAttention(MultiHeadAttention):
    r"""Grouped-query attention: G key and value heads serve H query heads, H / G each.

    .. math:: o_h = \mathrm{softmax}(q_h k_{g(h)}^\top / \sqrt{d_h})\, v_{g(h)}, \qquad g(h) = \lfloor h\,G / H \rfloor

    The cache shrinks by H / G; so does what a decoding step reads. G = H is multi-head, G = 1 multi-query attention.

    Args:
        num_kv_heads: number of key and value heads G; must divide num_heads.

    All else as in :class:`mhlib.heads.MultiHeadAttention`.
    Source: Ainslie et al., "GQA: Training generalized multi-query transformer models from multi-head checkpoints",
    arXiv 2305.13245 (row 194).
    """

    def __init__(self, dim: int, num_heads: int, *, num_kv_heads: int, **options):
        super().__init__(dim, num_heads, num_kv_heads=num_kv_heads, **options)

    @classmethod
    def from_multi_head(
        cls, mha: MultiHeadAttention, num_kv_heads: int, *, pooling: str = "mean"
    ) -> "GroupedQueryAttention":
        """Convert a trained layer: the key and value heads of a group are pooled into one.

        Args:
            mha: multi-head attention, or grouped attention with more key heads than asked for. A layer with a mechanism of
                its own is refused: the copy would not have it.
            num_kv_heads: key and value heads to keep; must divide those of ``mha``.
            pooling: "mean" of the group's projection matrices (the paper's choice), "first" head, or "random".

        The result is a copy; train it a little (the paper: 5 % of the original steps) and it comes close to ``mha``.
        """
        if pooling not in POOLINGS:
            raise ValueError(f"pooling must be one of {', '.join(POOLINGS)}, got {pooling!r}")
        check_convertible(mha)
        if num_kv_heads < 1 or mha.num_kv_heads % num_kv_heads:
            raise ValueError(
                f"num_kv_heads must divide the layer's {mha.num_kv_heads} key heads, got num_kv_heads={num_kv_heads}"
            )
        gqa = cls(**sizes(mha), num_kv_heads=num_kv_heads, **options(mha))
        state = {name: value.clone() for name, value in mha.state_dict().items()}
        for name in state:
            if name.startswith(("k_proj.", "v_proj.")):
                state[name] = pool_heads(state[name], mha.num_kv_heads, num_kv_heads, pooling)
        gqa = gqa.to(mha.q_proj.weight)
        gqa.load_state_dict(state)
        return gqa.train(mha.training)


def pool_heads(weight: Tensor, heads: int, groups: int, pooling: str) -> Tensor:
    """Pool the rows of a projection (heads * width, ...) to (groups * width, ...), heads of a group being neighbours."""
    grouped = weight.unflatten(0, (groups, heads // groups, -1))
    return POOLINGS[pooling](grouped).flatten(0, 1)


def check_convertible(layer: MultiHeadAttention) -> None:
    """A conversion carries over the projections of plain multi-head or grouped attention, and nothing else."""
    plain = vars(MultiHeadAttention)
    own = [name for name in STAGES if getattr(type(layer), name, None) is not plain[name]]
    if own:
        raise ValueError(
            f"expected plain multi-head or grouped attention, got {type(layer).__name__}, "
            f"whose own {', '.join(own)} would be lost"
        )


def sizes(layer: MultiHeadAttention) -> dict[str, int]:
    """The sizes with which a layer was built."""
    return {name: getattr(layer, name) for name in ("dim", "num_heads", "head_dim", "v_head_dim", "context_dim")}


def options(layer: MultiHeadAttention) -> dict:
    """The other choices with which a layer was built; a learned position bias is copied."""
    return {
        "bias": layer.o_proj.bias is not None,
        "dropout": layer.dropout,
        "rope": layer.rope,
        "position_bias": copy.deepcopy(layer.position_bias),
        "backend": layer.backend,
    }
