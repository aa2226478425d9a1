"""A small language model that trains in seconds, into which any causal head of the library can be put.

Differs from :class:`mhlib.checkpoints.CausalLM` in its sizes, its start, and learned positions for heads that know none.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from mhlib.checkpoints.decoder import CausalLM
from mhlib.functional.positions import LearnedPositions

__all__ = ["TinyLM"]


class TinyLM(CausalLM):
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
        # Three matrices of 8/3 dim hold as many weights as the usual two of 4 dim.
        hidden_dim = max(1, 8 * dim // 3)
        super().__init__(
            vocab_size, dim, num_layers=num_layers, hidden_dim=hidden_dim, attention=lambda: attention(dim), eps=1e-6
        )
        self.positions = None if max_len is None else LearnedPositions(max_len, dim)
        with torch.no_grad():
            self.embedding.weight.normal_(0, dim**-0.5)
            for block in self.blocks:
                for last in (block.mlp.down, getattr(block.attention, "o_proj", None)):
                    if last is not None:
                        last.weight /= (2 * num_layers) ** 0.5

    def embed(self, ids: Int[Tensor, "batch tokens"], offset: int) -> Float[Tensor, "batch tokens dim"]:
        x = super().embed(ids, offset)
        return x if self.positions is None else self.positions(x, offset)
