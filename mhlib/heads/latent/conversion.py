"""MHA2MLA: turn a trained multi-head or grouped layer into multi-head latent attention (Ji et al., row 85).

Rotary positions stay on a few pairs of each key head and are dropped elsewhere; the rest of the keys, together with the
values, is factored by a truncated SVD into a shared latent.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from mhlib.functional.positions import Rotary
from mhlib.heads.base import MultiHeadAttention, split_heads
from mhlib.heads.latent.multi_head_latent import MultiHeadLatentAttention
from mhlib.heads.sharing.grouped_query import check_convertible, options, sizes
from mhlib.registry import Example, Reduction, register

__all__ = ["choose_rotary_pairs", "mha2mla"]

STRATEGIES = ("high", "low", "uniform", "2-norm")


def _rotary_layer():
    return MultiHeadAttention(16, 2, num_kv_heads=1, rope=Rotary(8, base=100.0))


def _all_pairs_full_rank():
    mha = _rotary_layer()
    return mha2mla(mha, kv_rank=8, rope_dim=8), mha


@register(
    "mha2mla",
    kind="training",
    family="latent",
    papers=(85,),
    example=lambda: Example(mha2mla, {"mha": _rotary_layer(), "kv_rank": 4, "rope_dim": 4}),
    reductions=(Reduction("all pairs rotary, full rank: the layer it came from", _all_pairs_full_rank, ({"causal": True},)),),
    peers=("numpy", "transformers"),
)
def mha2mla(
    mha: MultiHeadAttention,
    *,
    kv_rank: int,
    rope_dim: int = 0,
    strategy: str = "uniform",
    calibration: Tensor | None = None,
    factorization: str = "joint",
) -> MultiHeadLatentAttention:
    r"""Convert a trained layer to multi-head latent attention, ready to be fine-tuned.

    With the rows of W_K split into rotary ones W_Kr and the others W_Kc,

    .. math:: [W_{Kc}; W_V] \approx U_r \Sigma_r V_r^\top, \qquad W_{DKV} = V_r^\top,\quad [W_{UK}; W_{UV}] = U_r \Sigma_r

    The cache of a token shrinks from G (d_k + d_v) numbers to kv_rank + G rope_dim. No norm is put on the latent.

    Args:
        mha: multi-head or grouped attention without biases, with or without rotary positions.
        kv_rank: width of the latent.
        rope_dim: numbers of each key head that stay rotary (even, at most what ``mha.rope`` turns).
        strategy: which pairs stay: "high" or "low" frequencies, "uniform"ly spaced ones, or those with the largest
            "2-norm" contribution, measured on ``calibration`` tokens (batch, tokens, dim); the paper's best.
        factorization: "joint" SVD of keys and values (the paper's best), or "split": one for each, half the rank each.

    Exact when all pairs stay rotary (or there were none) and kv_rank reaches the rank of the rest.
    """
    check_convertible(mha)
    least = 2 if factorization == "split" else 1
    if kv_rank < least:
        raise ValueError(f"kv_rank must be at least {least} for factorization {factorization!r}, got {kv_rank}")
    if any(proj.bias is not None for proj in (mha.q_proj, mha.k_proj, mha.v_proj)):
        raise ValueError("mha2mla converts layers without biases in the query, key and value projections, this one has some")
    if mha.rope is None and rope_dim:
        raise ValueError(f"the layer has no rotary positions to keep: rope_dim must be 0, got {rope_dim}")
    groups, dim = mha.num_kv_heads, mha.head_dim
    order, rope = _split_pairs(mha, rope_dim, strategy, calibration)  # (groups, head_dim): kept plain first, rotary last
    plain = dim - rope_dim

    query_order = order.repeat_interleave(mha.num_heads // groups, 0)
    w_q = _reorder(mha.q_proj.weight, query_order)
    w_k = _reorder(mha.k_proj.weight, order).unflatten(0, (groups, dim))
    w_v = mha.v_proj.weight.unflatten(0, (groups, -1))
    down, up_k, up_v = FACTORIZATIONS[_factorization(factorization)](w_k[:, :plain].flatten(0, 1), w_v.flatten(0, 1), kv_rank)

    mla = MultiHeadLatentAttention(
        **sizes(mha) | {"head_dim": plain}, num_kv_heads=groups, kv_rank=down.shape[0], rope_dim=rope_dim, rope=rope,
        rope_heads=groups if rope_dim else 1, latent_norm=False, dropout=mha.dropout,
        bias=False, position_bias=options(mha)["position_bias"], backend=mha.backend,
    ).to(mha.q_proj.weight)  # fmt: skip
    mla.scale = mha.scale
    state = {
        "q_proj.weight": w_q,
        "kv_a_proj.weight": torch.cat([down, w_k[:, plain:].flatten(0, 1)]),
        "kv_b_proj.weight": torch.cat([up_k.unflatten(0, (groups, plain)), up_v.unflatten(0, (groups, -1))], 1).flatten(0, 1),
        "o_proj.weight": mha.o_proj.weight,
    }
    if mha.o_proj.bias is not None:
        mla.o_proj.bias = torch.nn.Parameter(mha.o_proj.bias.clone())
        state["o_proj.bias"] = mha.o_proj.bias
    mla.load_state_dict({name: value.detach().clone() for name, value in state.items()}, strict=mha.position_bias is None)
    return mla.train(mha.training)


def choose_rotary_pairs(
    mha: MultiHeadAttention, pairs: int, strategy: str, calibration: Tensor | None = None
) -> list[list[int]]:
    """Which rotary pairs of each key head stay rotary, as sorted indices (pair 0 turns fastest)."""
    total, groups = mha.rope.dim // 2, mha.num_kv_heads
    if strategy not in STRATEGIES:
        raise ValueError(f"strategy must be one of {', '.join(STRATEGIES)}, got {strategy!r}")
    if not 0 <= pairs <= total:
        raise ValueError(f"rope_dim must be even and at most {mha.rope.dim}, the numbers that the layer turns; got {2 * pairs}")
    if strategy == "2-norm":
        if calibration is None:
            raise ValueError("strategy '2-norm' measures queries and keys: give calibration tokens (batch, tokens, dim)")
        kept = _contribution(mha, calibration).topk(pairs, -1).indices.sort(-1).values
        return kept.tolist()
    kept = {
        "high": range(pairs),
        "low": range(total - pairs, total),
        "uniform": [i * total // pairs for i in range(pairs)],
    }[strategy]
    return [list(kept)] * groups


def _contribution(mha: MultiHeadAttention, tokens: Tensor) -> Tensor:
    """Mean length of a pair in the queries of a group times its mean length in their key, (groups, pairs).

    By Cauchy and Schwarz it bounds what the pair adds to a logit. Before rotation, which changes no length.
    """
    with torch.no_grad():
        lengths = [
            _pairs(split_heads(proj(tokens), heads), mha.rope).norm(dim=-1).mean((0, 2))
            for proj, heads in ((mha.q_proj, mha.num_heads), (mha.k_proj, mha.num_kv_heads))
        ]
    return lengths[0].unflatten(0, (mha.num_kv_heads, -1)).sum(1) * lengths[1]


def _pairs(x: Tensor, rope: Rotary) -> Tensor:
    """The rotated numbers of each head as (..., pairs, 2)."""
    x = x[..., : rope.dim]
    return x.unflatten(-1, (-1, 2)) if rope.interleaved else x.unflatten(-1, (2, -1)).transpose(-1, -2)


def _split_pairs(
    mha: MultiHeadAttention, rope_dim: int, strategy: str, calibration: Tensor | None
) -> tuple[Tensor, Rotary | None]:
    """New order of the numbers in each key head, plain ones first, and the rotary embedding of the last ones."""
    numbers = torch.arange(mha.head_dim)
    if rope_dim == 0:
        return numbers.expand(mha.num_kv_heads, -1), None
    if rope_dim % 2:
        raise ValueError(f"rope_dim must be even, got {rope_dim}")
    kept = choose_rotary_pairs(mha, rope_dim // 2, strategy, calibration)
    pairs = _pairs(numbers, mha.rope)  # (pairs, 2): which two numbers a pair turns
    theta = mha.rope.angles(torch.tensor(1), torch.float64)
    theta = theta.expand(mha.num_kv_heads, -1) if theta.ndim == 1 else theta
    rows, frequencies = [], []
    for head, chosen in enumerate(kept):
        turned = pairs[chosen].flatten()  # neighbours: the new layout is interleaved
        plain = numbers[~torch.isin(numbers, turned)]
        rows.append(torch.cat([plain, turned]))
        frequencies.append(tuple(theta[head, chosen].tolist()))
    return torch.stack(rows), Rotary(rope_dim, interleaved=True, frequencies=tuple(frequencies))


def _reorder(weight: Tensor, order: Tensor) -> Tensor:
    """Reorder the rows of each head of a projection."""
    heads = weight.unflatten(0, (order.shape[0], -1))
    return heads.gather(1, order.to(weight.device)[..., None].expand(-1, -1, weight.shape[1])).flatten(0, 1)


def _joint(w_k: Tensor, w_v: Tensor, rank: int) -> tuple[Tensor, Tensor, Tensor]:
    down, up = _truncate(torch.cat([w_k, w_v]), rank)
    return down, up[: len(w_k)], up[len(w_k) :]


def _split(w_k: Tensor, w_v: Tensor, rank: int) -> tuple[Tensor, Tensor, Tensor]:
    if len(w_k) == 0:
        raise ValueError("factorization 'split' needs keys that are not rotary; use 'joint'")
    (down_k, up_k), (down_v, up_v) = _truncate(w_k, rank - rank // 2), _truncate(w_v, rank // 2)
    zeros = lambda up, other: up.new_zeros(len(up), len(other))  # noqa: E731
    return (
        torch.cat([down_k, down_v]),
        torch.cat([up_k, zeros(up_k, down_v)], 1),
        torch.cat([zeros(up_v, down_k), up_v], 1),
    )


def _truncate(weight: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """The best approximation of that rank as (down (rank, columns), up (rows, rank)), Eckart and Young."""
    u, s, vt = torch.linalg.svd(weight.to(torch.float64), full_matrices=False)
    return vt[:rank].to(weight.dtype), (u[:, :rank] * s[:rank]).to(weight.dtype)


FACTORIZATIONS = {"joint": _joint, "split": _split}


def _factorization(name: str) -> str:
    if name not in FACTORIZATIONS:
        raise ValueError(f"factorization must be one of {', '.join(FACTORIZATIONS)}, got {name!r}")
    return name


def cache_ratio(groups: int, head_dim: int, kv_rank: int, rope_dim: int, bits: Sequence[int] = (16, 16)) -> float:
    """Cache of the converted layer over that of the original, ``bits`` per number after and before."""
    return (kv_rank + groups * rope_dim) * bits[0] / (2 * groups * head_dim * bits[1])
