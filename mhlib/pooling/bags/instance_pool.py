"""The base of bag pools that average probabilities: every instance gets one per class, and a weight of its own.

Differs from attention pooling in what is averaged: probabilities of classes instead of features, so that each instance keeps
a verdict that can be read.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mhlib.functional.precision import accumulator, widened
from mhlib.pooling.base import PoolCall, StreamingPool

__all__ = ["InstancePool"]

Classes = Float[Tensor, "batch tokens classes"]


class InstancePool(StreamingPool):
    r"""A bag's probability of each class as a weighted mean of its instances' probabilities:

    .. math::
        p_n = \sigma(z_n), \quad z_n = W x_n + b, \qquad a_n = \frac{e^{\ell_n}}{\sum_m e^{\ell_m}}, \qquad y = \sum_n a_n p_n

    A subclass says what the log-weights :math:`\ell` are. They need only be known up to a constant, so a bag can be taken in
    pieces.

    Args:
        dim: width of the instances.
        num_classes: number of classes, each with a probability (and weights) of its own.

    Output (batch, classes); weights are (batch, classes, tokens). With ``return_aux``, ``instances`` holds the p_n
    (batch, tokens, classes), zero for padding.
    """

    def __init__(self, dim: int, num_classes: int = 1):
        super().__init__(dim)
        if num_classes < 1:
            raise ValueError(f"num_classes must be at least 1, got {num_classes}")
        self.num_classes = num_classes
        self.score = nn.Linear(dim, num_classes)

    def log_weights(self, z: Classes, x: Float[Tensor, "batch tokens dim"]) -> Classes:
        """The log-weights of instances with logits ``z`` and features ``x``."""
        raise NotImplementedError(f"{type(self).__name__} defines no log_weights(z, x)")

    def pool(self, x: Tensor, key_mask: Tensor | None, call: PoolCall) -> Tensor:
        z, log_w = self._look(x, key_mask)
        keep = None if key_mask is None else key_mask[..., None]
        call.aux["instances"] = (z.sigmoid() if keep is None else z.sigmoid() * keep).to(x.dtype)
        if call.return_weights:
            call.weights = self.shares(z, log_w, keep).mT.to(x.dtype)
        return self.finish(self.fold(self.start(len(x), z), z, log_w, keep)).to(x.dtype)

    def start(self, batch: int, like: Tensor) -> tuple[Tensor, ...]:
        zeros = like.new_zeros(batch, self.num_classes, dtype=accumulator(like.dtype))
        return torch.full_like(zeros, torch.finfo(zeros.dtype).min), zeros, zeros

    def update(self, state: tuple[Tensor, ...], x: Tensor, key_mask: Tensor | None = None) -> tuple[Tensor, ...]:
        return self.fold(state, *self._look(x, key_mask), None if key_mask is None else key_mask[..., None])

    def finish(self, state: tuple[Tensor, ...]) -> Tensor:
        _, total, weighted = state
        return weighted / torch.where(total > 0, total, 1.0)

    def _look(self, x: Tensor, key_mask: Tensor | None) -> tuple[Tensor, Tensor]:
        if key_mask is not None:
            x = torch.where(key_mask[..., None], x, 0.0)
        z = self.score(x)
        z = widened(z)
        return z, self.log_weights(z, x).to(z.dtype)

    def shares(self, z: Classes, log_w: Classes, keep: Tensor | None) -> Classes:
        """The weights a_n of a whole bag."""
        if keep is None:
            return log_w.softmax(1)
        return torch.where(keep, log_w, torch.finfo(log_w.dtype).min).softmax(1) * keep

    def fold(self, state: tuple[Tensor, ...], z: Classes, log_w: Classes, keep: Tensor | None) -> tuple[Tensor, ...]:
        """The state after these instances: the largest log-weight, and the sums of e^l and of e^l p beside it."""
        largest, total, weighted = state
        if keep is not None:
            log_w = torch.where(keep, log_w, torch.finfo(log_w.dtype).min)
        now = torch.maximum(largest, log_w.detach().amax(1))
        w = (log_w - now[:, None]).exp()
        w = w if keep is None else w * keep
        fade = (largest - now).exp()
        return now, fade * total + w.sum(1), fade * weighted + (w * z.sigmoid()).sum(1)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, num_classes={self.num_classes}"
