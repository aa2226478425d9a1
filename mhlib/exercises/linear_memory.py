"""Exercises of the chapter on exact attention in linear memory."""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from mhlib.exercises.declare import Random, Stream, exercise


class Softmax(NamedTuple):
    maximum: Tensor
    total: Tensor


def _logit_cases(random: Random):
    # First the largest logit in the first block, then in the last: so forgetting to rescale shows only in the second.
    for sizes, first in (((2, 3), True), ((1, 1, 1), False), ((4, 4, 2), False), ((5,), False)):
        yield (Stream(random.normal(sum(sizes)).sort(descending=first).values.split(sizes)),)
    yield (Stream(1000 + 3 * random.normal(3) for _ in range(4)),)
    yield (Stream(random.normal(3) - 1000 * (i != 2) for i in range(4)),)


def _running(blocks, decay=lambda old, new: (old - new).exp()) -> Softmax:
    maximum, total = torch.tensor(-math.inf, dtype=torch.float64), torch.tensor(0.0, dtype=torch.float64)
    for z in blocks:
        larger = torch.maximum(maximum, z.max())
        total = total * decay(maximum, larger) + (z - larger).exp().sum()
        maximum = larger
    return Softmax(maximum, total)


def _last_block(blocks) -> Softmax:
    z = list(blocks)[-1]
    return Softmax(z.max(), (z - z.max()).exp().sum())


def _own_maxima(blocks) -> Softmax:
    """The maximum of each block is subtracted, and nothing else."""
    parts = [(z.max(), (z - z.max()).exp().sum()) for z in blocks]
    return Softmax(torch.stack([m for m, _ in parts]).max(), torch.stack([total for _, total in parts]).sum())


def _no_maximum(blocks) -> Softmax:
    z = torch.cat(list(blocks))
    return Softmax(z.max(), z.exp().sum())


@exercise(
    "running_softmax",
    cases=_logit_cases,
    mistakes=(
        (
            "The old sum was not rescaled when the maximum grew: multiply it by exp(old maximum - new maximum).",
            lambda blocks: _running(blocks, decay=lambda old, new: 1.0),
        ),
        (
            "Each block is measured from its own maximum; all must be measured from the largest one of all blocks so far.",
            _own_maxima,
        ),
        ("Only the last block counts here: carry maximum and sum from block to block.", _last_block),
        (
            "This is the sum of exp(z) without the running maximum; measured from it, the sum is that of exp(z - maximum).",
            _no_maximum,
        ),
    ),
)
def running_softmax(blocks) -> Softmax:
    """Largest logit and sum of exp(logit - largest) over a stream of blocks (size,), each seen once."""
    return _running(blocks)


def _stream_cases(random: Random):
    for sizes, d, width in (((2, 2), 2, 2), ((1, 1, 2), 4, 3), ((3, 5, 2), 8, 2), ((4,), 2, 2)):
        yield 2 * random.normal(d), Stream((random.normal(size, d), random.normal(size, width)) for size in sizes)
    yield 300 * random.normal(16), Stream((10 * random.normal(3, 16), random.normal(3, 2)) for _ in range(4))


def _stream(q: Tensor, blocks, *, decay_sum=True, decay_out=True, divide=True, scale=True, shift=True) -> Tensor:
    """The online softmax, with any of its steps left out."""
    maximum, total, out = torch.tensor(-math.inf, dtype=q.dtype), torch.tensor(0.0, dtype=q.dtype), 0.0
    for k, v in blocks:
        z = k @ q / (math.sqrt(len(q)) if scale else 1.0)
        larger = torch.maximum(maximum, z.max())
        decay = (maximum - larger).exp() if shift else 1.0
        weights = (z - larger).exp() if shift else z.exp()
        total = total * (decay if decay_sum else 1.0) + weights.sum()
        out = out * (decay if decay_out else 1.0) + weights @ v
        maximum = larger
    return out / total if divide else out


def _mean_of_blocks(q: Tensor, blocks) -> Tensor:
    return torch.stack([(k @ q / math.sqrt(len(q))).softmax(-1) @ v for k, v in blocks]).mean(0)


@exercise(
    "streaming_attention",
    cases=_stream_cases,
    mistakes=(
        (
            "The weighted sum of values was not rescaled when the maximum grew; the sum of weights was.",
            lambda q, blocks: _stream(q, blocks, decay_out=False),
        ),
        (
            "The sum of weights was not rescaled when the maximum grew; the weighted sum of values was.",
            lambda q, blocks: _stream(q, blocks, decay_sum=False),
        ),
        (
            "Nothing was rescaled when the maximum grew: multiply both sums by exp(old maximum - new maximum).",
            lambda q, blocks: _stream(q, blocks, decay_sum=False, decay_out=False),
        ),
        ("Divide by the sum of the weights at the end.", lambda q, blocks: _stream(q, blocks, divide=False)),
        ("The logits are not divided by the root of d.", lambda q, blocks: _stream(q, blocks, scale=False)),
        (
            "This is the mean of the blocks' outputs; a block with larger logits must count for more.",
            _mean_of_blocks,
        ),
        ("This is what comes out without the running maximum: exp overflowed.", lambda q, blocks: _stream(q, blocks, shift=False)),
    ),
)
def streaming_attention(q: Float[Tensor, " d"], blocks) -> Float[Tensor, " width"]:
    """Attention of one query over a stream of (keys (size, d), values (size, width)), each seen once."""
    return _stream(q, blocks)


class Part(NamedTuple):
    out: Tensor
    lse: Tensor


def _part_cases(random: Random):
    for n, width, shift in ((2, 2, 0.0), (3, 4, 0.0), (4, 1, 1000.0), (2, 3, -1000.0)):
        yield random.normal(n, width), random.normal(n) + shift, random.normal(n, width), random.normal(n) + shift


def _merge(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> Part:
    lse = torch.logaddexp(lse_a, lse_b)
    return Part((lse_a - lse).exp()[:, None] * out_a + (lse_b - lse).exp()[:, None] * out_b, lse)


def _merge_unshifted(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> Part:
    a, b = lse_a.exp(), lse_b.exp()
    return Part((a[:, None] * out_a + b[:, None] * out_b) / (a + b)[:, None], (a + b).log())


@exercise(
    "merge_partials",
    cases=_part_cases,
    mistakes=(
        (
            "The outputs are averaged evenly; each part counts by its share exp(its lse - common lse).",
            lambda out_a, lse_a, out_b, lse_b: Part((out_a + out_b) / 2, torch.logaddexp(lse_a, lse_b)),
        ),
        (
            "The outputs are added; they are averages already, so their shares must sum to one.",
            lambda out_a, lse_a, out_b, lse_b: Part(out_a + out_b, torch.logaddexp(lse_a, lse_b)),
        ),
        (
            "The shares are swapped: out_a goes with lse_a.",
            lambda out_a, lse_a, out_b, lse_b: _merge(out_b, lse_a, out_a, lse_b),
        ),
        (
            "The lse of the union is log(exp(lse_a) + exp(lse_b)), not their sum.",
            lambda out_a, lse_a, out_b, lse_b: Part(_merge(out_a, lse_a, out_b, lse_b).out, lse_a + lse_b),
        ),
        (
            "The lse of the union is log(exp(lse_a) + exp(lse_b)), not the larger of the two.",
            lambda out_a, lse_a, out_b, lse_b: Part(_merge(out_a, lse_a, out_b, lse_b).out, torch.maximum(lse_a, lse_b)),
        ),
        (
            "exp of the lse overflowed or vanished: take exp of differences alone, exp(lse_a - common lse).",
            _merge_unshifted,
        ),
    ),
)
def merge_partials(
    out_a: Float[Tensor, "queries width"],
    lse_a: Float[Tensor, " queries"],
    out_b: Float[Tensor, "queries width"],
    lse_b: Float[Tensor, " queries"],
) -> Part:
    """Output and log-sum-exp over two sets of keys, from those over each of them."""
    return _merge(out_a, lse_a, out_b, lse_b)


def _backward_cases(random: Random):
    for n, m, width in ((2, 3, 2), (3, 2, 4), (4, 4, 4), (5, 7, 3)):
        weights, v = random.weights(n, m), random.normal(m, width)
        yield weights, v, weights @ v, random.normal(n, width)


@exercise(
    "logit_gradient",
    cases=_backward_cases,
    mistakes=(
        (
            "The part of the other weights is missing: subtract from d_weights the row's inner product of out and d_out.",
            lambda weights, v, out, d_out: weights * (d_out @ v.T),
        ),
        (
            "This is the gradient of the weights; the one of the logits has the softmax's Jacobian in front.",
            lambda weights, v, out, d_out: d_out @ v.T,
        ),
        (
            "w (1 - w) is the derivative of a sigmoid: in a softmax the other weights move too.",
            lambda weights, v, out, d_out: weights * (1 - weights) * (d_out @ v.T),
        ),
        (
            "The inner product of out and d_out is added where it must be subtracted.",
            lambda weights, v, out, d_out: weights * (d_out @ v.T + (out * d_out).sum(-1, keepdim=True)),
        ),
        (
            "The row's sum of out * d_out is subtracted after the multiplication by the weights; it belongs inside.",
            lambda weights, v, out, d_out: weights * (d_out @ v.T) - (out * d_out).sum(-1, keepdim=True),
        ),
        (
            "out * d_out is summed over everything; each query has its own sum.",
            lambda weights, v, out, d_out: weights * (d_out @ v.T - (out * d_out).sum()),
        ),
    ),
)
def logit_gradient(
    weights: Float[Tensor, "queries keys"],
    v: Float[Tensor, "keys width"],
    out: Float[Tensor, "queries width"],
    d_out: Float[Tensor, "queries width"],
) -> Float[Tensor, "queries keys"]:
    """The gradient of the logits, from that of the output, with out = weights @ v."""
    return weights * (d_out @ v.T - (out * d_out).sum(-1, keepdim=True))


class LogitBytes(NamedTuple):
    whole: int
    blocks: int


def _byte_cases(random: Random):
    for _ in range(3):
        yield random.integer(2, 32), 1024 * random.integer(2, 16), 1024 * random.integer(2, 16), 256, 512, 4
    yield 8, 100, 200, 256, 512, 2  # shorter than a block
    yield 8, 1, 4096, 256, 512, 2


@exercise(
    "logit_bytes",
    cases=_byte_cases,
    mistakes=(
        (
            "Every head has a table of its own.",
            lambda heads, queries, keys, block_q, block_k, size: LogitBytes(
                size * queries * keys, size * min(block_q, queries) * min(block_k, keys)
            ),
        ),
        (
            "These are numbers; each takes bytes_per_number bytes.",
            lambda heads, queries, keys, block_q, block_k, size: LogitBytes(
                heads * queries * keys, heads * min(block_q, queries) * min(block_k, keys)
            ),
        ),
        (
            "All blocks together are the whole table; but only one of them is held at a time.",
            lambda heads, queries, keys, block_q, block_k, size: LogitBytes(
                size * heads * queries * keys, size * heads * queries * keys
            ),
        ),
        (
            "A block is no larger than the table: where there are fewer queries or keys than the block has, they decide.",
            lambda heads, queries, keys, block_q, block_k, size: LogitBytes(
                size * heads * queries * keys, size * heads * block_q * block_k
            ),
        ),
    ),
)
def logit_bytes(heads: int, queries: int, keys: int, block_q: int, block_k: int, bytes_per_number: int) -> LogitBytes:
    """Bytes of logits held at a time, as one table and block by block (all heads of one sequence at once)."""
    per_logit = bytes_per_number * heads
    return LogitBytes(per_logit * queries * keys, per_logit * min(block_q, queries) * min(block_k, keys))
