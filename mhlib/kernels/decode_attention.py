"""Attention of one or a few new queries over a long cache: the keys are split over the device, the parts merge by log-sum-exp.

Reference: :func:`mhlib.attention` with ``backend="reference"``. With one query there is one row of logits for each head, too little
to keep a device busy: so the keys are cut into parts, each with an online softmax of its own, and a second small kernel merges the
parts, which is associative (:func:`mhlib.functional.merge_partials`, row 184). The heads of a group form one tile: a key and its
value are read once for all of them (rows 33 and 194), which is what decoding costs.

Conditions: those of :mod:`mhlib.kernels.flash_attention`, and nothing needs a gradient. How the keys are cut depends on the batch,
so results of different batches agree to rounding, not to the bit.

Source: Dao et al., "Flash-Decoding", 2023; Shyam et al., "Tree attention", arXiv 2408.04093 (row 184).
"""

from collections.abc import Iterator
from typing import Optional

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mhlib.functional.precision import accumulator
from mhlib.functional.request import Support, window_sides
from mhlib.kernels import split_keys
from mhlib.kernels.aot import Case
from mhlib.kernels.flash_attention import check_shapes
from mhlib.kernels.flash_attention import supports as flash_supports
from mhlib.kernels.launch import Counts, Launch, Table
from mhlib.kernels.tiles import columns_together, tokens_first

__all__ = ["decode_attention"]

# Loads are what counts: small tiles of keys, as many in flight as shared memory holds.
TABLE = Table(
    "decode_attention", ("bits", "width", "value_width", "rows"),
    {
        ("interpreter", 64, 256, 256, 64): Launch({"BLOCK_N": 16}),
        ("any", 16, 128, 128, 64): Launch({"BLOCK_N": 64}, 4, 2),
        ("any", 16, 256, 256, 32): Launch({"BLOCK_N": 32}, 4, 2),
        ("any", 32, 128, 128, 16): Launch({"BLOCK_N": 16}, 8, 1),
        ("any", 32, 256, 256, 16): Launch({"BLOCK_N": 16}, 8, 1),
    },
)  # fmt: skip


@torch.library.custom_op("mhlib::decode_attention", mutates_args=())
def _decode(
    q: Tensor, k: Tensor, v: Tensor, sink: Optional[Tensor], slopes: Optional[Tensor], key_mask: Optional[Tensor],
    lengths: Optional[Tensor], scale: float, softcap: float, left: int, right: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    q, k, v = columns_together(q), columns_together(k), columns_together(v)
    out, lse = _outputs(q, v)
    shared = split_keys.arguments(q, k, v, sink, slopes, key_mask, lengths, scale, softcap, left, right, q.shape[3])
    split_keys.run(shared, TABLE, out, lse)
    return out, lse


@_decode.register_fake
def _(q, k, v, sink, slopes, key_mask, lengths, scale, softcap, left, right):
    return _outputs(q, v)


def _outputs(q: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return tokens_first(q, q.shape[1], q.shape[2], v.shape[3]), q.new_empty(q.shape[:3], dtype=accumulator(q.dtype))


def decode_attention(
    q: Float[Tensor, "batch heads queries head_dim"],
    k: Float[Tensor, "batch kv_heads keys head_dim"],
    v: Float[Tensor, "batch kv_heads keys value_dim"],
    *,
    scale: float | None = None,
    causal: bool = False,
    window: int | tuple[int | None, int | None] | None = None,
    softcap: float | None = None,
    sink: Float[Tensor, " heads"] | None = None,
    alibi_slopes: Float[Tensor, " heads"] | None = None,
    key_mask: Bool[Tensor, "batch keys"] | None = None,
    lengths: Int[Tensor, " batch"] | None = None,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    r"""The function of :func:`mhlib.kernels.flash_attention`, for a few queries and many keys, without a gradient:

    .. math:: o = \sum_p e^{\ell_p - \ell} o_p, \qquad \ell = \log \sum_p e^{\ell_p}

    over the parts p of the keys, with :math:`o_p` attention over a part and :math:`\ell_p` its log-sum-exp.

    Args:
        q: the new queries; ``keys`` has all keys, those of the new tokens included.
        lengths: how many keys each sequence has, at least 1; what a cache holds after them is not read. The last query stands
            at the last of them.

    All other arguments, the result and the errors as there.
    Source: Dao et al., "Flash-Decoding", 2023; Shyam et al., "Tree attention", arXiv 2408.04093 (row 184).
    """
    check_shapes(q, k, v, key_mask=key_mask, sink=sink, alibi_slopes=alibi_slopes)
    if lengths is not None and lengths.shape != q.shape[:1]:
        raise ValueError(f"lengths must be (batch,) = ({q.shape[0]},), got {tuple(lengths.shape)}")
    if softcap is not None and softcap <= 0:
        raise ValueError(f"softcap must be positive, got {softcap}")
    support = supports(q, k, v, *(x for x in (sink, alibi_slopes) if x is not None))
    if not support:
        raise ValueError(f"decode_attention cannot run: {support.reason}")
    left, right = window_sides(window, causal)
    right = 0 if causal else right
    out, lse = _decode(
        q, k, v, sink, alibi_slopes, key_mask, None if lengths is None else lengths.int(),
        q.shape[-1] ** -0.5 if scale is None else float(scale), softcap or 0.0,
        -1 if left is None else left, -1 if right is None else right,
    )  # fmt: skip
    return (out, lse) if return_lse else out


def supports(q: Tensor, k: Tensor, v: Tensor, *more: Tensor) -> Support:
    """Whether the kernel can run on these tensors (``more``: sink, slopes), and if not, why."""
    if torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v, *more)):
        return Support(False, "it has no backward pass: use flash_attention, or torch.no_grad()")
    return flash_supports(q, k, v)


def counts(
    batch: int, heads: int, kv_heads: int, queries: int, keys: int, head_dim: int, value_dim: int, *, itemsize: int = 2
) -> Counts:
    """What decoding cannot do without: K and V across the memory bus once for each key head, two products for each pair."""
    pairs, rows = batch * heads * queries * keys, batch * heads * queries
    moved = batch * kv_heads * keys * (head_dim + value_dim) + rows * (head_dim + value_dim)
    return Counts(2 * pairs * (head_dim + value_dim), 4 * pairs, moved * itemsize + rows * 4)


def cases() -> Iterator[Case]:
    """Every row of the table with one query, and once per device class everything else at once."""
    for target, (bits, width, value_width, rows), _ in TABLE.each():
        dtype = torch.bfloat16 if bits == 16 else torch.float32
        name = f"{'bf16' if bits == 16 else 'fp32'} {width}/{value_width}"
        for group in sorted({16, rows}):
            yield from split_keys.cases_of(f"decode {name}", TABLE, _case(dtype, width, value_width, group), target, merge=bits == 16 and group == rows)
        if (bits, width) == (16, 128):
            shared = _case(torch.float16, 96, 80, 4, everything=True)
            yield from split_keys.cases_of("decode fp16 96/80 every option", TABLE, shared, target)


def _case(dtype: torch.dtype, width: int, value_width: int, group: int, everything: bool = False) -> dict:
    empty = lambda *shape, dtype=dtype: torch.empty(shape, dtype=dtype, device="meta")  # noqa: E731
    batch, kv_heads, keys, queries = 2, 2, 4096, 2 if everything else 1
    q = empty(batch, kv_heads * group, queries, width)
    k, v = empty(batch, kv_heads, keys, width), empty(batch, kv_heads, keys, value_width)
    per_head = empty(kv_heads * group, dtype=torch.float32) if everything else None
    key_mask, lengths = (empty(batch, keys, dtype=torch.bool), empty(batch, dtype=torch.int32)) if everything else (None, None)
    softcap, left, right = (30.0, 256, 0) if everything else (0.0, -1, -1)
    return split_keys.arguments(q, k, v, per_head, per_head, key_mask, lengths, width**-0.5, softcap, left, right, width)
