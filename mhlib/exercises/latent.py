"""Exercises of the chapter on latent attention."""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from mhlib.exercises.declare import Random, exercise


def _latent_cases(random: Random):
    for heads, n, keys, d, rank in ((2, 1, 4, 3, 2), (3, 1, 24, 4, 5), (4, 2, 40, 8, 6), (2, 3, 64, 8, 16)):
        yield random.normal(heads, n, d), random.normal(heads, d, rank), random.normal(keys, rank)


def _absorbed(q: Tensor, w_uk: Tensor, latent: Tensor, width: int) -> Tensor:
    return q @ w_uk @ latent.T / math.sqrt(width)


@exercise(
    "absorbed_logits",
    cases=_latent_cases,
    mistakes=(
        (
            "Divided by the root of the rank: the logits are those of keys of width d, whatever they are computed from.",
            lambda q, w_uk, latent: _absorbed(q, w_uk, latent, latent.shape[-1]),
        ),
        ("The logits are not divided by the root of d.", lambda q, w_uk, latent: _absorbed(q, w_uk, latent, 1)),
        (
            "Every head has its own up-projection; here all use that of the first.",
            lambda q, w_uk, latent: _absorbed(q, w_uk[:1], latent, q.shape[-1]),
        ),
        (
            "The heads are summed: only the width d is summed over when the query is absorbed.",
            lambda q, w_uk, latent: _absorbed(q, w_uk, latent, q.shape[-1]).sum(0),
        ),
    ),
    largest=lambda q, w_uk, latent: max(q.shape[0] * q.shape[1] * max(len(latent), latent.shape[1]), w_uk.numel(), latent.numel()),
    wasteful="Keys of all heads were made, (heads, keys, d). Multiply the query by w_uk instead, which gives a query as wide "
    "as the latent: (q W) c = q (W c).",
)
def absorbed_logits(
    q: Float[Tensor, "heads queries d"], w_uk: Float[Tensor, "heads d rank"], latent: Float[Tensor, "keys rank"]
) -> Float[Tensor, "heads queries keys"]:
    """Scaled logits of queries with the keys w_uk[h] @ latent[j], without making those keys."""
    return _absorbed(q, w_uk, latent, q.shape[-1])


class Factors(NamedTuple):
    down: Tensor
    up: Tensor


def _matrix_cases(random: Random):
    for rows, columns, rank in ((3, 4, 2), (4, 3, 1), (6, 6, 3), (12, 8, 4)):
        yield random.normal(rows, columns), rank


def _svd(weight: Tensor, rank: int, share: float = 1.0, power: float = 1.0) -> Factors:
    """Factors with ``share`` of each singular value's power on the way up and the rest on the way down."""
    u, s, vt = torch.linalg.svd(weight, full_matrices=False)
    s = s[:rank] ** power
    return Factors((s ** (1 - share))[:, None] * vt[:rank], u[:, :rank] * s**share)


def _smallest(weight: Tensor, rank: int) -> Factors:
    u, s, vt = torch.linalg.svd(weight, full_matrices=False)
    return Factors(vt[-rank:], u[:, -rank:] * s[-rank:])


def _cut(weight: Tensor, rank: int) -> Factors:
    """The first rows of the matrix as a basis, with the best coefficients for them."""
    return Factors(weight[:rank], torch.linalg.lstsq(weight[:rank].T, weight.T).solution.T)


@exercise(
    "low_rank",
    cases=_matrix_cases,
    mistakes=(
        ("The singular values are left out: scale the columns of U or the rows of V^T by them.", lambda w, r: _svd(w, r, power=0.0)),
        ("The singular values are in both factors, so they count twice: put them into one, or their roots into both.",
         lambda w, r: _svd(w, r, power=2.0)),
        ("Only the roots of the singular values are in the product.", lambda w, r: _svd(w, r, power=0.5)),
        ("The smallest singular values are kept; they come sorted, largest first.", _smallest),
        ("The first rows of the matrix are a basis, but not the best one: take the leading singular vectors.", _cut),
    ),
    outcome=lambda factors: (factors[1] @ factors[0],),
)  # fmt: skip
def low_rank(weight: Float[Tensor, "rows columns"], rank: int) -> Factors:
    """(down (rank, columns), up (rows, rank)) whose product up @ down is as near to the matrix as that rank allows."""
    return _svd(weight, rank)


def _break_even_cases(random: Random):
    for _ in range(5):
        width, value = 16 * random.integer(2, 8), 16 * random.integer(2, 8)
        yield random.integer(500, 9000), width, value, (width + value) * random.integer(1, 3)


@exercise(
    "break_even_queries",
    cases=_break_even_cases,
    mistakes=(
        (
            "Absorbing is not free: every query and every output goes through a head's d x r and r x d_v matrix.",
            lambda keys, d, dv, r: r * (d + dv) / (2 * r - d - dv),
        ),
        (
            "Absorbed, the weighted sum runs over latents of width r too: 2 r per query and key, not r + d_v.",
            lambda keys, d, dv, r: keys * r * (d + dv) / (keys * (r - d) + r * (d + dv)),
        ),
        (
            "The expanded form attends as well: compare 2 r per query and key with d + d_v, not with nothing.",
            lambda keys, d, dv, r: keys * r * (d + dv) / (keys * 2 * r + r * (d + dv)),
        ),
        (
            "Values are made from the latent too: expanding a token takes r (d + d_v) for each head.",
            lambda keys, d, dv, r: keys * r * d / (keys * (2 * r - d - dv) + r * (d + dv)),
        ),
    ),
)
def break_even_queries(keys: int, head_dim: int, v_head_dim: int, kv_rank: int) -> float:
    """The number of queries at which the absorbed form takes as many multiply-adds as expanding all keys and values first
    (no rotary part, as many key heads as heads)."""
    wide = head_dim + v_head_dim
    return keys * kv_rank * wide / (keys * (2 * kv_rank - wide) + kv_rank * wide)


def _ratio_cases(random: Random):
    for _ in range(4):
        yield random.integer(8, 128), 16 * random.integer(4, 12), 64 * random.integer(2, 12), 16 * random.integer(1, 6)


@exercise(
    "latent_cache_ratio",
    cases=_ratio_cases,
    mistakes=(
        ("The shared rotary key is cached beside the latent.", lambda heads, d, r, rope: r / (2 * heads * d)),
        ("Multi-head attention keeps keys and values.", lambda heads, d, r, rope: (r + rope) / (heads * d)),
        ("One rotary key serves all heads.", lambda heads, d, r, rope: (r + heads * rope) / (2 * heads * d)),
        ("One latent serves keys and values: it is kept once.", lambda heads, d, r, rope: (2 * r + rope) / (2 * heads * d)),
        ("This is how many times smaller the cache is; asked for is its share.", lambda heads, d, r, rope: 2 * heads * d / (r + rope)),
    ),
)
def latent_cache_ratio(num_heads: int, head_dim: int, kv_rank: int, rope_dim: int) -> float:
    """Numbers per token in the cache of latent attention over those of multi-head attention with heads of head_dim."""
    return (kv_rank + rope_dim) / (2 * num_heads * head_dim)
