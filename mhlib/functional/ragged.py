"""Sequences of different lengths without padding: the real tokens of a batch in one matrix, and attention within each sequence.

What works on tokens one by one (projections, norms, feed-forward layers) needs no change: it sees a matrix with fewer rows.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from mhlib.functional.attention import attention
from mhlib.kernels.targets import available
from mhlib.registry import Example, Reduction, register

__all__ = ["Packed", "pack", "ragged_attention"]


class Packed(NamedTuple):
    """The real tokens of a batch.

    Args:
        rows: (total, dim), sequence after sequence.
        cu_seqlens: (batch + 1), where each sequence begins among the rows, and their number at the end; int32.
        index: (total,), the place of each row in the batch, b x tokens + i.
        shape: (batch, tokens) of the padded batch.
    """

    rows: Tensor
    cu_seqlens: Tensor
    index: Tensor
    shape: tuple[int, int]

    def unpack(self, rows: Tensor | None = None) -> Tensor:
        """The padded batch (batch, tokens, dim) again, of these rows or of others made from them; padding is zero."""
        rows = self.rows if rows is None else rows
        batch, tokens = self.shape
        return rows.new_zeros(batch * tokens, *rows.shape[1:]).index_copy(0, self.index, rows).unflatten(0, self.shape)


def pack(x: Float[Tensor, "batch tokens dim"], key_mask: Bool[Tensor, "batch tokens"]) -> Packed:
    r"""Leave the padding out: :math:`\mathrm{off}_{b+1} = \mathrm{off}_b + n_b`, row :math:`\mathrm{off}_b + i` is real token i
    of sequence b.

    Args:
        x: a padded batch.
        key_mask: True = a real token; padding may be anywhere.

    Raises:
        ValueError: ``key_mask`` is not boolean (batch, tokens).

    Source: Zhai et al., "ByteTransformer", arXiv 2210.03052 (row 280).
    """
    if key_mask.dtype != torch.bool or key_mask.shape != x.shape[:2]:
        raise ValueError(f"key_mask must be boolean (batch, tokens) = {tuple(x.shape[:2])}, got {key_mask.dtype} {tuple(key_mask.shape)}")
    index = key_mask.flatten().nonzero()[:, 0]
    cu_seqlens = F.pad(key_mask.sum(1).cumsum(0), (1, 0)).int()
    return Packed(x.flatten(0, 1)[index], cu_seqlens, index, (x.shape[0], x.shape[1]))


LENGTHS = (4, 0, 5, 2)


def _problem(lengths: tuple[int, ...] = LENGTHS) -> tuple[dict[str, Tensor], Tensor]:
    """Padded queries, keys and values (batch, heads, tokens, width), and which tokens are real."""
    generator = torch.Generator().manual_seed(torch.initial_seed())
    longest = max(lengths)
    make = lambda heads, width: torch.randn(len(lengths), heads, longest, width, dtype=torch.float64, generator=generator)  # noqa: E731
    key_mask = torch.arange(longest) < torch.tensor(lengths)[:, None]
    return {"q": make(4, 8), "k": make(2, 8), "v": make(2, 6)}, key_mask


def _packed(padded: dict[str, Tensor], key_mask: Tensor) -> tuple[dict[str, Tensor], Packed]:
    """Heads first, as :func:`ragged_attention` takes them."""
    parts = {name: pack(x.transpose(1, 2).flatten(2), key_mask) for name, x in padded.items()}
    rows = {name: parts[name].rows.unflatten(1, (x.shape[1], -1)).transpose(0, 1) for name, x in padded.items()}
    return rows, parts["q"]


def _ragged_is_padded():
    padded, key_mask = _problem()
    rows, packed = _packed(padded, key_mask)

    def ragged() -> Tensor:
        out = ragged_attention(**rows, cu_seqlens=packed.cu_seqlens)
        return packed.unpack(out.transpose(0, 1))

    def masked() -> Tensor:
        out = attention(**padded, mask=key_mask[:, None, None], backend="reference").transpose(1, 2)
        return torch.where(key_mask[:, :, None, None], out, 0.0)

    return ragged, masked


def _equal_lengths_are_a_batch():
    padded, key_mask = _problem((5, 5, 5))
    rows, packed = _packed(padded, key_mask)
    ragged = lambda: packed.unpack(ragged_attention(**rows, cu_seqlens=packed.cu_seqlens, causal=True).transpose(0, 1))  # noqa: E731
    return ragged, lambda: attention(**padded, causal=True, backend="reference").transpose(1, 2)


def _example() -> Example:
    rows, packed = _packed(*_problem())
    return Example(ragged_attention, rows | {"cu_seqlens": packed.cu_seqlens})


@register(
    "ragged_attention",
    kind="function",
    family="systems",
    stage="score, normalize, aggregate",
    papers=(280,),
    example=_example,
    reductions=(
        Reduction("packed, attended to and unpacked: the padded batch with its mask, padding zero", _ragged_is_padded),
        Reduction("all lengths equal: a batch", _equal_lengths_are_a_batch),
    ),
    peers=("torch",),
)
def ragged_attention(
    q: Float[Tensor, "heads total head_dim"],
    k: Float[Tensor, "kv_heads total_k head_dim"],
    v: Float[Tensor, "kv_heads total_k value_dim"],
    cu_seqlens: Int[Tensor, " offsets"],
    *,
    cu_seqlens_k: Int[Tensor, " offsets"] | None = None,
    scale: float | None = None,
    causal: bool = False,
    window: int | tuple[int | None, int | None] | None = None,
    backend: str = "auto",
) -> Float[Tensor, "heads total value_dim"]:
    r"""Padding-free attention: each sequence attends to itself, its tokens lie one after the other, none are padding.

    Sequence b owns rows :math:`\mathrm{off}_b, \dots, \mathrm{off}_{b+1} - 1`, so the work is :math:`\sum_b n_b^2` instead of
    :math:`B \max_b n_b^2`, and no mask is needed.

    Args:
        q, k, v: queries, keys and values of all sequences; fewer key heads than heads are shared by groups.
        cu_seqlens: off, as :func:`pack` makes it.
        cu_seqlens_k: where each sequence begins among the keys; ``cu_seqlens`` by default.
        scale, causal, window: as in :func:`mhlib.attention`, within each sequence.
        backend: "triton" is one kernel over all sequences, which does not need the lengths on the host; any other name of
            :func:`mhlib.attention` goes through the sequences one by one; "auto" takes the kernel on CUDA where it can.

    Returns:
        (heads, total, value_dim).

    Raises:
        ValueError: the offsets do not rise from 0 to the number of rows (with "triton": unless their number is wrong).

    Source: Zhai et al., "ByteTransformer", arXiv 2210.03052 (row 280).
    """
    cu_seqlens_k = cu_seqlens if cu_seqlens_k is None else cu_seqlens_k
    options = dict(scale=scale, causal=causal, window=window)
    if backend == "triton" or backend == "auto" and q.device.type == "cuda" and available(q.device):
        from mhlib.kernels import flash_attention
        from mhlib.kernels.flash_attention import supports

        if backend == "triton" or supports(q, k, v):
            return flash_attention(q, k, v, cu_seqlens=cu_seqlens, cu_seqlens_k=cu_seqlens_k, **options)
    rows, columns = _slices("cu_seqlens", cu_seqlens, q), _slices("cu_seqlens_k", cu_seqlens_k, k)
    if len(rows) != len(columns):
        raise ValueError(f"queries and keys must have as many sequences, got {len(rows)} and {len(columns)}")
    parts = [
        attention(q[None, :, own], k[None, :, others], v[None, :, others], backend=backend, **options)[0]
        for own, others in zip(rows, columns)
        if own.stop > own.start
    ]
    return torch.cat(parts, 1) if parts else q.new_zeros(q.shape[0], 0, v.shape[-1])


def _slices(name: str, offsets: Tensor, x: Tensor) -> list[slice]:
    at = offsets.tolist()
    if not at or at[0] != 0 or at[-1] != x.shape[1] or any(a > b for a, b in zip(at, at[1:])):
        raise ValueError(f"{name} must rise from 0 to the number of rows, {x.shape[1]}, got {at}")
    return [slice(a, b) for a, b in zip(at, at[1:])]
