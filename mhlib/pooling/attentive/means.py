"""Averages under a function f: transform the values, take the weighted sum, transform back.

``lift`` gives f(v) and a note that ``lower``, the inverse of f, needs. In between stands any weighted sum, so an attention
layer becomes a generalized average with its fused path untouched. Masked tokens are lifted to zero.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

__all__ = ["ArithmeticMean", "ExponentialMean", "PowerMean"]

Tokens = Float[Tensor, "batch tokens dim"]
Mask = Bool[Tensor, "batch tokens"]


class ArithmeticMean(nn.Module):
    r"""The plain weighted average, f(v) = v."""

    def lift(self, v: Tokens, key_mask: Mask | None = None) -> tuple[Tokens, Tensor | None]:
        return (v if key_mask is None else torch.where(key_mask[..., None], v, 0.0)), None

    def lower(self, u: Float[Tensor, "batch queries dim"], note: Tensor | None) -> Float[Tensor, "batch queries dim"]:
        return u


class PowerMean(ArithmeticMean):
    r"""The power mean :math:`(\sum_n a_n v_n^\gamma)^{1/\gamma}`: arithmetic at 1, towards the maximum as gamma grows.

    Args:
        gamma: the exponent, not zero. In the alpha of the generalized mean it is (1 - alpha) / 2.
        shift: powers need positive values. True: subtract the smallest number of the sample, over tokens and channels, and
            add eps; the result stays shifted, as in SimPool. False: raise to eps what is smaller, as in GeM.
        eps: the smallest value.
    """

    def __init__(self, gamma: float, *, shift: bool = False, eps: float = 1e-6):
        super().__init__()
        if gamma == 0:
            raise ValueError("gamma must not be 0; the geometric mean is its limit there")
        self.gamma, self.shift, self.eps = gamma, shift, eps

    def lift(self, v: Tokens, key_mask: Mask | None = None) -> tuple[Tokens, Tensor | None]:
        real = True if key_mask is None else key_mask[..., None]
        if self.shift:
            smallest = v if key_mask is None else torch.where(real, v, float("inf"))
            smallest = smallest.amin((1, 2), keepdim=True)
            v = v - torch.where(smallest.isfinite(), smallest, 0.0) + self.eps
        v = v.clamp_min(self.eps)
        if key_mask is not None:
            v = torch.where(real, v, self.eps)
        # In units of each channel's largest value: powers neither overflow nor, all at once, vanish.
        unit = v.detach().amax(1, keepdim=True) if self.gamma > 0 else v.detach().amin(1, keepdim=True)
        lifted = (v / unit) ** self.gamma
        return (lifted if key_mask is None else torch.where(real, lifted, 0.0)), unit

    def lower(self, u: Float[Tensor, "batch queries dim"], note: Tensor | None) -> Float[Tensor, "batch queries dim"]:
        return note * u.clamp_min(torch.finfo(u.dtype).tiny) ** (1 / self.gamma)

    def extra_repr(self) -> str:
        return f"gamma={self.gamma}, shift={self.shift}"


class ExponentialMean(ArithmeticMean):
    r"""The log-sum-exp average :math:`\frac1r \log \sum_n a_n e^{r v_n}`: arithmetic at r = 0, the maximum as r grows."""

    def __init__(self, r: float):
        super().__init__()
        if r == 0:
            raise ValueError("r must not be 0; the arithmetic mean is its limit there")
        self.r = r

    def lift(self, v: Tokens, key_mask: Mask | None = None) -> tuple[Tokens, Tensor | None]:
        scaled = self.r * (v if key_mask is None else torch.where(key_mask[..., None], v, 0.0))
        largest = scaled if key_mask is None else torch.where(key_mask[..., None], scaled, float("-inf"))
        largest = largest.detach().amax(1, keepdim=True)
        largest = torch.where(largest.isfinite(), largest, 0.0)
        lifted = (scaled - largest).exp()
        return (lifted if key_mask is None else torch.where(key_mask[..., None], lifted, 0.0)), largest

    def lower(self, u: Float[Tensor, "batch queries dim"], note: Tensor | None) -> Float[Tensor, "batch queries dim"]:
        return (u.clamp_min(torch.finfo(u.dtype).tiny).log() + note) / self.r

    def extra_repr(self) -> str:
        return f"r={self.r}"
