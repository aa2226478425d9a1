"""Attentive pooling of a pair: two sequences are compared token by token, and each is pooled by its best matches.

Differs from attention pooling in where weights come from: the query of one side is the whole other side, and there are two
results.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from mhlib.functional.normalizers import softmax
from mhlib.registry import Example, Reduction, register

__all__ = ["AttentivePairPool"]

Tokens = Float[Tensor, "batch tokens dim"]
Others = Float[Tensor, "batch others dim"]


def _inputs() -> dict[str, Tensor]:
    return {"x": torch.randn(3, 4, 6, dtype=torch.float64), "other": torch.randn(3, 5, 6, dtype=torch.float64)}


def _example() -> Example:
    pool = AttentivePairPool(6, 2).double()
    return Example(lambda x, other: pool.to(x.dtype)(x, other, return_weights=True), _inputs())


def _no_form_is_mean():
    pool, inputs = AttentivePairPool(6, 2).double(), _inputs()
    with torch.no_grad():
        pool.form.zero_()
    return lambda: torch.stack(pool(**inputs)), lambda: torch.stack([side.mean(1) for side in inputs.values()])


def _sides_swap():
    pool, turned, inputs = AttentivePairPool(6).double(), AttentivePairPool(6).double(), _inputs()
    with torch.no_grad():
        turned.form.copy_(pool.form.mT)
    return lambda: torch.stack(pool(**inputs)), lambda: torch.stack(turned(inputs["other"], inputs["x"])[::-1])


def _one_token_asks():
    """With one token on the other side there is nothing to take the maximum of: attention with one bounded logit."""
    pool, inputs = AttentivePairPool(6).double(), _inputs()
    one = inputs["other"][:, :1]

    def attention():
        logits = torch.tanh(inputs["x"] @ pool.form[0] @ one.mT)
        return torch.stack([(logits.softmax(1) * inputs["x"]).sum(1), one[:, 0]])

    return lambda: torch.stack(pool(inputs["x"], one)), attention


@register(
    "attentive_pair_pool",
    kind="function",
    family="pool-attentive",
    papers=(36,),
    example=_example,
    reductions=(
        Reduction("a form of zeros: mean pooling of both sides", _no_form_is_mean),
        Reduction("sides swapped and the form transposed: the results swapped", _sides_swap),
        Reduction("one token on the other side: attention pooling with that token as query", _one_token_asks),
    ),
    peers=("torch",),
)
class AttentivePairPool(nn.Module):
    r"""Two-way attentive pooling: a bilinear form compares all pairs, each token counts by its best match.

    .. math::
        G = \tanh(X U C^\top), \qquad w = \mathrm{softmax}_n\big(\max_m G_{nm}\big), \qquad
        u = \mathrm{softmax}_m\big(\max_n G_{nm}\big), \qquad y = w^\top X, \qquad z = u^\top C

    with the tokens x (batch, N, dim) of one side and c (batch, M, dim) of the other.

    Args:
        dim: width of the tokens of both sides, and of both results.
        num_heads: the features are cut into so many slices, each with a form of its own (1 in the paper).

    The form starts normal with deviation 1 / (dim / heads), so that logits of unit-variance tokens start with variance 1.
    Source: dos Santos et al., "Attentive pooling networks", arXiv 1602.03609 (row 36).
    """

    def __init__(self, dim: int, num_heads: int = 1):
        super().__init__()
        if dim < 1 or num_heads < 1 or dim % num_heads:
            raise ValueError(f"num_heads must divide dim, got dim={dim} and num_heads={num_heads}")
        self.dim, self.num_heads = dim, num_heads
        width = dim // num_heads
        self.form = nn.Parameter(torch.randn(num_heads, width, width) / width)

    def compare(self, x: Tokens, other: Others) -> Float[Tensor, "batch heads tokens others"]:
        """How well each token of one side fits each of the other, from -1 to 1."""
        x, other = (side.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for side in (x, other))
        return torch.tanh(x @ self.form @ other.mT)

    def forward(
        self,
        x: Tokens,
        other: Others,
        key_mask: Bool[Tensor, "batch tokens"] | None = None,
        other_mask: Bool[Tensor, "batch others"] | None = None,
        *,
        return_weights: bool = False,
    ) -> tuple:
        """Pool both sides.

        Args:
            key_mask, other_mask: True = a real token of ``x``, of ``other``.
            return_weights: also return the weights of both sides, (batch, heads, tokens) and (batch, heads, others).

        Returns:
            y, z, both (batch, dim), or (y, z, weights, other_weights). A side without a token pools to zeros; where the
            other side has none there is nothing to compare with, and all tokens count alike.

        Raises:
            ValueError: a shape or the type of a mask does not fit; the text names it.
        """
        self._check(x, other, key_mask, other_mask)
        table = self.compare(x, other)
        weights, other_weights = (
            _best_matches(side, mine, theirs)
            for side, mine, theirs in ((table, key_mask, other_mask), (table.mT, other_mask, key_mask))
        )
        pooled = self._average(weights, x, key_mask), self._average(other_weights, other, other_mask)
        return (*pooled, weights, other_weights) if return_weights else pooled

    def _average(self, weights: Tensor, x: Tensor, key_mask: Tensor | None) -> Tensor:
        if key_mask is not None:
            x = torch.where(key_mask[..., None], x, 0.0)
        heads = x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        return (weights[:, :, None] @ heads).flatten(1)

    def _check(self, x: Tensor, other: Tensor, key_mask: Tensor | None, other_mask: Tensor | None) -> None:
        for name, side in (("x", x), ("other", other)):
            if side.ndim != 3 or side.shape[-1] != self.dim or 0 in side.shape:
                raise ValueError(f"AttentivePairPool wants {name} of shape (batch, tokens, {self.dim}), got {tuple(side.shape)}")
        if len(x) != len(other):
            raise ValueError(f"both sides must hold one sequence per pair, got {len(x)} and {len(other)} sequences")
        for name, mask, side in (("key_mask", key_mask, x), ("other_mask", other_mask, other)):
            if mask is not None and mask.dtype != torch.bool:
                raise ValueError(f"{name} must be boolean (True = a real token), got {mask.dtype}")
            if mask is not None and mask.shape != side.shape[:2]:
                raise ValueError(f"{name} must be (batch, tokens) = {tuple(side.shape[:2])}, got {tuple(mask.shape)}")

    def extra_repr(self) -> str:
        return f"dim={self.dim}, num_heads={self.num_heads}"


def _best_matches(table: Tensor, mine: Tensor | None, theirs: Tensor | None) -> Float[Tensor, "batch heads tokens"]:
    """Softmax over the rows' largest entries."""
    if theirs is not None:
        table = table.masked_fill(~theirs[:, None, None], torch.finfo(table.dtype).min)
    return softmax(table.amax(-1), None if mine is None else mine[:, None])
