"""Exercises of the chapter on multi-head attention."""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mhlib.exercises.declare import Random, exercise


def _attention_cases(random: Random):
    for n, m, d, width in ((2, 3, 2, 2), (3, 4, 5, 2), (4, 4, 4, 4), (7, 5, 16, 3)):
        yield random.normal(n, d), random.normal(m, d), random.normal(m, width), random.mask(n, m)
    yield 100 * random.normal(3, 64), 100 * random.normal(4, 64), random.normal(4, 2), random.mask(3, 4)


def _attention(logits: Tensor, v: Tensor, mask: Tensor, axis: int = -1) -> Tensor:
    return logits.masked_fill(~mask, -math.inf).softmax(axis) @ v


def _logits(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.T / math.sqrt(q.shape[-1])


def _unshifted(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    exps = _logits(q, k).exp() * mask
    return exps / exps.sum(-1, keepdim=True) @ v


@exercise(
    "scaled_dot_product_attention",
    cases=_attention_cases,
    mistakes=(
        ("The logits are not scaled: divide q @ k.T by the root of d.", lambda q, k, v, mask: _attention(q @ k.T, v, mask)),
        (
            "The logits are divided by d; it is the root of d that brings their variance to 1.",
            lambda q, k, v, mask: _attention(q @ k.T / q.shape[-1], v, mask),
        ),
        (
            "The mask is inverted: True means that the query may attend to the key, so fill where ~mask.",
            lambda q, k, v, mask: _attention(_logits(q, k), v, ~mask),
        ),
        ("The mask is not used.", lambda q, k, v, mask: _attention(_logits(q, k), v, torch.ones_like(mask))),
        (
            "The weights sum to one over the queries; take the softmax over the keys, the last axis.",
            lambda q, k, v, mask: _attention(_logits(q, k), v, mask, axis=0),
        ),
        (
            "You masked after the softmax, so the weights that are left do not sum to one: mask the logits.",
            lambda q, k, v, mask: _logits(q, k).softmax(-1) * mask @ v,
        ),
        (
            "A masked logit of 0 still gets the weight e^0 = 1: fill with -inf before the softmax.",
            lambda q, k, v, mask: (_logits(q, k) * mask).softmax(-1) @ v,
        ),
        ("exp overflowed: subtract the largest logit of the row first, which changes no weight.", _unshifted),
    ),
)
def scaled_dot_product_attention(
    q: Float[Tensor, "queries d"], k: Float[Tensor, "keys d"], v: Float[Tensor, "keys width"], mask: Bool[Tensor, "queries keys"]
) -> Float[Tensor, "queries width"]:
    """Attention of one head; every query may attend to at least one key."""
    return _attention(_logits(q, k), v, mask)


def _token_cases(random: Random):
    for batch, tokens, heads, width in ((1, 3, 2, 2), (2, 3, 2, 4), (2, 4, 3, 5), (3, 1, 2, 3)):
        yield random.normal(batch, tokens, heads * width), heads


@exercise(
    "split_heads",
    cases=_token_cases,
    mistakes=(
        (
            "A view straight to (batch, heads, tokens, head_dim) cuts across tokens: first cut the last axis in two, then "
            "move the heads before the tokens.",
            lambda x, num_heads: x.reshape(x.shape[0], num_heads, x.shape[1], -1),
        ),
        (
            "Heads belong before tokens: swap axes 1 and 2.",
            lambda x, num_heads: x.unflatten(-1, (num_heads, -1)),
        ),
        (
            "The numbers of a head are neighbours: head 0 takes the first head_dim of them, not every num_heads-th.",
            lambda x, num_heads: x.unflatten(-1, (-1, num_heads)).permute(0, 3, 1, 2),
        ),
    ),
)
def split_heads(x: Float[Tensor, "batch tokens dim"], num_heads: int) -> Float[Tensor, "batch heads tokens head_dim"]:
    """Cut the last axis into heads."""
    return x.unflatten(-1, (num_heads, -1)).transpose(1, 2)


def _head_cases(random: Random):
    for batch, heads, tokens, width in ((1, 2, 3, 2), (2, 2, 3, 4), (2, 3, 4, 5), (3, 2, 1, 3)):
        yield (random.normal(batch, heads, tokens, width),)


@exercise(
    "merge_heads",
    cases=_head_cases,
    mistakes=(
        (
            "A reshape without a transpose puts different tokens side by side: bring the heads next to head_dim first.",
            lambda heads: heads.reshape(heads.shape[0], heads.shape[2], -1),
        ),
        (
            "The heads are interleaved: all numbers of head 0 come first, then those of head 1.",
            lambda heads: heads.permute(0, 2, 3, 1).flatten(2),
        ),
        ("Heads are put side by side, not added up; adding is what the output projection does.", lambda heads: heads.sum(1)),
    ),
)
def merge_heads(heads: Float[Tensor, "batch heads tokens head_dim"]) -> Float[Tensor, "batch tokens dim"]:
    """Heads side by side."""
    return heads.transpose(1, 2).flatten(2)


def _scale_cases(random: Random):
    for _ in range(5):
        yield random.integer(2, 256), random.uniform(0.1, 0.9), random.uniform(1.5, 4.0)


@exercise(
    "unit_variance_scale",
    cases=_scale_cases,
    mistakes=(
        (
            "This holds for entries of deviation 1 alone; theirs multiply into every product.",
            lambda head_dim, q_std, k_std: head_dim**-0.5,
        ),
        (
            "You divided by the variance of the dot product; a scale multiplies the deviation, the root of the variance.",
            lambda head_dim, q_std, k_std: 1 / (head_dim * q_std**2 * k_std**2),
        ),
        (
            "This is the deviation of the dot product; the scale is its inverse.",
            lambda head_dim, q_std, k_std: head_dim**0.5 * q_std * k_std,
        ),
        (
            "The variances of the head_dim products add up, so the deviation grows with the root of head_dim.",
            lambda head_dim, q_std, k_std: 1 / (head_dim * q_std * k_std),
        ),
    ),
)
def unit_variance_scale(head_dim: int, q_std: float, k_std: float) -> float:
    """The factor that gives q . k the variance 1, for independent entries of mean 0 and these deviations."""
    return 1 / (math.sqrt(head_dim) * q_std * k_std)


def _jacobian_cases(random: Random):
    for keys, width in ((3, 2), (2, 4), (5, 3), (8, 8)):
        yield random.normal(keys), random.normal(keys, width)


def _jacobian(logits: Tensor, v: Tensor) -> Tensor:
    weights = logits.softmax(-1)
    return weights[:, None] * (v - weights @ v)


@exercise(
    "output_jacobian",
    cases=_jacobian_cases,
    mistakes=(
        (
            "This is the change through the key's own weight as if the others stayed; they shrink, since all sum to one.",
            lambda logits, v: logits.softmax(-1)[:, None] * v,
        ),
        (
            "w (1 - w) is how a weight follows its own logit; the other weights, which follow it by -w w', are left out.",
            lambda logits, v: (logits.softmax(-1) * (1 - logits.softmax(-1)))[:, None] * v,
        ),
        ("The sign is wrong: a key whose value is larger than the output pulls it up.", lambda logits, v: -_jacobian(logits, v)),
        ("Keys are rows and numbers of the output are columns: transpose it.", lambda logits, v: _jacobian(logits, v).T),
    ),
)
def output_jacobian(logits: Float[Tensor, " keys"], v: Float[Tensor, "keys width"]) -> Float[Tensor, "keys width"]:
    """The derivative of each number of one query's output by each logit."""
    return _jacobian(logits, v)
