"""Decoding of multi-head latent attention in its absorbed form: the cached latent is read once, as key and as value of all heads.

Reference: :func:`mhlib.attention` with k = latent and v = its first ``rank`` columns. In the absorbed form all heads share one key head
(:class:`mhlib.heads.MultiHeadLatentAttention`), so the heads are the rows of one tile, which makes products of what would be
memory traffic: 2 x heads FLOPs for each number of the cache that is read (rows 34 and 89). The split over the keys is that of
:mod:`mhlib.kernels.decode_attention`.

Conditions: float16, bfloat16 or float32 on the device (float64 in the interpreter, bfloat16 not there), latents up to 512 wide with up
to 64 more columns for rotary positions, and nothing needs a gradient.

Source: DeepSeek-AI, "DeepSeek-V2", arXiv 2405.04434 (rows 34, 89).
"""

from collections.abc import Iterator
from typing import Optional

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mhlib.functional.precision import accumulator
from mhlib.functional.request import Support
from mhlib.kernels import split_keys
from mhlib.kernels.aot import Case
from mhlib.kernels.launch import Counts, Launch, Table
from mhlib.kernels.parts import dtype_support
from mhlib.kernels.tiles import columns_together, tokens_first

__all__ = ["latent_decode"]

WIDEST, MOST_EXTRA = 512, 64
TABLE = Table(
    "latent_decode", ("bits", "width", "value_width", "rows"),
    {
        ("interpreter", 64, 512, 512, 64): Launch({"BLOCK_N": 16}),
        ("any", 16, 512, 512, 16): Launch({"BLOCK_N": 16}, 4, 2),
        ("any", 32, 512, 512, 16): Launch({"BLOCK_N": 16}, 8, 1),
        ("sm80", 16, 512, 512, 32): Launch({"BLOCK_N": 32}, 8, 2),
        ("sm80", 32, 512, 512, 16): Launch({"BLOCK_N": 16}, 8, 1),
        ("sm90", 16, 512, 512, 32): Launch({"BLOCK_N": 32}, 8, 2),
        ("sm90", 32, 512, 512, 16): Launch({"BLOCK_N": 16}, 8, 1),
        ("sm100", 16, 512, 512, 64): Launch({"BLOCK_N": 32}, 8, 2),
        ("sm100", 32, 512, 512, 16): Launch({"BLOCK_N": 16}, 8, 1),
        ("gfx942", 16, 512, 512, 32): Launch({"BLOCK_N": 32}, 4, 2),
        ("gfx942", 32, 512, 512, 16): Launch({"BLOCK_N": 16}, 8, 1),
    },
)  # fmt: skip


@torch.library.custom_op("mhlib::latent_decode", mutates_args=())
def _decode(
    q: Tensor, latent: Tensor, key_mask: Optional[Tensor], lengths: Optional[Tensor], rank: int, scale: float, right: int
) -> tuple[Tensor, Tensor]:
    q, latent = columns_together(q), columns_together(latent)
    out, lse = _outputs(q, rank)
    shared = split_keys.arguments(q, latent[:, None], None, None, None, key_mask, lengths, scale, 0.0, -1, right, rank)
    split_keys.run(shared, TABLE, out, lse)
    return out, lse


@_decode.register_fake
def _(q, latent, key_mask, lengths, rank, scale, right):
    return _outputs(q, rank)


def _outputs(q: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    return tokens_first(q, q.shape[1], q.shape[2], rank), q.new_empty(q.shape[:3], dtype=accumulator(q.dtype))


def latent_decode(
    q: Float[Tensor, "batch heads queries rank+rope"],
    latent: Float[Tensor, "batch keys rank+rope"],
    rank: int,
    *,
    scale: float,
    causal: bool = False,
    key_mask: Bool[Tensor, "batch keys"] | None = None,
    lengths: Int[Tensor, " batch"] | None = None,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    r"""Attention of all heads over one shared latent, whose first ``rank`` columns are the values:

    .. math:: o_{hi} = \sum_j \mathrm{softmax}_j\!\left(q_{hi} \cdot [c_j \mid r_j] \cdot \mathrm{scale}\right) c_j

    Args:
        q: queries with the key's up-projection absorbed, the rotary part after it.
        latent: what the cache keeps of each token, :math:`[c_j \mid r_j]`.
        rank: width of c; the rest is the shared rotary key.
        scale: 1 / sqrt(head_dim + rope_dim) of the layer: it is not that of these widths.
        causal: the last query stands at the last key.
        key_mask: True = a real key.
        lengths: how many keys each sequence has, at least 1; what a cache holds after them is not read.
        return_lse: return (output, lse) with the log-sum-exp of the logits of each query.

    Returns:
        (batch, heads, queries, rank), for the value's up-projection.

    Raises:
        ValueError: shapes do not fit, or :func:`supports` says no.

    Source: DeepSeek-AI, "DeepSeek-V2", arXiv 2405.04434 (rows 34, 89).
    """
    shapes = f"q {tuple(q.shape)} and latent {tuple(latent.shape)}"
    if q.ndim != 4 or latent.ndim != 3 or q.shape[0] != latent.shape[0] or q.shape[3] != latent.shape[2]:
        raise ValueError(f"q must be (batch, heads, queries, width) and latent (batch, keys, width), got {shapes}")
    if not 1 <= rank <= latent.shape[2]:
        raise ValueError(f"rank must be from 1 to the width of the latent, got {rank} for {shapes}")
    keys = tuple(latent.shape[:2])
    if key_mask is not None and (key_mask.dtype != torch.bool or key_mask.shape != keys):
        raise ValueError(f"key_mask must be boolean (batch, keys) = {keys}, got {key_mask.dtype} {tuple(key_mask.shape)}")
    if lengths is not None and lengths.shape != q.shape[:1]:
        raise ValueError(f"lengths must be (batch,) = ({q.shape[0]},), got {tuple(lengths.shape)}")
    support = supports(q, latent, rank)
    if not support:
        raise ValueError(f"latent_decode cannot run: {support.reason}")
    lengths = None if lengths is None else lengths.int()
    out, lse = _decode(q, latent, key_mask, lengths, rank, float(scale), 0 if causal else -1)
    return (out, lse) if return_lse else out


def supports(q: Tensor, latent: Tensor, rank: int) -> Support:
    """Whether the kernel can run on these tensors, and if not, why."""
    if torch.is_grad_enabled() and (q.requires_grad or latent.requires_grad):
        return Support(False, "it has no backward pass: use mhlib.attention, or torch.no_grad()")
    if rank > WIDEST or latent.shape[-1] - rank > MOST_EXTRA:
        return Support(False, f"latents are at most {WIDEST} + {MOST_EXTRA} wide, got {rank} + {latent.shape[-1] - rank}")
    return dtype_support("latent_decode", q, latent)


def counts(batch: int, heads: int, queries: int, keys: int, rank: int, rope_dim: int, *, itemsize: int = 2) -> Counts:
    """What decoding cannot do without: the latent across the memory bus once, two products for each head and pair."""
    pairs, rows = batch * heads * queries * keys, batch * heads * queries
    moved = batch * keys * (rank + rope_dim) + rows * (2 * rank + rope_dim)
    return Counts(2 * pairs * (2 * rank + rope_dim), 4 * pairs, moved * itemsize + rows * 4)


def cases() -> Iterator[Case]:
    """Every row of the table, as DeepSeek-V2's heads would use it; once per device class with mask and lengths."""
    for target, (bits, width, _, rows), _ in TABLE.each():
        for everything in (False, True) if bits == 16 else (False,):
            dtype = torch.bfloat16 if bits == 16 else torch.float32
            empty = lambda *shape, dtype=dtype: torch.empty(shape, dtype=dtype, device="meta")  # noqa: E731
            q, latent = empty(2, 128, 1, width + 64), empty(2, 4096, width + 64)
            key_mask, lengths = (empty(2, 4096, dtype=torch.bool), empty(2, dtype=torch.int32)) if everything else (None, None)
            shared = split_keys.arguments(
                q, latent[:, None], None, None, None, key_mask, lengths, 0.1, 0.0, -1, 0 if everything else -1, width
            )
            label = f"latent decode {'bf16' if bits == 16 else 'fp32'}{' every option' if everything else ''}"
            yield from split_keys.cases_of(label, TABLE, shared, target, merge=everything)
