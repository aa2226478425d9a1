"""Pools whose score of a bag is a function of a mean over its instances: smoothed maximum and attention of scores.

Differ from other bag pools in that the mean stands apart from the function: the mean can be estimated from a few instances,
the function of it cannot.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mhlib.functional.precision import accumulator
from mhlib.pooling.base import PoolCall, StreamingPool
from mhlib.registry import Reduction, register

__all__ = ["AttentionScorePool", "InnerMean", "ScorePool", "SmoothedMaxPool"]

Column = Float[Tensor, "batch 1"]


class InnerMean(NamedTuple):
    r"""What a score is computed from: the log of the mean weight, :math:`\log \frac1N \sum_n e^{g_n}`, and the mean of the
    instances' values under these weights."""

    log_weight: Column
    value: Column


class ScorePool(StreamingPool):
    """A bag's score ``outer(inner(x))``; a subclass gives ``look`` (what an instance adds to the mean) and ``outer``.

    Args:
        dim: width of the instances.
        encoder: instances (batch, tokens, dim) to features (batch, tokens, width); None leaves them as they are.
        width: width of the features, ``dim`` by default.

    Output (batch, 1). With ``return_aux``, ``instances`` holds the instance scores (batch, tokens), zero for padding.
    """

    def __init__(self, dim: int, encoder: nn.Module | None = None, width: int | None = None):
        super().__init__(dim)
        self.encoder = nn.Identity() if encoder is None else encoder
        self.width = dim if width is None else width

    def look(self, e: Float[Tensor, "batch tokens width"]) -> tuple[Tensor, Tensor]:
        """Log-weights g and values of instances with features ``e``, each (batch, tokens)."""
        raise NotImplementedError(f"{type(self).__name__} defines no look(e)")

    def outer(self, mean: InnerMean) -> Column:
        """The score, from the inner mean."""
        raise NotImplementedError(f"{type(self).__name__} defines no outer(mean)")

    def inner(self, x: Float[Tensor, "batch tokens dim"], key_mask: Tensor | None = None) -> InnerMean:
        """The inner mean over these instances: of a whole bag, or of a sample."""
        return self._mean(self.update(self.start(len(x), x), x, key_mask))

    def scores(self, log_w: Tensor, values: Tensor) -> Tensor:
        """Which of the two ranks the instances."""
        return values

    def pool(self, x: Tensor, key_mask: Tensor | None, call: PoolCall) -> Tensor:
        log_w, values = self._look(x, key_mask)
        scores = self.scores(log_w, values)
        call.aux["instances"] = (scores if key_mask is None else torch.where(key_mask, scores, 0.0)).to(x.dtype)
        if call.return_weights:
            masked = log_w if key_mask is None else torch.where(key_mask, log_w, torch.finfo(log_w.dtype).min)
            shares = masked.softmax(1) if key_mask is None else masked.softmax(1) * key_mask
            call.weights = shares[:, None].to(x.dtype)
        return self.finish(self._fold(self.start(len(x), log_w), log_w, values, key_mask)).to(x.dtype)

    def start(self, batch: int, like: Tensor) -> tuple[Tensor, ...]:
        zeros = like.new_zeros(batch, 1, dtype=accumulator(like.dtype))
        return torch.full_like(zeros, torch.finfo(zeros.dtype).min), zeros, zeros

    def update(self, state: tuple[Tensor, ...], x: Tensor, key_mask: Tensor | None = None) -> tuple[Tensor, ...]:
        return self._fold(state, *self._look(x, key_mask), key_mask)

    def finish(self, state: tuple[Tensor, ...]) -> Tensor:
        some = state[2] > 0
        return torch.where(some, self.outer(self._mean(tuple(torch.where(some, t, 0.0) for t in state))), 0.0)

    def _look(self, x: Tensor, key_mask: Tensor | None) -> tuple[Tensor, Tensor]:
        log_w, values = self.look(self.encoder(x if key_mask is None else torch.where(key_mask[..., None], x, 0.0)))
        return log_w.to(accumulator(x.dtype)), values.to(accumulator(x.dtype))

    def _fold(self, state, log_w, values, key_mask):
        """Merge these instances into (log of the summed weights, mean value, count): two parts of one attention."""
        total, value, count = state
        if key_mask is not None:
            log_w = torch.where(key_mask, log_w, torch.finfo(log_w.dtype).min)
        here = log_w.logsumexp(1, keepdim=True)
        mean = (log_w.softmax(1) * values).sum(1, keepdim=True)
        both = torch.logaddexp(total, here)
        new = torch.full_like(count, log_w.shape[1]) if key_mask is None else key_mask.sum(1, keepdim=True).to(count)
        share = torch.where(new > 0, (here - both).exp(), 0.0)
        return both, value + share * (mean - value), count + new

    def _mean(self, state) -> InnerMean:
        total, value, count = state
        return InnerMean(total - count.clamp_min(1).log(), value)


def _log_mean_exp():
    from mhlib.pooling.power.log_sum_exp import LogSumExpPool

    pool = SmoothedMaxPool(5, temperature=0.5, squash=False)
    return pool, lambda x: LogSumExpPool(1, 0.5)(pool.score(x))


def _warm(temperature, reduce):
    def build():
        pool = SmoothedMaxPool(5, temperature=temperature)
        return pool, lambda x: reduce(pool.score(x).sigmoid())

    return build


@register(
    "smoothed_max_pool",
    kind="pool",
    family="pool-mil",
    papers=(22,),
    properties=("invariant", "duplicable", "streams", "compiles"),
    example=lambda: SmoothedMaxPool(5, temperature=0.5),
    reductions=(
        Reduction("log-sum-exp pooling of the instance scores", _log_mean_exp),
        Reduction("a small temperature: the largest score", _warm(1e-6, lambda s: s.amax(1))),
        Reduction("a large temperature: the mean score", _warm(1e6, lambda s: s.mean(1))),
    ),
)
class SmoothedMaxPool(ScorePool):
    r"""Smoothed-max pooling of instance scores :math:`\phi`:
    :math:`h = \tau \log \frac1N \sum_n e^{\phi(x_n) / \tau}`, the logarithm of a mean.

    Args:
        dim, encoder, width: as in :class:`ScorePool`; the scores come from a linear map of the features.
        temperature: tau, positive; 0.1 in the paper.
        squash: take the logistic function of the map. With running means a step is scaled by the weight of a sample over
            that of its bag, a ratio that only bounded scores keep below :math:`e^{1 / \tau}`.

    Source: Zhu et al., arXiv 2305.08040 (row 22).
    """

    def __init__(
        self,
        dim: int,
        encoder: nn.Module | None = None,
        width: int | None = None,
        *,
        temperature: float = 0.1,
        squash: bool = True,
    ):
        super().__init__(dim, encoder, width)
        if temperature <= 0:
            raise ValueError(f"temperature must be positive, got {temperature}")
        self.temperature, self.squash = temperature, squash
        self.score = nn.Linear(self.width, 1)

    def look(self, e):
        phi = self.score(e)[..., 0]
        phi = (phi.sigmoid() if self.squash else phi) / self.temperature
        return phi, torch.zeros_like(phi)

    def scores(self, log_w, values):
        return self.temperature * log_w

    def outer(self, mean):
        return self.temperature * mean.log_weight


def _constant_attention():
    pool = AttentionScorePool(5)
    with torch.no_grad():
        pool.attend[1].weight.zero_()
    return pool, lambda x: pool.score(x).mean(1).sigmoid()


@register(
    "attention_score_pool",
    kind="pool",
    family="pool-mil",
    papers=(22,),
    properties=("invariant", "duplicable", "streams", "compiles"),
    example=lambda: AttentionScorePool(5),
    reductions=(
        Reduction("constant attention: the mean of the scores, squashed", _constant_attention),
        Reduction(
            "attention of features, then the map to a score: the two commute",
            lambda: (pool := AttentionScorePool(5), lambda x: pool.score(pool.attention(x).mT @ x)[:, 0].sigmoid()),
        ),
    ),
    peers=("torch_geometric",),
)
class AttentionScorePool(ScorePool):
    r"""Attention pooling of instance scores :math:`\delta` with the hidden units of attention-based MIL:

    .. math:: g_n = w_a \cdot \tanh(V e_n), \qquad h = \sigma\Big(\frac{\sum_n e^{g_n} \delta_n}{\sum_n e^{g_n}}\Big)

    Args:
        dim, encoder, width: as in :class:`ScorePool`; the scores delta are a linear map of the features e.
        hidden: rows of V, as many as features by default.

    Source: Zhu et al., arXiv 2305.08040 (row 22); the attention is that of Ilse et al., arXiv 1802.04712.
    """

    def __init__(self, dim: int, encoder: nn.Module | None = None, width: int | None = None, *, hidden: int | None = None):
        super().__init__(dim, encoder, width)
        hidden = self.width if hidden is None else hidden
        self.score = nn.Linear(self.width, 1)
        self.attend = nn.Sequential(nn.Sequential(nn.Linear(self.width, hidden), nn.Tanh()), nn.Linear(hidden, 1, bias=False))

    def attention(self, x: Float[Tensor, "batch tokens dim"]) -> Float[Tensor, "batch tokens 1"]:
        """The weights of a whole bag."""
        return self.attend(self.encoder(x)).softmax(1)

    def look(self, e):
        return self.attend(e)[..., 0], self.score(e)[..., 0]

    def outer(self, mean):
        return mean.value.sigmoid()
