"""Exercises of the chapter on sharing keys and values."""

import math

from jaxtyping import Float
from torch import Tensor

from mhlib.exercises.declare import Random, exercise


def _grouped_cases(random: Random):
    for heads, groups, n, keys, d in ((2, 1, 1, 3, 2), (4, 2, 1, 12, 4), (6, 2, 2, 16, 8), (4, 4, 1, 8, 4), (8, 2, 3, 32, 8)):
        yield random.normal(heads, n, d), random.normal(groups, keys, d), random.normal(groups, keys, d)


def _repeated(q: Tensor, k: Tensor, v: Tensor, *, interleaved: bool = False, scale: bool = True) -> Tensor:
    """Grouped attention the wasteful way, with what can go wrong in it."""
    times = q.shape[0] // k.shape[0]
    k, v = ((x.repeat(times, 1, 1) if interleaved else x.repeat_interleave(times, 0)) for x in (k, v))
    logits = q @ k.mT / (math.sqrt(q.shape[-1]) if scale else 1.0)
    return logits.softmax(-1) @ v


def _first_group(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return _repeated(q, k[:1], v[:1])


@exercise(
    "grouped_attention",
    cases=_grouped_cases,
    mistakes=(
        (
            "Head h reads key head h % G here; neighbouring heads share, so it is h // (H / G).",
            lambda q, k, v: _repeated(q, k, v, interleaved=True),
        ),
        ("The logits are not divided by the root of d.", lambda q, k, v: _repeated(q, k, v, scale=False)),
        ("All heads read the first key head; each group has its own.", _first_group),
    ),
    largest=lambda q, k, v: max(q.shape[0] * q.shape[1] * max(k.shape[1], q.shape[2]), k.numel()),
    wasteful="The keys or values were copied for every head, by repeat_interleave or inside a product that broadcasts. Pack "
    "the queries of a group as rows instead, (G, H/G * N, d), and multiply once per key head.",
)
def grouped_attention(
    q: Float[Tensor, "heads queries d"], k: Float[Tensor, "groups keys d"], v: Float[Tensor, "groups keys d"]
) -> Float[Tensor, "heads queries d"]:
    """Head h attends with key and value head h // (heads / groups); keys and values are not repeated."""
    rows = q.reshape(k.shape[0], -1, q.shape[-1])
    weights = (rows @ k.mT / math.sqrt(q.shape[-1])).softmax(-1)
    return (weights @ v).reshape(q.shape)


def _weight_cases(random: Random):
    for heads, groups, d, dim in ((4, 2, 2, 3), (4, 1, 2, 5), (6, 2, 3, 4), (8, 4, 4, 8)):
        yield random.normal(heads * d, dim), heads, groups


def _by_group(weight: Tensor, num_heads: int, num_groups: int) -> Tensor:
    return weight.unflatten(0, (num_groups, num_heads // num_groups, -1))


@exercise(
    "pool_heads",
    cases=_weight_cases,
    mistakes=(
        (
            "Only the first head of each group is kept; take the mean over the group.",
            lambda weight, num_heads, num_groups: _by_group(weight, num_heads, num_groups)[:, 0].flatten(0, 1),
        ),
        (
            "The heads of a group are added up; divide by how many they are.",
            lambda weight, num_heads, num_groups: _by_group(weight, num_heads, num_groups).sum(1).flatten(0, 1),
        ),
        (
            "Heads g, g + G, g + 2 G, ... are pooled; the heads of a group are neighbours.",
            lambda weight, num_heads, num_groups: weight.unflatten(0, (-1, num_groups, len(weight) // num_heads)).mean(0).flatten(0, 1),
        ),
        (
            "Neighbouring rows are averaged, which mixes the numbers inside a head: average row r of one head with row r of "
            "the others.",
            lambda weight, num_heads, num_groups: weight.unflatten(0, (-1, num_heads // num_groups)).mean(1),
        ),
    ),
)
def pool_heads(weight: Float[Tensor, "rows dim"], num_heads: int, num_groups: int) -> Float[Tensor, "pooled dim"]:
    """The projection of num_heads key heads (num_heads * head_dim, dim) mean-pooled to num_groups heads."""
    return _by_group(weight, num_heads, num_groups).mean(1).flatten(0, 1)


def _cache_cases(random: Random):
    for size in (4, 2, 1):
        layers, heads, width = random.integer(33, 80), random.integer(3, 32), 16 * random.integer(3, 8)
        yield layers, heads, width, random.integer(1000, 9000), random.integer(5, 32), size


@exercise(
    "cache_bytes",
    cases=_cache_cases,
    mistakes=(
        (
            "Keys and values are both kept: twice as much.",
            lambda layers, heads, width, tokens, batch, size: layers * heads * width * tokens * batch * size,
        ),
        (
            "This is one layer; each keeps its own keys and values.",
            lambda layers, heads, width, tokens, batch, size: 2 * heads * width * tokens * batch * size,
        ),
        (
            "This is one sequence; the batch has several.",
            lambda layers, heads, width, tokens, batch, size: 2 * layers * heads * width * tokens * size,
        ),
        (
            "These are numbers, not bytes.",
            lambda layers, heads, width, tokens, batch, size: 2 * layers * heads * width * tokens * batch,
        ),
        (
            "These are bits: bytes_per_number counts bytes already.",
            lambda layers, heads, width, tokens, batch, size: 16 * layers * heads * width * tokens * batch * size,
        ),
    ),
)
def cache_bytes(num_layers: int, num_kv_heads: int, head_dim: int, tokens: int, batch: int, bytes_per_number: int) -> int:
    """Bytes that the keys and values of a model take."""
    return 2 * num_layers * num_kv_heads * head_dim * tokens * batch * bytes_per_number


def _roofline_cases(random: Random):
    for kv_heads, flops in ((8, 4e14), (1, 1e13), (4, 9e14), (1, 2e13)):  # limited by memory, by arithmetic, ...
        yield 32, kv_heads, 128, random.integer(1000, 9000), random.integer(2, 64), flops, random.uniform(1e12, 4e12)


def _times(heads, kv_heads, width, context, batch, flops, bandwidth, *, per_product=2, tensors=2) -> tuple[float, float]:
    """Seconds of arithmetic and of traffic."""
    arithmetic = 2 * per_product * batch * heads * context * width
    return arithmetic / flops, 2 * tensors * batch * kv_heads * context * width / bandwidth


@exercise(
    "decode_seconds",
    cases=_roofline_cases,
    mistakes=(
        ("Arithmetic and traffic overlap: the slower one counts, not their sum.", lambda *sizes: sum(_times(*sizes))),
        ("The slower of the two is the bound: max, not min.", lambda *sizes: min(_times(*sizes))),
        ("A multiply and an add are 2 FLOPs.", lambda *sizes: max(_times(*sizes, per_product=1))),
        ("Keys and values are both read.", lambda *sizes: max(_times(*sizes, tensors=1))),
        (
            "What is read are the key and value heads, of which there are fewer.",
            lambda heads, kv_heads, *sizes: max(_times(heads, heads, *sizes)),
        ),
        (
            "All query heads compute; sharing saves reading, not arithmetic.",
            lambda heads, kv_heads, *sizes: max(_times(kv_heads, kv_heads, *sizes)),
        ),
    ),
)
def decode_seconds(
    num_heads: int, num_kv_heads: int, head_dim: int, context: int, batch: int, peak_flops: float, bandwidth: float
) -> float:
    """Roofline bound in seconds of one decoding step's attention (logits and weighted sums; keys and values of 2 bytes a
    number are read once, all else is small)."""
    return max(_times(num_heads, num_kv_heads, head_dim, context, batch, peak_flops, bandwidth))
