"""AttSets: every channel of every element has a weight of its own, a softmax over the set.

Differs from attention pooling in the shape of the weights: (tokens, channels) instead of one number per token and head. It
has no query, so it can take its tokens in pieces.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mhlib.pooling.base import PoolCall, StreamingPool
from mhlib.registry import Example, Reduction, register

__all__ = ["AttSets", "AttSetsMaps"]


def _no_scorer_is_mean():
    pool = AttSets(5)
    with torch.no_grad():
        pool.score.weight.zero_()
    return pool, lambda x: x.mean(1)


def _soft_pool():
    pool = AttSets(5)
    with torch.no_grad():
        pool.score.weight.copy_(torch.eye(5))
    return pool, lambda x: (x.softmax(1) * x).sum(1)


def _one_weight_per_element():
    from mhlib.pooling.attentive.query_pool import AttentionPool

    pool, attention = AttSets(8), AttentionPool(8, 1)
    column = torch.randn(8)
    with torch.no_grad():
        pool.score.weight.copy_(column.expand(8, 8))
        attention.query.copy_(column * 8**0.5)
        for proj in (attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj):
            proj.weight.copy_(torch.eye(8))
    return pool, attention


@register(
    "att_sets",
    kind="pool",
    family="pool-attentive",
    papers=(59,),
    properties=("invariant", "duplicable", "streams", "compiles"),
    example=lambda: AttSets(5, num_outputs=2),
    reductions=(
        Reduction("scores of zeros: mean pooling", _no_scorer_is_mean),
        Reduction("the identity as score: the softmax-weighted mean of each channel", _soft_pool),
        Reduction("the same score for all channels: attention pooling with one weight per element", _one_weight_per_element),
    ),
    peers=("torch_geometric",),
)
class AttSets(StreamingPool):
    r"""AttSets, attentional aggregation per channel:

    .. math:: c = x W, \qquad s_{nd} = \frac{e^{c_{nd}}}{\sum_m e^{c_{md}}}, \qquad y_d = \sum_n s_{nd} x_{nd}

    A bias of the scores would cancel in the softmax over the set, so there is none. A set of one element pools to itself,
    whatever W.

    Args:
        dim: width D of the elements.
        num_outputs: number P of pooled vectors, each with scores of its own; output (batch, dim) with one, else
            (batch, P, dim). (The released code lays them side by side: ``.flatten(1)``.)
        tanh: squash the scores to -1..1, the second option of the released code.

    Weights are (batch, outputs, dim, tokens). Source: Yang et al., arXiv 1808.00758 (row 59).
    """

    def __init__(self, dim: int, *, num_outputs: int = 1, tanh: bool = False):
        super().__init__(dim)
        if num_outputs < 1:
            raise ValueError(f"num_outputs must be at least 1, got {num_outputs}")
        self.num_outputs, self.tanh = num_outputs, tanh
        self.score = nn.Linear(dim, num_outputs * dim, bias=False)

    def scores(self, x: Float[Tensor, "batch tokens dim"]) -> Float[Tensor, "batch tokens outputs dim"]:
        c = self.score(x).unflatten(-1, (self.num_outputs, self.dim))
        return c.tanh() if self.tanh else c

    def pool(self, x: Tensor, key_mask: Tensor | None, call: PoolCall) -> Tensor:
        if call.return_weights:
            c = self.scores(x) if key_mask is None else _masked(self.scores(x), key_mask)
            weights = c.softmax(1) if key_mask is None else c.softmax(1) * key_mask[..., None, None]
            call.weights = weights.permute(0, 2, 3, 1)
        return super().pool(x, key_mask, call)

    def start(self, batch: int, like: Tensor) -> tuple[Tensor, ...]:
        zeros = like.new_zeros(batch, self.num_outputs, self.dim)
        return torch.full_like(zeros, torch.finfo(like.dtype).min), zeros, zeros

    def update(self, state: tuple[Tensor, ...], x: Tensor, key_mask: Tensor | None = None) -> tuple[Tensor, ...]:
        largest, total, weighted = state
        c = self.scores(x)
        if key_mask is not None:
            c = _masked(c, key_mask)
            x = torch.where(key_mask[..., None], x, 0.0)
        now = torch.maximum(largest, c.detach().amax(1))
        exps = (c - now[:, None]).exp()
        if key_mask is not None:
            exps = exps * key_mask[..., None, None]
        fade = (largest - now).exp()
        return now, fade * total + exps.sum(1), fade * weighted + (exps * x[:, :, None]).sum(1)

    def finish(self, state: tuple[Tensor, ...]) -> Tensor:
        _, total, weighted = state
        y = weighted / torch.where(total > 0, total, 1.0)
        return y[:, 0] if self.num_outputs == 1 else y


def _masked(scores: Tensor, key_mask: Tensor) -> Tensor:
    return torch.where(key_mask[..., None, None], scores, torch.finfo(scores.dtype).min)


def _maps_example() -> Example:
    pool, x = AttSetsMaps(2).double(), torch.randn(2, 3, 2, 4, 5, dtype=torch.float64)
    return Example(lambda x: AttSetsMaps.forward(pool.to(x.dtype), x), {"x": x})


def _maps_without_neighbours():
    maps, x = AttSetsMaps(2, kernel_size=1).double(), torch.randn(2, 3, 2, 4, 5, dtype=torch.float64)
    flat = AttSets(2).double()
    with torch.no_grad():
        flat.score.weight.copy_(maps.score.weight[:, :, 0, 0])

    def each_place():
        places = x.permute(0, 3, 4, 1, 2).flatten(0, 2)
        return flat(places).unflatten(0, (2, 4, 5)).permute(0, 3, 1, 2)

    return lambda: maps(x), each_place


@register(
    "att_sets_maps",
    kind="function",
    family="pool-attentive",
    papers=(59,),
    example=_maps_example,
    reductions=(Reduction("a kernel of one pixel: AttSets at each place", _maps_without_neighbours),),
)
class AttSetsMaps(nn.Module):
    r"""AttSets for sets of maps: a k x k convolution scores every channel at every place, a softmax runs over the set.

    Args:
        channels: channels of each element's map.
        kernel_size: width of the convolution, odd.

    Input (batch, elements, channels, height, width), output (batch, channels, height, width).
    Source: Yang et al., arXiv 1808.00758, the conv2d form (row 59).
    """

    def __init__(self, channels: int, kernel_size: int = 3):
        super().__init__()
        if kernel_size % 2 == 0:
            raise ValueError(f"kernel_size must be odd, so that maps keep their size, got {kernel_size}")
        self.channels = channels
        self.score = nn.Conv2d(channels, channels, kernel_size, padding=kernel_size // 2, bias=False)

    def forward(
        self, x: Float[Tensor, "batch elements channels height width"]
    ) -> Float[Tensor, "batch channels height width"]:
        if x.ndim != 5 or x.shape[2] != self.channels:
            raise ValueError(f"AttSetsMaps wants (batch, elements, {self.channels}, height, width), got {tuple(x.shape)}")
        scores = self.score(x.flatten(0, 1)).unflatten(0, x.shape[:2])
        return (scores.softmax(1) * x).sum(1)
