"""A decoder-only language model: token embedding, blocks of attention and gated MLP, and the embedding again as output.

The shape of Llama and its kin. Which attention it has is up to the caller: anything with the interface of
`MultiHeadAttention` fits, also later, by `model.blocks[3].attention = ...`.
"""

import copy
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from mhlib.checkpoints.generation import generate
from mhlib.checkpoints.tokenizer import Tokenizer
from mhlib.heads.cache import Cache

__all__ = ["CausalLM", "DecoderBlock", "DecoderOutput", "GatedMLP"]


class GatedMLP(nn.Module):
    r"""SwiGLU: :math:`y = (\mathrm{silu}(x W_g) \odot x W_u) W_d`, without biases. Shazeer, arXiv 2002.05202."""

    def __init__(self, dim: int, hidden_dim: int):
        super().__init__()
        self.gate = nn.Linear(dim, hidden_dim, bias=False)
        self.up = nn.Linear(dim, hidden_dim, bias=False)
        self.down = nn.Linear(hidden_dim, dim, bias=False)

    def forward(self, x: Float[Tensor, "batch tokens dim"]) -> Float[Tensor, "batch tokens dim"]:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class DecoderBlock(nn.Module):
    r"""One pre-norm block: :math:`x \leftarrow x + \mathrm{attention}(\mathrm{norm}(x))`, then the same with the MLP."""

    def __init__(self, dim: int, hidden_dim: int, attention: nn.Module, eps: float):
        super().__init__()
        self.attention_norm = nn.RMSNorm(dim, eps=eps)
        self.attention = attention
        self.mlp_norm = nn.RMSNorm(dim, eps=eps)
        self.mlp = GatedMLP(dim, hidden_dim)

    def forward(
        self, x: Float[Tensor, "batch tokens dim"], *, return_weights: bool = False, **attention_options
    ) -> tuple[Float[Tensor, "batch tokens dim"], Tensor | None]:
        """The tokens after the block, and its attention weights (batch, heads, queries, keys) if asked for."""
        y = self.attention(self.attention_norm(x), causal=True, return_weights=return_weights, **attention_options)
        y, weights = y if return_weights else (y, None)
        x = x + y
        return x + self.mlp(self.mlp_norm(x)), weights


class DecoderOutput(NamedTuple):
    """What a model returns when weights or hidden states were asked for; what was not is an empty tuple.

    Attributes:
        logits: (batch, tokens, vocabulary).
        weights: per block (batch, heads, queries, keys).
        hidden: the tokens (batch, tokens, dim) that enter each block and, last, the normed ones that give the logits.
    """

    logits: Tensor
    weights: tuple[Tensor, ...]
    hidden: tuple[Tensor, ...]


class CausalLM(nn.Module):
    """A causal language model with the output tied to the embedding.

    Args:
        vocab_size: number of tokens V.
        dim: width of the residual stream.
        num_layers: number of blocks.
        hidden_dim: width inside the MLP.
        attention: called once per block, builds its attention.
        eps: of the RMS norms.
        tokenizer: needed to generate from text.

    Linear layers start as PyTorch's, embeddings normal with deviation 0.02.
    """

    def __init__(
        self,
        vocab_size: int,
        dim: int,
        *,
        num_layers: int,
        hidden_dim: int,
        attention: Callable[[], nn.Module],
        eps: float = 1e-5,
        tokenizer: Tokenizer | None = None,
    ):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, dim)
        self.blocks = nn.ModuleList(DecoderBlock(dim, hidden_dim, attention(), eps) for _ in range(num_layers))
        self.norm = nn.RMSNorm(dim, eps=eps)
        self.tokenizer = tokenizer
        nn.init.normal_(self.embedding.weight, std=0.02)

    def forward(
        self,
        ids: Int[Tensor, "batch tokens"],
        *,
        caches: Sequence[Cache] | None = None,
        key_mask: Bool[Tensor, "batch keys"] | None = None,
        return_weights: bool = False,
        return_hidden: bool = False,
        last_only: bool = False,
    ) -> Float[Tensor, "batch _ vocabulary"] | DecoderOutput:
        """Logits of the token that follows each token.

        Args:
            ids: token numbers; with ``caches``, only the new ones.
            caches: from :meth:`init_caches`, one per block; the new tokens are added to them.
            key_mask: True = a real token; for all tokens, those in the caches first.
            return_weights: also return the attention weights of every block.
            return_hidden: also return the tokens between the blocks.
            last_only: logits of the last token alone (batch, 1, vocabulary), which saves most of the output layer.

        Returns:
            The logits, or a :class:`DecoderOutput` when weights or hidden states were asked for.
        """
        if caches is not None and len(caches) != len(self.blocks):
            raise ValueError(f"expected one cache per block, {len(self.blocks)}, got {len(caches)}; init_caches() makes them")
        x = self.embed(ids, 0 if caches is None else caches[0].length)
        weights, hidden = [], []
        for i, block in enumerate(self.blocks):
            hidden.append(x)
            cache = None if caches is None else caches[i]
            x, w = block(x, key_mask=key_mask, cache=cache, return_weights=return_weights)
            weights.append(w)
        x = self.norm(x)
        logits = F.linear(x[:, -1:] if last_only else x, self.embedding.weight)
        if not (return_weights or return_hidden):
            return logits
        return DecoderOutput(logits, tuple(weights) if return_weights else (), (*hidden, x) if return_hidden else ())

    def embed(self, ids: Int[Tensor, "batch tokens"], offset: int) -> Float[Tensor, "batch tokens dim"]:
        """What enters the first block, for tokens that follow ``offset`` others."""
        return self.embedding(ids)

    def loss(self, ids: Int[Tensor, "batch tokens"]) -> Float[Tensor, ""]:
        """Mean cross-entropy in nats of every token but the first, given those before it."""
        if ids.shape[1] < 2:
            raise ValueError(f"loss needs at least two tokens (one to see, one to guess), got {tuple(ids.shape)}")
        return F.cross_entropy(self(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())

    def convert(self, conversion: Callable[[nn.Module], nn.Module]) -> "CausalLM":
        """A copy in which each attention layer is ``conversion(layer)``, such as ``GroupedQueryAttention.from_multi_head``."""
        model = copy.deepcopy(self)
        for block in model.blocks:
            block.attention = conversion(block.attention)
        return model

    def init_caches(self, batch: int, max_len: int) -> list[Cache]:
        """An empty cache per block, for up to ``max_len`` tokens of ``batch`` sequences."""
        return [block.attention.init_cache(batch, max_len) for block in self.blocks]

    def generate(
        self,
        prompt: str | Sequence[str] | Sequence[int] | Tensor,
        max_new_tokens: int,
        *,
        temperature: float = 0.0,
        seed: int | None = None,
    ) -> str | list[str] | Int[Tensor, "batch new"]:
        """What follows the prompt, without the prompt: text for text, texts for texts, token numbers for token numbers.

        Args:
            prompt: a text, a list of texts, token numbers of one sequence, or (batch, tokens) without padding.
            max_new_tokens: how many tokens at most; a sequence ends earlier with the end token of the tokenizer.
            temperature: 0 takes the likeliest token; else logits are divided by it and a token is drawn.
            seed: of the draws.
        """
        options = {"temperature": temperature, "seed": seed}
        texts = [prompt] if isinstance(prompt, str) else prompt
        if not isinstance(texts, Tensor) and len(texts) and isinstance(texts[0], str):
            if self.tokenizer is None:
                raise ValueError("this model has no tokenizer: give token numbers instead of text")
            ids, key_mask = self.tokenizer.batch(texts, side="left")
            new = generate(self, ids, max_new_tokens, key_mask=key_mask, **options)
            answers = [self.tokenizer.decode(row) for row in new]
            return answers[0] if isinstance(prompt, str) else answers
        ids = torch.as_tensor(prompt)
        return generate(self, ids if ids.ndim == 2 else ids[None], max_new_tokens, **options)
