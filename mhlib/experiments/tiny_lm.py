"""A small decoder-only language model into which any causal head of the library can be put."""

import copy
from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from mhlib.functional.positions import LearnedPositions
from mhlib.heads.cache import Cache

__all__ = ["Block", "SwiGLU", "TinyLM"]


class SwiGLU(nn.Module):
    r"""Gated feed-forward layer: :math:`(\mathrm{silu}(x W_1) \odot x W_3)\, W_2`, all bias-free.

    Args:
        dim: width of the tokens.
        hidden: width in between.

    Source: Shazeer, "GLU variants improve transformer", arXiv 2002.05202.
    """

    def __init__(self, dim: int, hidden: int):
        super().__init__()
        self.up = nn.Linear(dim, 2 * hidden, bias=False)
        self.down = nn.Linear(hidden, dim, bias=False)

    def forward(self, x: Float[Tensor, "batch tokens dim"]) -> Float[Tensor, "batch tokens dim"]:
        gate, value = self.up(x).chunk(2, -1)
        return self.down(F.silu(gate) * value)


class Block(nn.Module):
    """One pre-norm layer: ``x + attention(norm(x))``, then ``x + mlp(norm(x))``."""

    def __init__(self, dim: int, attention: nn.Module):
        super().__init__()
        self.attention_norm, self.attention = nn.RMSNorm(dim, eps=1e-6), attention
        # Three matrices of 8/3 dim hold as many weights as the usual two of 4 dim.
        self.mlp_norm, self.mlp = nn.RMSNorm(dim, eps=1e-6), SwiGLU(dim, max(1, 8 * dim // 3))

    def forward(self, x: Float[Tensor, "batch tokens dim"], cache: Cache | None = None) -> Float[Tensor, "batch tokens dim"]:
        x = x + self.attention(self.attention_norm(x), causal=True, cache=cache)
        return x + self.mlp(self.mlp_norm(x))


class TinyLM(nn.Module):
    """Pre-norm decoder with tied embeddings, RMS norms and SwiGLU layers; its attention is what you put in.

    Args:
        vocab_size: number of different tokens.
        attention: ``attention(dim) -> layer`` builds the attention of one block, a causal head of ``mhlib.heads``.
            Positions are its business: give it ``rope=`` or ``position_bias=``.
        dim: width of the tokens.
        num_layers: number of blocks.
        max_len: if given, learned absolute positions for that many tokens, for heads that know none themselves.

    Embeddings start normal with deviation 1 / sqrt(dim), so that the logits start with variance 1 (at this size 0.02, as
    in GPT-2, learns visibly slower); the last map of each branch is scaled by 1 / sqrt(2 num_layers), as in GPT-2, so that
    depth does not raise the variance.
    """

    def __init__(
        self,
        vocab_size: int,
        attention: Callable[[int], nn.Module],
        *,
        dim: int = 64,
        num_layers: int = 2,
        max_len: int | None = None,
    ):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, dim)
        self.positions = None if max_len is None else LearnedPositions(max_len, dim)
        self.blocks = nn.ModuleList(Block(dim, attention(dim)) for _ in range(num_layers))
        self.norm = nn.RMSNorm(dim, eps=1e-6)
        with torch.no_grad():
            self.embed.weight.normal_(0, dim**-0.5)
            for block in self.blocks:
                for last in (block.mlp.down, getattr(block.attention, "o_proj", None)):
                    if last is not None:
                        last.weight /= (2 * num_layers) ** 0.5

    def forward(
        self, ids: Int[Tensor, "batch tokens"], caches: list[Cache] | None = None
    ) -> Float[Tensor, "batch tokens vocab_size"]:
        """Logits of the token that follows each token; with ``caches`` the tokens continue what those hold."""
        caches = [None] * len(self.blocks) if caches is None else caches
        x = self.embed(ids)
        if self.positions is not None:
            x = self.positions(x, offset=0 if caches[0] is None else caches[0].length)
        for block, cache in zip(self.blocks, caches, strict=True):
            x = block(x, cache)
        return F.linear(self.norm(x), self.embed.weight)

    def loss(self, ids: Int[Tensor, "batch tokens"]) -> Float[Tensor, ""]:
        """Mean cross-entropy in nats of every token but the first, given those before it."""
        if ids.shape[1] < 2:
            raise ValueError(f"loss needs at least two tokens (one to see, one to guess), got {tuple(ids.shape)}")
        logits = self(ids[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())

    def init_caches(self, batch: int, max_len: int) -> list[Cache]:
        """An empty cache for each block, where its attention decodes."""
        return [block.attention.init_cache(batch, max_len) for block in self.blocks]

    @torch.no_grad()
    def generate(self, ids: Int[Tensor, "batch tokens"], steps: int, *, seed: int = 0) -> Int[Tensor, "batch all"]:
        """``ids`` and ``steps`` sampled tokens after them, decoded with caches; the same seed gives the same tokens."""
        generator = torch.Generator(ids.device).manual_seed(seed)
        caches, new = self.init_caches(len(ids), ids.shape[1] + steps), ids
        for _ in range(steps):
            weights = self(new, caches)[:, -1].softmax(-1)
            new = torch.multinomial(weights, 1, generator=generator)
            ids = torch.cat([ids, new], 1)
        return ids

    def convert(self, conversion: Callable[[nn.Module], nn.Module]) -> "TinyLM":
        """A copy in which each attention layer is ``conversion(layer)``, such as ``GroupedQueryAttention.from_multi_head``."""
        model = copy.deepcopy(self)
        for block in model.blocks:
            block.attention = conversion(block.attention)
        return model
