"""Exercise of the chapter on pooling as attention."""

from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from mhlib.exercises.declare import Random, exercise

EPS = 1e-6  # of the shift


def _cases(random: Random):
    for tokens, dim, gamma in ((4, 3, 1.25), (5, 4, 2.0), (1, 3, 1.25), (7, 5, 1.0), (6, 4, random.uniform(2.5, 4.0))):
        yield random.normal(tokens, dim) + 1, random.normal(dim, dim), random.normal(dim, dim), gamma


def _norm(x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:])


def _average(logits: Tensor, v: Tensor, gamma: float) -> Tensor:
    return (logits.softmax(0) @ v.pow(gamma)).pow(1 / gamma)


def _shifted(v: Tensor) -> Tensor:
    return v - v.min() + EPS


def _logits(x: Tensor, w_q: Tensor, w_k: Tensor) -> Tensor:
    return _norm(x) @ w_k @ (x.mean(0) @ w_q) * x.shape[1] ** -0.5


@exercise(
    "sim_pool",
    cases=_cases,
    mistakes=(
        (
            "The query is the mean of x as it came in; the layer norm is for keys and values only.",
            lambda x, w_q, w_k, g: _average(
                _norm(x) @ w_k @ (_norm(x).mean(0) @ w_q) * x.shape[1] ** -0.5, _shifted(_norm(x)), g
            ),
        ),
        (
            "Divide the logits by the root of the width before the softmax.",
            lambda x, w_q, w_k, g: _average(_logits(x, w_q, w_k) * x.shape[1] ** 0.5, _shifted(_norm(x)), g),
        ),
        (
            "The minimum is one number, over tokens and channels together, not one per channel.",
            lambda x, w_q, w_k, g: _average(_logits(x, w_q, w_k), _norm(x) - _norm(x).amin(0) + EPS, g),
        ),
        (
            "Keys and values are the normalised tokens; here they are the tokens themselves.",
            lambda x, w_q, w_k, g: _average(x @ w_k @ (x.mean(0) @ w_q) * x.shape[1] ** -0.5, _shifted(x), g),
        ),
        (
            "The root is missing: raise the weighted sum of the powers to 1 / gamma.",
            lambda x, w_q, w_k, g: sim_pool(x, w_q, w_k, g).pow(g),
        ),
        (
            "Values go into the average as they are; SimPool has no map for them, W_K is for the keys only.",
            lambda x, w_q, w_k, g: _average(_logits(x, w_q, w_k), _shifted(_norm(x) @ w_k), g),
        ),
        (
            "The result stays shifted: do not add the minimum back.",
            lambda x, w_q, w_k, g: sim_pool(x, w_q, w_k, g) + _norm(x).min() - EPS,
        ),
    ),
)
def sim_pool(
    x: Float[Tensor, "tokens dim"], w_q: Float[Tensor, "dim dim"], w_k: Float[Tensor, "dim dim"], gamma: float
) -> Float[Tensor, " dim"]:
    """SimPool of one set: the mean asks, normalised tokens answer and are averaged under a power."""
    return _average(_logits(x, w_q, w_k), _shifted(_norm(x)), gamma)
