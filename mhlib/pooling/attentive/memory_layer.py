"""A memory layer: attention to learned keys and values that belong to no token, in place of a feed-forward layer.

Differs from multi-head attention in where keys and values come from: they are parameters, the same for every input.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mhlib.functional.normalizers import softmax
from mhlib.registry import Example, Reduction, register

__all__ = ["MemoryLayer", "memory_lookup"]


def _slots(random: int = 0):
    generator = torch.Generator().manual_seed(random)
    return {
        name: torch.randn(*shape, dtype=torch.float64, generator=generator)
        for name, shape in (("x", (2, 5, 4)), ("keys", (7, 4)), ("values", (7, 4)))
    }


def _is_attention_to_the_slots():
    s = _slots()
    context = [s[name].expand(2, 1, -1, -1) for name in ("keys", "values")]
    return lambda: memory_lookup(**s), lambda: nn.functional.scaled_dot_product_attention(s["x"][:, None], *context)[:, 0]


def _all_slots():
    s = _slots(1)
    return lambda: memory_lookup(**s, top_k=7), lambda: memory_lookup(**s)


@register(
    "memory_lookup",
    kind="function",
    family="pool-global",
    papers=(5,),
    example=lambda: Example(memory_lookup, {**_slots(2), "top_k": 3}),
    reductions=(
        Reduction("scaled dot-product attention with the slots as keys and values", _is_attention_to_the_slots),
        Reduction("top_k as large as the memory: every slot", _all_slots),
    ),
)
def memory_lookup(
    x: Float[Tensor, "*batch dim"],
    keys: Float[Tensor, "slots dim"],
    values: Float[Tensor, "slots width"],
    top_k: int | None = None,
) -> Float[Tensor, "*batch width"]:
    r"""What a memory of S slots says to each token: :math:`F(x) = \mathrm{softmax}(x K^\top / \sqrt d)\, M`.

    Args:
        x: the tokens.
        keys, values: the slots, K and M.
        top_k: read only that many slots, those with the largest logits.

    Source: as used by Mingote et al., arXiv 2111.03842 (row 5), in place of feed-forward layers; from Sukhbaatar et al.,
    arXiv 1907.01470.
    """
    slots = len(keys)
    if top_k is not None and not 1 <= top_k <= slots:
        raise ValueError(f"top_k must be 1 to {slots}, the number of slots, got {top_k}")
    logits = x @ keys.mT / keys.shape[-1] ** 0.5
    if top_k is None:
        return logits.softmax(-1) @ values
    chosen = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, logits.topk(top_k, -1).indices, True)
    return softmax(logits, chosen) @ values


class MemoryLayer(nn.Module):
    """A memory layer of learned slots; it has the parameters of a feed-forward layer whose inner width is ``slots``.

    Args:
        dim: width of the tokens.
        slots: number of slots, 4 dim by default.
        top_k: see :func:`memory_lookup`.

    Keys start normal with deviation 1, so that the logits of normalised tokens do, values with deviation 1 / sqrt(dim).
    """

    def __init__(self, dim: int, slots: int | None = None, *, top_k: int | None = None):
        super().__init__()
        slots = 4 * dim if slots is None else slots
        self.keys = nn.Parameter(torch.randn(slots, dim))
        self.values = nn.Parameter(torch.randn(slots, dim) * dim**-0.5)
        self.top_k = top_k

    def forward(self, x: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch dim"]:
        return memory_lookup(x, self.keys, self.values, self.top_k)
