"""Normalizers: how a row of logits becomes a row of attention weights.

Each takes ``logits`` with the keys on the last axis and an optional boolean ``mask`` (True = may attend) that broadcasts
against them. A masked key gets weight zero, whatever its logit holds; a row with nothing to attend to gets zeros and no
gradient, never NaN.
"""

import math
from collections.abc import Callable
from functools import partial, wraps

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mhlib.functional.precision import widened

__all__ = [
    "entmax",
    "entmax15",
    "get_normalizer",
    "relu",
    "sigmoid",
    "sink_softmax",
    "softmax",
    "softmax_one",
    "sparsemax",
]

Normalizer = Callable[[Tensor, Tensor | None], Tensor]


def _precise(normalizer: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Decorator: computes in float32 at least and returns the dtype of the logits; rows without a key are left as they are."""

    @wraps(normalizer)
    def wide(logits: Tensor, mask: Tensor | None = None, **options) -> Tensor:
        return logits if logits.shape[-1] == 0 else normalizer(widened(logits), mask, **options).to(logits.dtype)

    return wide


def softmax(logits: Float[Tensor, "*rows keys"], mask: Bool[Tensor, "..."] | None = None) -> Float[Tensor, "*rows keys"]:
    r"""Softmax: :math:`w_i = e^{z_i} / \sum_j e^{z_j}` over the keys that the mask leaves."""
    if mask is None:
        return logits.softmax(-1)
    # The lowest finite number rather than -inf: a row without keys stays finite, in the backward pass too.
    floor = torch.finfo(logits.dtype).min
    return logits.masked_fill(~mask, floor).softmax(-1).masked_fill(~mask, 0.0)


def sink_softmax(
    logits: Float[Tensor, "batch heads queries keys"],
    mask: Bool[Tensor, "..."] | None = None,
    *,
    sink: Float[Tensor, " heads"],
) -> Float[Tensor, "batch heads queries keys"]:
    r"""Softmax with one more logit per head, whose weight is thrown away:
    :math:`w_i = e^{z_i} / (e^{s_h} + \sum_j e^{z_j})`.

    A head can so attend to nothing. This is the learned sink of the gpt-oss models (OpenAI, 2025).
    """
    column = sink.view(-1, 1, 1).to(logits.dtype).expand(*logits.shape[:-1], 1)
    with_sink = torch.cat([logits, column], -1)
    if mask is not None:
        always = mask.new_ones(()).expand(*mask.shape[:-1], 1)
        mask = torch.cat([mask.expand(*mask.shape[:-1], logits.shape[-1]), always], -1)
    return softmax(with_sink, mask)[..., :-1]


@_precise
def softmax_one(logits: Float[Tensor, "*rows keys"], mask: Bool[Tensor, "..."] | None = None) -> Float[Tensor, "*rows keys"]:
    r"""Softmax with a zero logit that is always there to attend to: :math:`w_i = e^{z_i} / (1 + \sum_j e^{z_j})`.

    Miller, "Attention is off by one", 2023. It equals :func:`sink_softmax` with every sink at zero.
    """
    if mask is not None:
        logits = logits.masked_fill(~mask, torch.finfo(logits.dtype).min)
    peak = logits.detach().amax(-1, keepdim=True).clamp_min(0.0)
    exps = (logits - peak).exp()
    weights = exps / (exps.sum(-1, keepdim=True) + (-peak).exp())
    return weights if mask is None else weights.masked_fill(~mask, 0.0)


def _count(logits: Tensor, mask: Tensor | None) -> Tensor:
    """How many keys each row may attend to, at least one; broadcasts against the logits."""
    if mask is None:
        return logits.new_tensor(logits.shape[-1])
    keys = mask.expand(*mask.shape[:-1], logits.shape[-1])
    return keys.sum(-1, keepdim=True).clamp_min(1).to(logits.dtype)


@_precise
def relu(logits: Float[Tensor, "*rows keys"], mask: Bool[Tensor, "..."] | None = None) -> Float[Tensor, "*rows keys"]:
    r"""ReLU attention: :math:`w_i = \max(z_i, 0) / n` with n the number of keys that the row may attend to.

    Wortsman et al., "Replacing softmax with ReLU in vision transformers", arXiv 2309.08586. Rows need not sum to one.
    """
    weights = logits.relu() / _count(logits, mask)
    return weights if mask is None else weights.masked_fill(~mask, 0.0)


@_precise
def sigmoid(
    logits: Float[Tensor, "*rows keys"], mask: Bool[Tensor, "..."] | None = None, *, bias: float | Tensor | None = None
) -> Float[Tensor, "*rows keys"]:
    r"""Sigmoid attention: :math:`w_i = \sigma(z_i + b)`, by default with :math:`b = -\log n`, n the number of keys.

    Ramapuram et al., "Theory, analysis, and best practices for sigmoid self-attention", arXiv 2409.04431. Each key is
    weighed on its own, so rows need not sum to one.
    """
    if bias is None:
        bias = -_count(logits, mask).log()
    weights = (logits + bias).sigmoid()
    return weights if mask is None else weights.masked_fill(~mask, 0.0)


def _below_peak(logits: Tensor, mask: Tensor | None, floor: float) -> Tensor:
    """Logits minus their row's largest, cut off at ``floor``; masked keys lie at the floor.

    Entmax gives weight zero to all that lies far enough below the largest logit, so the cut changes nothing and keeps
    every number finite.
    """
    if mask is not None:
        logits = logits.masked_fill(~mask, torch.finfo(logits.dtype).min)
    shifted = (logits - logits.detach().amax(-1, keepdim=True)).clamp_min(floor)
    return shifted if mask is None else shifted.masked_fill(~mask, floor)


@_precise
def sparsemax(logits: Float[Tensor, "*rows keys"], mask: Bool[Tensor, "..."] | None = None) -> Float[Tensor, "*rows keys"]:
    r"""Sparsemax, the Euclidean projection of the logits onto the simplex: :math:`w_i = \max(z_i - \tau, 0)`.

    The threshold :math:`\tau = (\sum_{i \in S} z_i - 1) / |S|` makes a row sum to one; S holds the keys above it.
    Martins and Astudillo, arXiv 1602.02068. Entmax with alpha = 2.
    """
    z = _below_peak(logits, mask, -2.0)
    with torch.no_grad():  # the support does not move for a small change of the logits, so it needs no gradient
        ordered = z.sort(-1, descending=True).values
        rank = torch.arange(1, z.shape[-1] + 1, dtype=z.dtype, device=z.device)
        size = (1 + rank * ordered > ordered.cumsum(-1)).sum(-1, keepdim=True)
        support = z >= ordered.gather(-1, size - 1)
    tau = (torch.where(support, z, 0.0).sum(-1, keepdim=True) - 1) / support.sum(-1, keepdim=True)
    weights = torch.where(support, z - tau, 0.0)
    return weights if mask is None else weights.masked_fill(~mask, 0.0)


@_precise
def entmax15(logits: Float[Tensor, "*rows keys"], mask: Bool[Tensor, "..."] | None = None) -> Float[Tensor, "*rows keys"]:
    r"""1.5-entmax: :math:`w_i = \max(z_i / 2 - \tau, 0)^2`, sparse like sparsemax and smooth like softmax.

    Peters, Niculae and Martins, arXiv 1905.05702. The threshold has a closed form once the support S is known: with
    mean and variance of the halved logits over S, :math:`\tau = \mathrm{mean} - \sqrt{1/|S| - \mathrm{var}}`.
    """
    z = _below_peak(logits / 2, mask, -2.0)
    with torch.no_grad():
        ordered = z.sort(-1, descending=True).values
        rank = torch.arange(1, z.shape[-1] + 1, dtype=z.dtype, device=z.device)
        mean = ordered.cumsum(-1) / rank
        spread = ordered.square().cumsum(-1) - rank * mean.square()
        tau = mean - ((1 - spread) / rank).clamp_min(0).sqrt()
        size = (tau <= ordered).sum(-1, keepdim=True)
        support = z >= ordered.gather(-1, size - 1)
    size = support.sum(-1, keepdim=True)
    mean = torch.where(support, z, 0.0).sum(-1, keepdim=True) / size
    spread = torch.where(support, z - mean, 0.0).square().sum(-1, keepdim=True)
    # The clamp acts only on rounding: over a true support the variance stays below 1/|S|.
    tau = mean - ((1 - spread) / size).clamp_min(torch.finfo(z.dtype).tiny).sqrt()
    weights = torch.where(support, (z - tau).clamp_min(0), 0.0).square()
    return weights if mask is None else weights.masked_fill(~mask, 0.0)


@_precise
def entmax(
    logits: Float[Tensor, "*rows keys"],
    mask: Bool[Tensor, "..."] | None = None,
    *,
    alpha: float | Tensor = 1.5,
    iterations: int = 60,
) -> Float[Tensor, "*rows keys"]:
    r""":math:`\alpha`-entmax: :math:`w_i = [1 + (\alpha - 1)(z_i - \tau)]_+^{1/(\alpha - 1)}`, tau such that a row sums
    to one. Softmax at alpha = 1, sparsemax at alpha = 2.

    ``alpha`` (at least 1; a smaller one counts as 1) may be a tensor that broadcasts against the logits with one key, such as (heads, 1, 1) for one
    learned alpha per head (Correia, Niculae and Martins, arXiv 1909.00015), and receives a gradient. The threshold is
    found by bisection and gets its derivative from one Newton step (the implicit function theorem).
    """
    alpha = torch.as_tensor(alpha, dtype=logits.dtype, device=logits.device)
    # Below, log1p(a x) / a is accurate however small a is; only a = 0 itself has to be kept away.
    # Where it is raised the gradient passes on, so that a learned alpha can leave 1.
    a = alpha - 1 + (1e-6 - (alpha - 1)).clamp_min(0).detach()
    if mask is not None:
        logits = logits.masked_fill(~mask, torch.finfo(logits.dtype).min)
    z = (logits - logits.detach().amax(-1, keepdim=True)).clamp_min(-1e4)

    def power(tau: Tensor) -> tuple[Tensor, Tensor]:
        base = a * (z - tau)
        inside = base > -1
        if mask is not None:
            inside = inside & mask
        log = torch.log1p(torch.where(inside, base, 0.0))
        weights = torch.where(inside, torch.exp(log / a), 0.0)
        slope = torch.where(inside, torch.exp(log * (1 / a - 1)), 0.0)  # -d weights / d tau
        return weights, slope

    with torch.no_grad():
        low = torch.zeros_like(z[..., :1] * a)
        high = -torch.expm1(-a * math.log(z.shape[-1])) / a + low  # tau of a uniform row
        for _ in range(iterations):
            middle = (low + high) / 2
            too_small = power(middle)[0].sum(-1, keepdim=True) >= 1
            low, high = torch.where(too_small, middle, low), torch.where(too_small, high, middle)
    weights, slope = power(low)
    slope = slope.sum(-1, keepdim=True).detach()
    step = (weights.sum(-1, keepdim=True) - 1) / torch.where(slope > 0, slope, 1.0)
    weights, _ = power(low + step)
    return weights if mask is None else weights.masked_fill(~mask, 0.0)


_BY_NAME: dict[str, Normalizer] = {
    "softmax": softmax,
    "softmax_one": softmax_one,
    "relu": relu,
    "sigmoid": sigmoid,
    "sparsemax": sparsemax,
    "entmax15": entmax15,
}


def get_normalizer(normalizer: str | Normalizer) -> Normalizer:
    """The normalizer of that name; a callable ``(logits, mask) -> weights`` is returned as it is.

    What needs a parameter is given as a partial: ``partial(sink_softmax, sink=s)``, ``partial(entmax, alpha=a)``.
    """
    if callable(normalizer):
        return normalizer
    if normalizer in _BY_NAME:
        return _BY_NAME[normalizer]
    raise ValueError(
        f"normalizer must be one of {', '.join(_BY_NAME)} or a callable (logits, mask) -> weights, got {normalizer!r}; "
        "for learned parameters pass functools.partial(sink_softmax, sink=...) or partial(entmax, alpha=...)"
    )


def sink_of(normalizer: Normalizer, heads: int, like: Tensor) -> Tensor | None:
    """The per-head sink logit of a softmax with a sink (zeros for softmax_one); None for all other normalizers.

    Fused implementations use it: a sink only adds one term to the running sum of exponentials.
    """
    if normalizer is softmax_one:
        return like.new_zeros(heads)
    if isinstance(normalizer, partial) and normalizer.func is sink_softmax:
        return normalizer.keywords["sink"]
    return None
