"""Positions: rotary embedding, ALiBi, learned absolute positions and relative position bias."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

__all__ = ["ALiBi", "LearnedPositions", "RelativePositionBias", "Rotary", "alibi_slopes"]


@dataclass(frozen=True)
class Rotary:
    r"""Rotary position embedding: pair i of a head's numbers is turned by the angle :math:`p\,\theta_i`, p the position.

    The dot product of a turned query and a turned key depends on their distance alone. Su et al., "RoFormer",
    arXiv 2104.09864.

    Args:
        dim: how many numbers of a head are rotated (even). Fewer than the head has: partial rotary, the first ``dim``
            turn and the rest pass.
        base: :math:`\theta_i = \mathrm{base}^{-2i/d}` for pair i, with d = ``dim``.
        interleaved: pairs are neighbours (2i, 2i+1), as in GPT-J, DeepSeek and GGUF files; otherwise halves
            (i, i + dim/2), as in Llama.
        frequencies: the angles per position themselves, one per pair, instead of the formula; or one such tuple per
            head. More heads than tuples share them by groups, as query heads share key heads.
    """

    dim: int
    base: float = 10000.0
    interleaved: bool = False
    frequencies: tuple[float, ...] | tuple[tuple[float, ...], ...] | None = None

    def __post_init__(self) -> None:
        if self.dim < 2 or self.dim % 2:
            raise ValueError(f"rotary embedding turns pairs: dim must be even and at least 2, got {self.dim}")
        for row in self.frequencies if self._per_head else [self.frequencies or ()]:
            if self.frequencies is not None and len(row) != self.dim // 2:
                raise ValueError(f"expected {self.dim // 2} frequencies for dim={self.dim}, got {len(row)}")

    @property
    def _per_head(self) -> bool:
        return self.frequencies is not None and isinstance(self.frequencies[0], tuple)

    def angles(self, positions: Int[Tensor, "*shape"], dtype: torch.dtype = torch.float32) -> Float[Tensor, "..."]:
        """The angle of every pair at every position in radians: ``(*shape, pairs)``, or ``(heads, *shape, pairs)``."""
        if self.frequencies is None:
            pair = torch.arange(self.dim // 2, dtype=dtype, device=positions.device)
            theta = self.base ** (-2 * pair / self.dim)
        else:
            theta = torch.tensor(self.frequencies, dtype=dtype, device=positions.device)
        if self._per_head:
            theta = theta.view(theta.shape[0], *[1] * positions.ndim, theta.shape[1])
        return positions.to(dtype)[..., None] * theta

    def rotate(
        self, x: Float[Tensor, "*batch tokens head_dim"], positions: Int[Tensor, "..."]
    ) -> Float[Tensor, "*batch tokens head_dim"]:
        """Turn ``x``; ``positions`` (tokens,), or with leading axes that broadcast against those of ``x``."""
        if x.shape[-1] < self.dim:
            raise ValueError(f"Rotary(dim={self.dim}) needs heads of at least that width, got x of shape {tuple(x.shape)}")
        # Half precision cannot tell large angles apart, so they are computed in float32 at least.
        angles = self.angles(positions, torch.promote_types(x.dtype, torch.float32))
        if self._per_head:
            angles = angles.repeat_interleave(x.shape[-3] // angles.shape[0], 0)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        turned, rest = x[..., : self.dim], x[..., self.dim :]
        if self.interleaved:
            a, b = turned.unflatten(-1, (-1, 2)).unbind(-1)
            turned = torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)
        else:
            a, b = turned.chunk(2, -1)
            turned = torch.cat([a * cos - b * sin, a * sin + b * cos], -1)
        return turned if rest.shape[-1] == 0 else torch.cat([turned, rest], -1)


def alibi_slopes(num_heads: int) -> Float[Tensor, " heads"]:
    r"""ALiBi's slope per head: :math:`2^{-8h/H}` for h = 1..H when H is a power of two.

    Otherwise those of the largest power of two P below H, then every other slope of 2P heads, as in the released code.
    """
    power = 2 ** math.floor(math.log2(num_heads))
    slopes = [2 ** (-8 * h / power) for h in range(1, power + 1)]
    slopes += [2 ** (-4 * h / power) for h in range(1, 2 * (num_heads - power) + 1, 2)]
    return torch.tensor(slopes)


class ALiBi(nn.Module):
    r"""Attention with linear biases: adds :math:`-m_h\,|i - j|` to the logit of query i and key j; nothing is learned.

    Press, Smith and Lewis, "Train short, test long", arXiv 2108.12409 (there for causal attention, where i - j >= 0).
    Call it with query and key positions; returns (1, heads, queries, keys).
    """

    slopes: Tensor

    def __init__(self, num_heads: int):
        super().__init__()
        self.register_buffer("slopes", alibi_slopes(num_heads), persistent=False)

    def forward(self, q_pos: Int[Tensor, " queries"], k_pos: Int[Tensor, " keys"]) -> Float[Tensor, "1 heads queries keys"]:
        distance = (q_pos[:, None] - k_pos[None, :]).abs()
        return (-self.slopes[:, None, None] * distance)[None]


class RelativePositionBias(nn.Module):
    """A learned bias per head and distance, in T5's buckets: near distances each have their own, far ones share.

    Half of the buckets hold distances below ``num_buckets / 2`` (a quarter each way when ``causal`` is False), the
    other half grow logarithmically up to ``max_distance``; beyond, the last bucket serves. Raffel et al.,
    arXiv 1910.10683. Weights start at zero. Returns (1, heads, queries, keys).
    """

    def __init__(self, num_heads: int, *, num_buckets: int = 32, max_distance: int = 128, causal: bool = False):
        super().__init__()
        if num_buckets < 4 or num_buckets % 2:
            raise ValueError(f"num_buckets must be even and at least 4, got {num_buckets}")
        self.num_buckets, self.max_distance, self.causal = num_buckets, max_distance, causal
        self.weight = nn.Parameter(torch.zeros(num_heads, num_buckets))

    def bucket(self, distance: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
        """The bucket of ``distance`` = query position - key position."""
        if self.causal:
            size, offset, distance = self.num_buckets, 0, distance.clamp_min(0)
        else:
            size = self.num_buckets // 2
            offset, distance = (distance < 0) * size, distance.abs()
        exact = size // 2
        ratio = (distance.clamp_min(1).to(torch.float32) / exact).log() / math.log(self.max_distance / exact)
        far = (exact + (ratio * (size - exact)).to(torch.long)).clamp_max(size - 1)
        return offset + torch.where(distance < exact, distance, far)

    def forward(self, q_pos: Int[Tensor, " queries"], k_pos: Int[Tensor, " keys"]) -> Float[Tensor, "1 heads queries keys"]:
        return self.weight[:, self.bucket(q_pos[:, None] - k_pos[None, :])][None]


class LearnedPositions(nn.Module):
    """A learned vector per absolute position, added to the tokens: ``x + weight[offset : offset + tokens]``.

    Normal initialisation with deviation 0.02, as in BERT. ``offset`` is the number of tokens already decoded.
    """

    def __init__(self, max_tokens: int, dim: int):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(max_tokens, dim) * 0.02)

    def forward(self, x: Float[Tensor, "batch tokens dim"], offset: int = 0) -> Float[Tensor, "batch tokens dim"]:
        end = offset + x.shape[1]
        if end > self.weight.shape[0]:
            raise ValueError(f"LearnedPositions knows {self.weight.shape[0]} positions, position {end - 1} was asked for")
        return x + self.weight[offset:end]
