"""The area under the ROC curve as a saddle point, and the optimiser that goes down in the weights and up in one number.

Differs from cross-entropy in what it compares: positives with negatives, not each with its own label.
"""

from collections.abc import Iterable

import torch
from jaxtyping import Float
from torch import Tensor, nn

__all__ = ["AUCMinMax", "MIDAM"]


class AUCMinMax(nn.Module):
    r"""The min-max form of the squared-hinge surrogate of the AUC, for scores h of positives (+) and negatives (-):

    .. math::
        \min_{w, a, b} \max_{\alpha \ge 0}\; \mathbb E_+ (h - a)^2 + \mathbb E_- (h - b)^2
        + 2 \alpha (c + \mathbb E_- h - \mathbb E_+ h) - \alpha^2

    a and b become the two means, so the first terms are variances; alpha presses the means apart to the margin c.

    Args:
        margin: c, positive.

    Raises:
        ValueError: a batch without positives or without negatives.

    Source: Zhu et al., arXiv 2305.08040, equation 2 (row 22), after Yuan et al., arXiv 2012.03173.
    """

    def __init__(self, margin: float = 1.0):
        super().__init__()
        if margin <= 0:
            raise ValueError(f"margin must be positive, got {margin}")
        self.margin = margin
        self.a, self.b = nn.Parameter(torch.zeros(())), nn.Parameter(torch.zeros(()))
        self.alpha = nn.Parameter(torch.zeros(()))

    def forward(self, h: Float[Tensor, "batch 1"], labels: Float[Tensor, " batch"]) -> Float[Tensor, ""]:
        positive = labels.bool()
        if positive.all() or not positive.any():
            given = f"{int(positive.sum())} positives of {len(labels)}"
            raise ValueError(f"a batch must hold positive and negative bags, got {given}")
        up, down = h[positive, 0], h[~positive, 0]
        spread = (up - self.a).square().mean() + (down - self.b).square().mean()
        return spread + 2 * self.alpha * (self.margin + down.mean() - up.mean()) - self.alpha.square()


class MIDAM(torch.optim.Optimizer):
    r"""Momentum descent with averaged gradients, and projected ascent for the dual variable of :class:`AUCMinMax`:

    .. math::
        m \leftarrow \beta m + (1 - \beta) g, \quad w \leftarrow w - \eta m; \qquad
        \alpha \leftarrow \max\big(0,\ \alpha + \eta\,(c + \mathbb E_- h - \mathbb E_+ h - \alpha)\big)

    Args:
        params: what to descend in, the a and b of the loss included; its alpha must not be among them.
        loss: the loss whose alpha ascends.
        lr: eta.
        momentum: beta, from 0 to below 1; the first gradient is taken whole.

    Source: Zhu et al., arXiv 2305.08040, algorithm 1 (row 22).
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        loss: AUCMinMax,
        lr: float = 0.1,
        *,
        momentum: float = 0.1,
        weight_decay: float = 0.0,
    ):
        if lr <= 0:
            raise ValueError(f"lr must be positive, got {lr}")
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum must be at least 0 and below 1, got {momentum}")
        params = list(params)
        if any(p is loss.alpha for p in params):
            raise ValueError("params holds the loss's alpha, which ascends: pass the model's parameters with loss.a and loss.b")
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self.dual = loss.alpha

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                g = p.grad.add(p, alpha=group["weight_decay"])
                m = self.state[p].setdefault("average", g.clone())
                m.mul_(group["momentum"]).add_(g, alpha=1 - group["momentum"])
                p.sub_(m, alpha=group["lr"])
        if self.dual.grad is not None:  # the derivative holds a factor 2 that the step absorbs
            self.dual.add_(self.dual.grad, alpha=self.param_groups[0]["lr"] / 2).clamp_(min=0)
            self.dual.grad = None
        return loss
