"""Which attention patterns a head of a given width can form: the low-rank bottleneck (Bhojanapalli et al., row 73)."""

import torch
from jaxtyping import Float
from torch import Tensor

from mhlib.functional.attention import attention
from mhlib.registry import Example, Reduction, register

__all__ = ["fit_attention", "nearest_pattern"]


def _tokens_and_pattern(tokens: int = 6, dim: int = 9) -> dict[str, Tensor]:
    x = torch.randn(tokens, dim, dtype=torch.float64)
    return {"x": x, "pattern": torch.randn(tokens, tokens, dtype=torch.float64).softmax(-1)}


def _wide_enough_is_exact():
    problem = _tokens_and_pattern()

    def formed() -> Tensor:
        w_q, w_k = fit_attention(**problem, head_dim=6)
        q, k = (problem["x"] @ w for w in (w_q, w_k))
        return attention(q[None, None], k[None, None], k[None, None], return_weights=True)[1][0, 0]

    return formed, lambda: problem["pattern"]


@register(
    "fit_attention",
    kind="analysis",
    family="projection",
    papers=(73,),
    gradient="none",
    example=lambda: Example(fit_attention, _tokens_and_pattern() | {"head_dim": 6}),
    reductions=(Reduction("head_dim = tokens: the head attends exactly as asked", _wide_enough_is_exact),),
)
def fit_attention(
    x: Float[Tensor, "tokens dim"], pattern: Float[Tensor, "tokens tokens"], head_dim: int
) -> tuple[Float[Tensor, "dim head_dim"], Float[Tensor, "dim head_dim"]]:
    r"""Query and key projections with which one head attends to ``x`` in a given pattern P.

    With linearly independent tokens, :math:`W_Q = X^{+} U` and :math:`W_K = X^{+} V` give the logits
    :math:`U V^\top / \sqrt{d_h}`, for any U, V. A singular value decomposition of :math:`\sqrt{d_h} \log P` splits it
    into :math:`U V^\top` exactly when head_dim is at least its rank, at most the number of tokens; otherwise it is cut
    off and the pattern is only approached.

    Args:
        x: tokens, linearly independent (so no more of them than ``dim``).
        pattern: positive rows that sum to one.
        head_dim: width of the head.

    Source: Bhojanapalli et al., "Low-rank bottleneck in multi-head attention models", arXiv 2002.07028 (row 73, theorem 1).
    """
    if x.shape[0] > x.shape[1]:
        raise ValueError(f"{x.shape[0]} tokens of width {x.shape[1]} cannot be linearly independent; give at most {x.shape[1]}")
    if not (pattern > 0).all():
        raise ValueError("pattern must be positive everywhere: softmax gives no exact zeros")
    u, s, vt = torch.linalg.svd(head_dim**0.5 * pattern.log())
    left, right = u * s.sqrt(), vt.mT * s.sqrt()
    inverse = torch.linalg.pinv(x)
    short = max(0, head_dim - len(s))
    return tuple(torch.nn.functional.pad(inverse @ side[:, :head_dim], (0, short)) for side in (left, right))


def nearest_pattern(
    pattern: Float[Tensor, "tokens tokens"], head_dim: int, *, steps: int = 200
) -> Float[Tensor, "tokens tokens"]:
    """The pattern nearest to a given one, in mean Kullback-Leibler divergence, that a head of that width can form.

    Found by L-BFGS on queries and keys themselves, as tokens can be anything; the start is the best low-rank
    approximation of the centred log pattern, because a softmax does not see what is added to a whole row. A local
    optimum: an upper bound on the divergence.
    """
    target = pattern.log()
    centred = target - target.mean(-1, keepdim=True)
    u, s, vt = torch.linalg.svd(centred)
    q, k = ((side[:, :head_dim] * s[:head_dim].sqrt()).contiguous().requires_grad_() for side in (u, vt.mT))
    optimizer = torch.optim.LBFGS([q, k], max_iter=steps, line_search_fn="strong_wolfe", tolerance_grad=1e-12)

    def loss() -> Tensor:
        optimizer.zero_grad()
        divergence = (pattern * (target - (q @ k.mT).log_softmax(-1))).sum(-1).mean()
        divergence.backward()
        return divergence

    optimizer.step(loss)
    return (q @ k.mT).softmax(-1).detach()
