"""Multi-head latent attention: the cache holds one low-rank latent per token, from which all heads make keys and values.

Differs from multi-head attention in ``project`` (down to the latent), ``expand`` (up to the heads) and ``merge``. In the
absorbed form the up-projections move to the query and to the output, and attention runs on the latent itself, as
multi-query attention whose one key head is also its value head; ``fused`` says so, for a kernel can read it once then.
"""

import torch
from torch import Tensor, nn

from mhlib.cost import latent as latent_cost
from mhlib.cost.model import StageCost
from mhlib.functional.latent import latent_attention
from mhlib.functional.positions import Rotary
from mhlib.heads.base import MultiHeadAttention, split_heads
from mhlib.heads.call import Call
from mhlib.registry import Reduction, register

__all__ = ["MultiHeadLatentAttention"]

EXECUTIONS = ("auto", "expanded", "absorbed")


def _is_multi_head():
    mha = MultiHeadAttention(16, 4)
    return MultiHeadLatentAttention.from_multi_head(mha, kv_rank=16), mha


def _forms_agree():
    build = lambda execution: MultiHeadLatentAttention(  # noqa: E731
        16, 4, kv_rank=6, q_rank=8, rope_dim=2, execution=execution
    )
    absorbed, expanded = build("absorbed"), build("expanded")
    expanded.load_state_dict(absorbed.state_dict())
    return absorbed, expanded


@register(
    "multi_head_latent_attention",
    kind="head",
    family="latent",
    stage="project",
    properties=("causal", "decodes", "compiles"),
    example=lambda: MultiHeadLatentAttention(16, 4, kv_rank=6, q_rank=8, rope_dim=2),
    reductions=(
        Reduction("weights absorbed: the same function as expanded", _forms_agree, ({}, {"causal": True})),
        Reduction("rope_dim = 0, no norm, kv_rank = dim: multi-head attention", _is_multi_head, ({}, {"causal": True})),
    ),
    peers=("transformers",),
)
class MultiHeadLatentAttention(MultiHeadAttention):
    r"""Multi-head latent attention (MLA): keys and values of all heads are made from one cached latent of width r.

    .. math::
        c = \mathrm{norm}(x W_{DKV}),\quad k_h = [c\,W_{UK}^h \mid \mathrm{RoPE}(x W_{KR})],\quad
        v_h = c\,W_{UV}^h,\quad q_h = [c_q W_{UQ}^h \mid \mathrm{RoPE}(c_q W_{QR}^h)]

    with :math:`c_q = \mathrm{norm}(x W_{DQ})`, logits scaled by 1 / sqrt(head_dim + rope_dim). The rotary part of the
    key is shared by all heads. The cache keeps c and that part: kv_rank + rope_dim numbers per token.

    Args:
        kv_rank: width r of the latent that the cache keeps.
        q_rank: width of the query latent; None projects queries directly.
        rope_dim: width of the rotary part of queries and keys; 0 leaves it out.
        head_dim: width of the other part of a key, dim / num_heads by default.
        rope: rotary embedding of width rope_dim; by default interleaved with base 10000, as in DeepSeek's models.
        rope_heads: key heads of the rotary part: 1 is shared by all; num_kv_heads gives each its own (row 85).
        latent_norm: RMS-normalise both latents, as DeepSeek does.
        execution: "expanded" makes keys and values of all heads, "absorbed" attends on the latent, "auto" takes the one
            with fewer FLOPs: expanded for a prompt, absorbed for decoding. All give the same result.

    All else as in :class:`mhlib.heads.MultiHeadAttention`; a bias goes to the down-projections and the output alone.
    Source: DeepSeek-AI, "DeepSeek-V2", arXiv 2405.04434; analysed in rows 34 and 89.
    """

    least_head_dim = 0  # a key may be rotary altogether

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        kv_rank: int,
        q_rank: int | None = None,
        rope_dim: int = 0,
        rope_heads: int = 1,
        rope: Rotary | None = None,
        latent_norm: bool = True,
        execution: str = "auto",
        **options,
    ):
        if execution not in EXECUTIONS:
            raise ValueError(f"execution must be one of {', '.join(EXECUTIONS)}, got {execution!r}")
        if rope is None and rope_dim:
            rope = Rotary(rope_dim, interleaved=True)
        if rope is not None and rope.dim != rope_dim:
            raise ValueError(f"rope must turn rope_dim={rope_dim} numbers, got rope.dim={rope.dim}")
        for name, rank in (("kv_rank", kv_rank), ("q_rank", q_rank)):
            if rank is not None and rank < 1:
                raise ValueError(f"{name} must be at least 1, got {rank}")
        self.kv_rank, self.q_rank, self.rope_dim, self.rope_heads = kv_rank, q_rank, rope_dim, rope_heads
        self.latent_norm, self.execution = latent_norm, execution
        super().__init__(dim, num_heads, rope=rope, **options)
        if rope_heads not in (1, self.num_kv_heads):
            raise ValueError(f"rope_heads must be 1 or num_kv_heads={self.num_kv_heads}, got {rope_heads}")
        self.scale = (self.head_dim + rope_dim) ** -0.5

    def turned(self) -> tuple[int, tuple[int, int]]:
        return self.rope_dim, (self.num_heads, self.rope_heads)

    def make_projections(self, bias: bool) -> None:
        heads, kv_heads, rank = self.num_heads, self.num_kv_heads, self.kv_rank
        queries = heads * (self.head_dim + self.rope_dim)
        norm = (lambda width: nn.RMSNorm(width, eps=1e-6)) if self.latent_norm else (lambda width: nn.Identity())
        if self.q_rank is None:
            self.q_a_proj, self.q_a_norm, self.q_proj = None, None, nn.Linear(self.dim, queries, bias=False)
        else:
            self.q_a_proj, self.q_a_norm = nn.Linear(self.dim, self.q_rank, bias=bias), norm(self.q_rank)
            self.q_proj = nn.Linear(self.q_rank, queries, bias=False)
        self.kv_a_proj = nn.Linear(self.context_dim, rank + self.rope_heads * self.rope_dim, bias=bias)
        self.kv_a_norm = norm(rank)
        self.kv_b_proj = nn.Linear(rank, kv_heads * (self.head_dim + self.v_head_dim), bias=False)
        self.o_proj = nn.Linear(heads * self.v_head_dim, self.dim, bias=bias)

    def absorbed(self, call: Call) -> bool:
        """Whether this call runs on the latent itself; "auto" compares FLOPs, which depend on the number of queries."""
        if self.execution != "auto":
            return self.execution == "absorbed"
        return call.cache is not None and call.x.shape[1] <= latent_cost.break_even_queries(self, call.keys)

    def _up(self) -> tuple[Tensor, Tensor]:
        """The up-projections of keys and of values, each (kv_heads, width, kv_rank)."""
        weight = self.kv_b_proj.weight.unflatten(0, (self.num_kv_heads, -1))
        return weight.split([self.head_dim, self.v_head_dim], 1)

    def project(self, x: Tensor, context: Tensor, call: Call):
        q = split_heads(self.q_proj(x if self.q_a_proj is None else self.q_a_norm(self.q_a_proj(x))), self.num_heads)
        latent, k_rope = self.kv_a_proj(context).split([self.kv_rank, self.rope_heads * self.rope_dim], -1)
        latent = self.kv_a_norm(latent).unsqueeze(1)
        if self.rope is not None:
            q_nope, q_rope = q.split([self.head_dim, self.rope_dim], -1)
            q = torch.cat([q_nope, self.rope.rotate(q_rope, call.q_pos)], -1)
            k_rope = self.rope.rotate(split_heads(k_rope, self.rope_heads), call.k_pos)
            # One shared rotary key is kept beside its latent, so that together they are a key of the absorbed form.
            kv = (torch.cat([latent, k_rope], -1),) if self.rope_heads == 1 else (latent, k_rope)
        else:
            kv = (latent,)
        if self.absorbed(call):
            q_nope, q_rope = q.split([self.head_dim, self.rope_dim], -1)
            grouped = q_nope.unflatten(1, (self.num_kv_heads, -1))
            onto_latent = torch.einsum("bgrnd,gdc->bgrnc", grouped, self._up()[0]).flatten(1, 2)
            q = torch.cat([onto_latent, q_rope], -1)
        return q, kv

    def expand(self, kv: tuple[Tensor, ...], call: Call) -> tuple[Tensor, Tensor]:
        latent, rest = kv[0][..., : self.kv_rank], kv[0][..., self.kv_rank :]
        k_rope = kv[1] if len(kv) > 1 else rest
        if self.absorbed(call):
            if len(kv) == 1:
                return kv[0], latent
            return torch.cat([latent.expand(-1, k_rope.shape[1], -1, -1), k_rope], -1), latent.expand(-1, k_rope.shape[1], -1, -1)
        up = split_heads(self.kv_b_proj(latent.squeeze(1)), self.num_kv_heads)
        k, v = up.split([self.head_dim, self.v_head_dim], -1)
        return torch.cat([k, k_rope.expand(-1, self.num_kv_heads, -1, -1)], -1), v

    def fused(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, call: Call) -> Tensor:
        if not self.absorbed(call) or k.shape[1] > 1:
            return super().fused(q, k, v, mask, call)
        dropout = self.dropout if self.training else 0.0
        options = dict(scale=self.scale, mask=mask, bias=self.bias(q, k, call), causal=call.causal, dropout=dropout)
        return latent_attention(q, k, self.kv_rank, backend=self.backend, **options)

    def merge(self, heads: Tensor, call: Call) -> Tensor:
        if self.absorbed(call):
            grouped = heads.unflatten(1, (self.num_kv_heads, -1))
            heads = torch.einsum("bgrnc,gvc->bgrnv", grouped, self._up()[1]).flatten(1, 2)
        return super().merge(heads, call)

    def cache_shapes(self) -> list[tuple[int, int]]:
        if self.rope_heads == 1:
            return [(1, self.kv_rank + self.rope_dim)]
        return [(1, self.kv_rank), (self.rope_heads, self.rope_dim)]

    def stage_costs(self, batch: int, queries: int, keys: int, new_keys: int) -> dict[str, StageCost]:
        return latent_cost.multi_head_latent_attention(self, batch, queries, keys, new_keys)

    @classmethod
    def from_multi_head(cls, mha: MultiHeadAttention, **options) -> "MultiHeadLatentAttention":
        """Convert a trained multi-head or grouped layer: :func:`mhlib.heads.mha2mla` says how and takes the options."""
        from mhlib.heads.latent.conversion import mha2mla

        return mha2mla(mha, **options)
