"""A set autoencoder for counts: pooled by inducing points, unpooled by the items asked for, scored by a negative binomial (row 9)."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from mhlib.checkpoints.decoder import GatedMLP
from mhlib.pooling.attentive.blocks import PreNormBlock
from mhlib.pooling.attentive.cross_block import CrossAttentionBlock, InducedPool

__all__ = ["CountTokens", "SetAutoencoder", "negative_binomial_nll"]


def negative_binomial_nll(
    counts: Float[Tensor, "*shape"], mean: Float[Tensor, "*shape"], theta: Float[Tensor, "*shape"]
) -> Float[Tensor, "*shape"]:
    r"""Minus the logarithm of the negative binomial with mean :math:`\mu` and variance :math:`\mu + \mu^2 / \theta`, in nats."""
    total = (theta + mean).log()
    choose = torch.lgamma(counts + theta) - torch.lgamma(theta) - torch.lgamma(counts + 1)
    return -(choose + theta * (theta.log() - total) + torch.special.xlogy(counts, mean) - counts * total)


class CountTokens(nn.Module):
    r"""Which item and how often, as one token.

    Args:
        num_items: number of different items.
        dim: width of a token.
        how: "scale" for :math:`e_g \log(1 + c)`, as in row 9's released configuration: a layer norm after it cannot see the
            size of c, only whether it is zero. "concat" for :math:`[e_g, \log(1 + c)] W`, which keeps it.
    """

    def __init__(self, num_items: int, dim: int, how: str = "concat"):
        super().__init__()
        if how not in ("scale", "concat"):
            raise ValueError(f"how must be 'scale' or 'concat', got {how!r}")
        self.embedding = nn.Embedding(num_items, dim)
        self.mix = nn.Linear(dim + 1, dim) if how == "concat" else None
        if self.mix is not None:
            nn.init.xavier_uniform_(self.mix.weight)
            with torch.no_grad():
                self.mix.weight[:, -1] *= dim**0.5  # one number against dim: as loud as the embedding

    def forward(self, items: Int[Tensor, "batch items"], counts: Float[Tensor, "batch items"]) -> Float[Tensor, "batch items dim"]:
        """The tokens."""
        size = counts.log1p()[..., None]
        embedded = self.embedding(items)
        return embedded * size if self.mix is None else self.mix(torch.cat([embedded, size], -1))


class SetAutoencoder(nn.Module):
    """Counts of any items to m latent vectors of fixed size, and back to the expected counts of any items (row 9).

    Args:
        num_items: number of different items.
        num_queries: number m of latent vectors.
        dim: width inside.
        latent_dim: width of a latent vector; it is layer-normed without weights, so its size is bounded.
        num_heads: heads of all attention.
        num_blocks: pre-norm self-attention blocks over the latent vectors, on each side.
        how: how counts become tokens; see :class:`mhlib.pooling.CountTokens`.

    Maps start Xavier-uniform; PyTorch's default, which the released code keeps, starts slower at small sizes.

    Expected counts are shares of the total: a softmax over the items asked for, times the number that is to be shared out.
    Source: Palla et al., "Scalable single-cell gene expression generation with latent diffusion models", arXiv 2511.02986
    (row 9). Its prior over the latent vectors (a diffusion transformer) is not part of this.
    """

    def __init__(
        self,
        num_items: int,
        num_queries: int,
        *,
        dim: int = 32,
        latent_dim: int = 16,
        num_heads: int = 4,
        num_blocks: int = 1,
        how: str = "concat",
    ):
        super().__init__()
        block = lambda: PreNormBlock(dim, num_heads, GatedMLP(dim, -(-(8 * dim // 3) // 4) * 4))  # noqa: E731
        self.tokens = CountTokens(num_items, dim, how)
        self.pool = InducedPool(dim, num_heads, num_queries=num_queries)
        self.encoder = nn.Sequential(*(block() for _ in range(num_blocks)))
        self.to_latent = nn.Linear(dim, latent_dim, bias=False)
        self.latent_norm = nn.LayerNorm(latent_dim, elementwise_affine=False)
        self.from_latent = nn.Linear(latent_dim, dim, bias=False)
        self.decoder = nn.Sequential(*(block() for _ in range(num_blocks)))
        self.unpool = CrossAttentionBlock(dim, num_heads)
        self.share = nn.Linear(dim, 1)
        self.log_theta = nn.Embedding(num_items, 1)
        nn.init.ones_(self.log_theta.weight)
        for module in self.modules():
            if isinstance(module, nn.Linear) and module is not self.tokens.mix:
                nn.init.xavier_uniform_(module.weight)

    def encode(
        self,
        items: Int[Tensor, "batch items"],
        counts: Float[Tensor, "batch items"],
        key_mask: Bool[Tensor, "batch items"] | None = None,
    ) -> Float[Tensor, "batch queries latent"]:
        """The latent vectors of a set."""
        pooled = self.pool(self.tokens(items, counts), key_mask)
        pooled = pooled[:, None] if pooled.ndim == 2 else pooled
        return self.latent_norm(self.to_latent(self.encoder(pooled)))

    def decode(
        self,
        latent: Float[Tensor, "batch queries latent"],
        items: Int[Tensor, "batch items"],
        total: Float[Tensor, "batch"],
    ) -> tuple[Float[Tensor, "batch items"], Float[Tensor, "batch items"]]:
        """Mean and theta of the counts of the items asked for, which share out ``total``."""
        context = self.decoder(self.from_latent(self.latent_norm(latent)))
        out = self.unpool(self.tokens.embedding(items), context)
        mean = self.share(out)[..., 0].softmax(-1) * total[:, None]
        return mean, self.log_theta(items)[..., 0].exp()

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Nats per item for (items, counts)."""
        items, counts = batch
        mean, theta = self.decode(self.encode(items, counts), items, counts.sum(-1))
        return negative_binomial_nll(counts, mean, theta).mean()
