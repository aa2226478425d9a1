"""What limits a decoding step: arithmetic, memory traffic or capacity, for attention variants and for experts (row 34).

Everything is counted per cached token and sequence, where attention's share grows without bound with the context.
"""

from dataclasses import dataclass

import torch

from mhlib.cost.devices import Device, roofline
from mhlib.registry import Example, Reduction, register

__all__ = ["DecodeModel", "PerToken", "decode_bottleneck", "dense_intensity", "expert_batch", "per_cached_token"]


@dataclass(frozen=True)
class PerToken:
    """What one cached token costs one layer in one decoding step of one sequence."""

    flops: float
    bytes: float

    @property
    def intensity(self) -> float:
        """FLOP per byte."""
        return self.flops / self.bytes


def per_cached_token(
    *,
    num_heads: int,
    head_dim: int = 0,
    num_kv_heads: int | None = None,
    kv_rank: int = 0,
    rope_dim: int = 0,
    queries: int = 1,
    bytes_per_number: float = 2,
) -> PerToken:
    r"""FLOPs and bytes of attention per cached token.

    Grouped heads (multi-head G = H, multi-query G = 1): :math:`4 H d_h` FLOPs, :math:`2 G d_h e` bytes, so
    :math:`(2/e)\,H/G` FLOP per byte. Absorbed latent attention (``kv_rank`` given): :math:`2H(2 d_c + d_r)` FLOPs for
    :math:`(d_c + d_r)e` bytes.

    Args:
        queries: new tokens per step (more than one with speculative decoding); they share what is read.
        bytes_per_number: size e of a cached number.
    """
    if kv_rank:
        flops, numbers = 2 * num_heads * (2 * kv_rank + rope_dim), kv_rank + rope_dim
    elif head_dim:
        flops, numbers = 4 * num_heads * head_dim, 2 * (num_kv_heads or num_heads) * head_dim
    else:
        raise ValueError("give head_dim (grouped heads) or kv_rank (latent attention)")
    return PerToken(queries * flops, numbers * bytes_per_number)


def dense_intensity(batch: float, rows: int, columns: int, bytes_per_number: float = 2) -> float:
    r"""FLOP per byte of a dense layer on ``batch`` tokens: :math:`2Bmn / e(mn + Bm + Bn)`, about 2B/e for few tokens."""
    return 2 * batch * rows * columns / (bytes_per_number * (rows * columns + batch * rows + batch * columns))


def expert_batch(dense_batch: float, experts: int, active: int) -> float:
    """Tokens that must be pooled so that each expert sees as many as a dense layer at ``dense_batch``: B E / k."""
    if not 1 <= active <= experts:
        raise ValueError(f"active must be between 1 and experts={experts}, got {active}")
    return dense_batch * experts / active


@dataclass(frozen=True)
class DecodeModel:
    """A model as far as decoding is concerned."""

    layers: int
    weight_bytes: float
    attention: PerToken  # per layer

    @property
    def cache_bytes_per_token(self) -> float:
        return self.layers * self.attention.bytes


def decode_bottleneck(model: DecodeModel, context: int, device: str | Device, batch: int | None = None) -> dict[str, float]:
    """The step time of decoding on one device and what binds it.

    Args:
        batch: sequences decoded together; by default as many as fit into the memory beside the weights.

    Returns:
        ``max_batch`` (capacity), ``batch``, seconds of attention spent in arithmetic and in traffic, seconds of reading
        the weights, and the intensity of attention over the device's ridge (above 1: compute binds it).
    """
    device = roofline(device)
    room = device.memory - model.weight_bytes
    max_batch = int(room // (context * model.cache_bytes_per_token)) if room > 0 else 0
    batch = max_batch if batch is None else batch
    tokens = batch * context * model.layers
    return {
        "max_batch": max_batch,
        "batch": batch,
        "compute_seconds": tokens * model.attention.flops / device.flops,
        "cache_seconds": tokens * model.attention.bytes / device.bandwidth,
        "weight_seconds": model.weight_bytes / device.bandwidth,
        "intensity_over_ridge": model.attention.intensity / device.ridge,
    }


def _counted(build, context: int = 1000) -> torch.Tensor:
    """FLOPs and bytes that one more cached token adds to a real layer, as ``mhlib.cost`` counts them."""
    from mhlib import cost

    more, less = (cost.decode(build, length) for length in (context + 1, context))
    return torch.tensor([more.matmul_flops - less.matmul_flops, more.bytes - less.bytes], dtype=torch.float64)


def _formula(**sizes: int) -> torch.Tensor:
    cost = per_cached_token(**sizes)
    return torch.tensor([cost.flops, cost.bytes], dtype=torch.float64)


def _grouped_layer():
    from mhlib.heads import GroupedQueryAttention

    return (
        lambda: _formula(num_heads=8, num_kv_heads=2, head_dim=16),
        lambda: _counted(lambda: GroupedQueryAttention(128, 8, num_kv_heads=2)),
    )


def _latent_layer():
    from mhlib.heads import MultiHeadLatentAttention

    return (
        lambda: _formula(num_heads=8, kv_rank=32, rope_dim=8),
        lambda: _counted(lambda: MultiHeadLatentAttention(128, 8, kv_rank=32, rope_dim=8, execution="absorbed")),
    )


def _all_groups_is_multi_head():
    return (
        lambda: _formula(num_heads=8, num_kv_heads=8, head_dim=16),
        lambda: torch.tensor([4.0 * 8 * 16, 2.0 * 8 * 16 * 2], dtype=torch.float64),
    )


def _no_experts_is_dense():
    return lambda: torch.tensor(expert_batch(48.0, 1, 1)), lambda: torch.tensor(48.0)


register(
    "decode_bottleneck",
    kind="analysis",
    family="systems",
    papers=(34,),
    gradient="none",
    example=lambda: Example(
        decode_bottleneck,
        {"model": DecodeModel(61, 37e9, per_cached_token(num_heads=128, kv_rank=512, rope_dim=64)), "context": 4096, "device": "H100"},
    ),
    reductions=(
        Reduction("grouped heads: what mhlib.cost counts for one more token in the cache", _grouped_layer),
        Reduction("latent attention: what mhlib.cost counts for one more token in the cache", _latent_layer),
        Reduction("as many groups as heads: multi-head attention, 4 H d FLOPs for 4 H d bytes in bf16", _all_groups_is_multi_head),
        Reduction("one expert, always active: a dense layer", _no_experts_is_dense),
    ),
)(decode_bottleneck)
