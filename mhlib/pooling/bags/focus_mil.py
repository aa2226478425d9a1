"""FocusMIL: every instance through a narrow noisy code, one logit from the code, and the largest logit is the bag's.

Differs from max pooling of instance scores in the bottleneck before the score: it has to forget what the label does not need.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from mhlib.pooling.base import PoolCall, StreamingPool
from mhlib.registry import Reduction, register

__all__ = ["FocusMIL"]


def _without_noise():
    pool = FocusMIL(5, hidden=7, code=3).double()
    with torch.no_grad():
        pool.log_variance.weight.zero_()
        pool.log_variance.bias.fill_(-200.0)
    plain = nn.Sequential(pool.encoder, pool.mean, pool.score)
    in_training = lambda x: pool.train()(x)  # noqa: E731
    in_training.dim = pool.dim
    return in_training, lambda x: plain(x).amax(1)


def _one_instance():
    pool = FocusMIL(5, hidden=7, code=3)
    return pool, lambda x: torch.stack([pool(x[:, n : n + 1]) for n in range(x.shape[1])]).amax(0)


@register(
    "focus_mil",
    kind="pool",
    family="pool-mil",
    papers=(42,),
    properties=("invariant", "duplicable", "streams", "compiles"),
    example=lambda: FocusMIL(5, hidden=7, code=3).eval(),
    reductions=(
        Reduction("no noise: the largest score of the instances, also in training", _without_noise),
        Reduction("bags of one instance: the largest of their logits", _one_instance),
    ),
    peers=("torch",),
)
class FocusMIL(StreamingPool):
    r"""Max pooling behind a variational information bottleneck for each instance:

    .. math::
        h_n = \mathrm{ReLU}(W x_n + b), \quad \mu_n = W_\mu h_n, \quad \log \sigma_n^2 = W_\sigma h_n, \quad
        z_n = \mu_n + \sigma_n \odot \epsilon_n, \qquad s_n = w \cdot z_n + b_0, \quad y = \max_n s_n

    (the maps to mean and log-variance have biases too). In training epsilon is standard normal, in evaluation zero. The loss
    (:meth:`loss`) adds beta times the mean Kullback-Leibler divergence of the codes from a standard normal distribution:
    cross-entropy teaches one instance of each bag, the divergence all of them.

    Args:
        dim: width of the instances.
        hidden: width of the encoder's hidden layer.
        code: width of z.

    Output (batch, 1), a logit. With ``return_aux``: ``instances`` (batch, tokens), the logits s_n, the lowest number for
    padding; ``divergence`` (batch,), the mean over a bag's instances. Initialised as ``torch.nn.Linear``.
    Source: Liu et al., arXiv 2408.09449 (row 42).
    """

    #: What takes part in training alone, and so gets no gradient in evaluation.
    only_in_training = ("log_variance",)

    def __init__(self, dim: int, *, hidden: int = 256, code: int = 32):
        super().__init__(dim)
        if hidden < 1 or code < 1:
            raise ValueError(f"hidden and code must be at least 1, got {hidden} and {code}")
        self.encoder = nn.Sequential(nn.Linear(dim, hidden), nn.ReLU())
        self.mean, self.log_variance = nn.Linear(hidden, code), nn.Linear(hidden, code)
        self.score = nn.Linear(code, 1)

    def pool(self, x: Tensor, key_mask: Tensor | None, call: PoolCall) -> Tensor:
        s, divergence = self._look(x, key_mask)
        keep = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if key_mask is None else key_mask
        call.aux["instances"] = torch.where(keep, s, torch.finfo(s.dtype).min)
        call.aux["divergence"] = (divergence * keep).sum(1) / keep.sum(1).clamp_min(1)
        if call.return_weights:
            top = torch.where(keep, s, float("-inf"))
            ties = ((top == top.amax(1, keepdim=True)) & keep).to(s.dtype)
            call.weights = (ties / ties.sum(1, keepdim=True).clamp_min(1))[:, None]
        return self.finish(self._fold(self.start(len(x), s), s, key_mask))

    def start(self, batch: int, like: Tensor) -> tuple[Tensor, ...]:
        return (like.new_full((batch, 1), float("-inf")),)

    def update(self, state: tuple[Tensor, ...], x: Tensor, key_mask: Tensor | None = None) -> tuple[Tensor, ...]:
        return self._fold(state, self._look(x, key_mask)[0], key_mask)

    def finish(self, state: tuple[Tensor, ...]) -> Tensor:
        return torch.where(state[0] > float("-inf"), state[0], 0.0)

    def loss(
        self,
        x: Float[Tensor, "batch tokens dim"],
        labels: Float[Tensor, " batch"],
        key_mask: Bool[Tensor, "batch tokens"] | None = None,
        *,
        beta: float = 1e-3,
    ) -> Float[Tensor, ""]:
        """Cross-entropy of the bags' logits plus ``beta`` times the divergence, the mean over a mini-batch of bags."""
        y, aux = self(x, key_mask, return_aux=True)
        return F.binary_cross_entropy_with_logits(y[:, 0], labels.to(y)) + beta * aux["divergence"].mean()

    def _look(self, x: Tensor, key_mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """The instances' logits and divergences, (batch, tokens) each."""
        h = self.encoder(x if key_mask is None else torch.where(key_mask[..., None], x, 0.0))
        z, log_variance = self.mean(h), self.log_variance(h)
        divergence = 0.5 * (z.square() + log_variance.exp() - 1 - log_variance).sum(-1)
        if self.training:
            z = z + (log_variance / 2).exp() * torch.randn_like(z)
        return self.score(z)[..., 0], divergence

    def _fold(self, state: tuple[Tensor, ...], s: Tensor, key_mask: Tensor | None) -> tuple[Tensor, ...]:
        here = (s if key_mask is None else torch.where(key_mask, s, float("-inf"))).amax(1, keepdim=True)
        return (torch.where(here > state[0], here, state[0]),)
