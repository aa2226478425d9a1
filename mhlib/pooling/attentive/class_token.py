"""Class token pooling: a learned token travels through the encoder with the others, and its state is the pooled vector.

Differs from attention pooling in when it asks: in every layer of the encoder, not once behind the last.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from mhlib.heads.base import MultiHeadAttention
from mhlib.pooling.base import Pool, PoolCall
from mhlib.registry import Reduction, register

__all__ = ["ClassToken", "ClassTokenPool"]


class ClassToken(nn.Module):
    r"""A learned token (normal, deviation 0.02), that may be drawn anew for each set while training.

    Args:
        dim: width.
        draw: None for one vector c. "gauss" for :math:`c = \mu + \mathrm{softplus}(\rho) \odot \varepsilon` with normal noise
            in training and :math:`\mu` in evaluation. "list" for one of ``size`` vectors in training and their mean in
            evaluation.
        size: number R of vectors in the list.
    """

    def __init__(self, dim: int, draw: str | None = None, size: int = 1):
        super().__init__()
        if draw not in (None, "gauss", "list"):
            raise ValueError(f"draw must be None, 'gauss' or 'list', got {draw!r}")
        if size < 1 or (size > 1 and draw != "list"):
            raise ValueError(f"size must be at least 1, and more than 1 only for draw='list', got {size} with draw={draw!r}")
        self.draw = draw
        self.mean = nn.Parameter(0.02 * torch.randn(size, dim))
        self.spread = nn.Parameter(torch.full((1, dim), -4.0)) if draw == "gauss" else None  # softplus(-4) is about 0.018

    def forward(self, batch: int) -> Float[Tensor, "batch dim"]:
        """One token per set."""
        if not self.training or self.draw is None:
            return self.mean.mean(0).expand(batch, -1)
        if self.draw == "list":
            return self.mean[torch.randint(len(self.mean), (batch,), device=self.mean.device)]
        noise = torch.randn(batch, self.mean.shape[1], device=self.mean.device, dtype=self.mean.dtype)
        return self.mean + F.softplus(self.spread) * noise

    def divergence(self) -> Float[Tensor, ""]:
        """Kullback-Leibler divergence of the drawn token from a standard normal one: a regulariser for draw="gauss"."""
        if self.spread is None:
            raise ValueError(f"only draw='gauss' has a density, this token has draw={self.draw!r}")
        deviation = F.softplus(self.spread)
        return 0.5 * (deviation.square() + self.mean.square() - 1 - 2 * deviation.log()).sum()


def _encoder() -> nn.Module:
    from mhlib.experiments import TinyEncoder

    return TinyEncoder(8, 2, num_layers=1)


def _list_of_one():
    listed = ClassTokenPool(8, _encoder(), draw="list", size=1)
    plain = ClassTokenPool(8, _encoder())
    plain.load_state_dict(listed.state_dict())
    return listed, plain


def _mean_with_the_token():
    """One layer, one head, queries of zeros, no residual."""
    layer = MultiHeadAttention(8, 1)
    with torch.no_grad():
        layer.q_proj.weight.zero_()
    pool = ClassTokenPool(8, layer)

    def mean(x):
        u = torch.cat([pool.tokens[0](len(x))[:, None], x], 1)
        return layer.o_proj(layer.v_proj(u)).mean(1)

    return pool, mean


@register(
    "class_token_pool",
    kind="pool",
    family="pool-global",
    papers=(5,),
    properties=("invariant", "compiles"),
    example=lambda: ClassTokenPool(8, _encoder(), draw="list", size=3, distillation=True).eval(),  # training draws
    reductions=(
        Reduction("a list of one token: the plain class token", _list_of_one),
        Reduction("one layer, one head, queries of zeros: the mean of the values, the token's included", _mean_with_the_token),
    ),
    peers=("torch",),
)
class ClassTokenPool(Pool):
    r"""Class token pooling: :math:`y = u_L[0]`, where :math:`u_L = \mathrm{encoder}([c;\ t;\ X])`.

    The token c is learned, and may be drawn anew for each set in training (:class:`ClassToken`). With ``distillation`` a
    second token t stands behind it, for a teacher's opinion: y is then (batch, 2, dim), and
    :func:`distillation_token_loss` trains both. Whether order counts is up to the encoder: without positions in it, the
    pool is permutation invariant, as mean pooling is.

    Args:
        dim: width of the tokens and of the output.
        encoder: ``encoder(u, key_mask=None) -> u``, tokens to as many tokens; it sees one (or two) more than the set has.
        draw, size: how c and t are drawn, see :class:`ClassToken`.
        distillation: add the second token.

    With draw="gauss", ``aux["divergence"]`` is that of c from a standard normal token.
    Source: Mingote et al., "Class token and knowledge distillation for multi-head self-attention speaker verification
    systems", arXiv 2111.03842 (row 5); the second token is that of DeiT, arXiv 2012.12877.
    """

    def __init__(
        self, dim: int, encoder: nn.Module, *, draw: str | None = None, size: int = 1, distillation: bool = False
    ):
        super().__init__(dim)
        self.tokens = nn.ModuleList(ClassToken(dim, draw, size) for _ in range(2 if distillation else 1))
        self.encoder = encoder

    def pool(self, x: Tensor, key_mask: Tensor | None, call: PoolCall) -> Tensor:
        first = torch.stack([token(len(x)) for token in self.tokens], 1).to(x.dtype)
        count = first.shape[1]
        if key_mask is not None:
            key_mask = F.pad(key_mask, (count, 0), value=True)
        if self.tokens[0].draw == "gauss":
            call.aux["divergence"] = self.tokens[0].divergence()
        u = self.encoder(torch.cat([first, x], 1), key_mask=key_mask)
        return u[:, 0] if count == 1 else u[:, :count]
