"""Attention over a part of the keys, and how parts merge: the algebra behind chunked, split and distributed attention.

A part is its output and the log-sum-exp of its logits. Merging is associative and commutative with a neutral element, so
any tree over any split of the keys gives the same attention (rows 177 and 184).
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from mhlib.functional.attention import attention
from mhlib.functional.backends import chunked
from mhlib.functional.backends.reference import scores
from mhlib.functional.normalizers import softmax
from mhlib.functional.request import Request
from mhlib.registry import Example, Reduction, register

__all__ = ["Partial", "attend_partial", "attention_energy", "chunked_attention", "merge_partials", "tree_attention"]


class Partial(NamedTuple):
    """Attention over some keys: ``out`` (batch, heads, queries, value_dim) and ``lse`` (batch, heads, queries)."""

    out: Tensor
    lse: Tensor


def attend_partial(
    q: Float[Tensor, "batch heads queries head_dim"],
    k: Float[Tensor, "batch kv_heads keys head_dim"],
    v: Float[Tensor, "batch kv_heads keys value_dim"],
    *,
    scale: float | None = None,
    mask: Tensor | None = None,
) -> Partial:
    r"""Attention over these keys, with :math:`\mathrm{lse}_i = \log \sum_j e^{z_{ij}}`; no keys: zeros and -inf."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    return Partial(*chunked.run_with_lse(Request(q, k, v, mask, None, scale, False, (None, None), softmax, 0.0, False)))


def merge_partials(a: Partial, b: Partial) -> Partial:
    r"""Attention over the keys of both:

    .. math:: \ell = \log(e^{\ell_a} + e^{\ell_b}), \qquad o = e^{\ell_a - \ell} o_a + e^{\ell_b - \ell} o_b
    """
    lse = torch.logaddexp(a.lse, b.lse)
    # Where neither part has a key, both weights are zero instead of exp(-inf + inf).
    safe = torch.where(lse == float("-inf"), 0.0, lse)
    weights = [(part.lse - safe).exp()[..., None] for part in (a, b)]
    return Partial(weights[0] * a.out + weights[1] * b.out, lse)


def _problem(keys: int = 11) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(torch.initial_seed())
    make = lambda *shape: torch.randn(*shape, dtype=torch.float64, generator=generator)  # noqa: E731
    return {"q": make(2, 4, 3, 8), "k": make(2, 2, keys, 8), "v": make(2, 2, keys, 6)}


def _plain(q: Tensor, k: Tensor, v: Tensor, **_) -> Tensor:
    return attention(q, k, v, backend="reference")


def _any_tree_is_attention():
    problem = _problem()
    return lambda: tree_attention(**problem, shards=5), lambda: _plain(**problem)


def _energy_gradient_is_attention():
    problem = _problem()

    def gradient() -> Tensor:
        source = torch.zeros(2, 4, 3, 6, dtype=torch.float64, requires_grad=True)
        return torch.autograd.grad(attention_energy(**problem, source=source).sum(), source)[0]

    return gradient, lambda: _plain(**problem)


@register(
    "tree_attention",
    kind="system",
    family="core",
    papers=(184,),
    example=lambda: Example(tree_attention, _problem() | {"shards": 4}),
    reductions=(
        Reduction("any split of the keys and any tree: attention over all keys", _any_tree_is_attention),
        Reduction("the gradient of the energy at source zero: attention", _energy_gradient_is_attention),
    ),
    peers=("torch",),
)
def tree_attention(
    q: Float[Tensor, "batch heads queries head_dim"],
    k: Float[Tensor, "batch kv_heads keys head_dim"],
    v: Float[Tensor, "batch kv_heads keys value_dim"],
    *,
    shards: int,
    scale: float | None = None,
    merge: Callable[[Partial, Partial], Partial] = merge_partials,
) -> Float[Tensor, "batch heads queries value_dim"]:
    """Tree attention in one process: the keys are dealt to ``shards`` devices, whose parts merge in a binary tree.

    Each shard attends to its own keys; then neighbours merge in ceil(log2(shards)) rounds, where a ring takes
    shards - 1. ``merge`` is called once for each merge, so a caller can count them.
    Source: Shyam et al., "Tree attention", arXiv 2408.04093 (row 184).
    """
    if shards < 1:
        raise ValueError(f"shards must be at least 1, got {shards}")
    pieces = zip(k.tensor_split(shards, -2), v.tensor_split(shards, -2))
    parts: Sequence[Partial] = [attend_partial(q, *piece, scale=scale) for piece in pieces]
    while len(parts) > 1:
        paired = [merge(a, b) for a, b in zip(parts[::2], parts[1::2])]
        parts = paired + list(parts[len(parts) - len(parts) % 2 :])
    return parts[0].out


def attention_energy(
    q: Float[Tensor, "batch heads queries head_dim"],
    k: Float[Tensor, "batch kv_heads keys head_dim"],
    v: Float[Tensor, "batch kv_heads keys value_dim"],
    source: Float[Tensor, "batch heads queries value_dim"],
    *,
    scale: float | None = None,
) -> Float[Tensor, "batch heads queries"]:
    r"""The scalar whose gradient is attention: :math:`F(\zeta) = \log \sum_j \exp(q \cdot k_j\,\mathrm{scale} + \zeta \cdot v_j)`.

    :math:`\partial F / \partial \zeta` at zero is the attention output; the second derivative is the covariance of the
    values under the attention weights (row 184).
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    return (scores(q, k, scale) + scores(source, v, 1.0)).logsumexp(-1)


def _any_blocks_are_attention():
    problem = _problem(keys=700)  # more than one block
    return lambda: chunked_attention(**problem), lambda: _plain(**problem)


@register(
    "chunked_attention",
    kind="function",
    family="core",
    stage="score, normalize, aggregate",
    papers=(177,),
    properties=("compiles",),
    example=lambda: Example(chunked_attention, _problem()),
    reductions=(Reduction("any block size: attention with the whole table of logits", _any_blocks_are_attention),),
    peers=("torch",),
)
def chunked_attention(
    q: Float[Tensor, "batch heads queries head_dim"],
    k: Float[Tensor, "batch kv_heads keys head_dim"],
    v: Float[Tensor, "batch kv_heads keys value_dim"],
    **options,
) -> Float[Tensor, "batch heads queries value_dim"]:
    """Exact attention in memory linear in the keys, forward and backward, by online softmax over blocks.

    :func:`mhlib.attention` with ``backend="chunked"``, whose options it takes.
    Source: Rabe and Staats, "Self-attention does not need O(n^2) memory", arXiv 2112.05682 (row 177).
    """
    return attention(q, k, v, backend="chunked", **options)
