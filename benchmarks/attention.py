"""Attention and its layers beside torch's and transformers' on the CPU."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import mhlib
from benchmarks.contest import Contest
from mhlib.heads import GroupedQueryAttention, MultiHeadAttention

__all__ = ["contests"]


def contests(
    lengths: tuple[int, ...] = (512, 1024, 2048), dim: int = 512, heads: int = 8, *, flex: bool = True
) -> Iterator[Contest]:
    """Functions on heads, then layers, at each length; batch 1.

    Args:
        flex: include compiled FlexAttention, whose compilation takes about ten seconds and a C++ compiler.
    """
    torch.manual_seed(0)
    for n in lengths:
        yield from _functions(n, dim // heads, heads, flex and n == max(lengths))
    for n in lengths:
        yield from _layers(torch.randn(1, n, dim), heads)
    yield _decoding(max(lengths), dim // heads, heads)


def _functions(n: int, head_dim: int, heads: int, flex: bool) -> Iterator[Contest]:
    q, k, v = (torch.randn(1, heads, n, head_dim) for _ in range(3))
    size = f"{heads} heads x {n} x {head_dim}"
    sdpa = lambda **kind: lambda: F.scaled_dot_product_attention(q, k, v, **kind)  # noqa: E731
    for causal in (False, True):
        peers = {"sdpa": sdpa(is_causal=causal)}
        kind = ", causal" if causal else ""
        for backend, why in (
            ("auto", "what mhlib.attention checks before it calls"),
            ("chunked", "blocks in Python: memory linear in the keys for any mask, bias and value width"),
        ):
            yield Contest(
                f"attention, {backend}{kind}", size,
                lambda b=backend, c=causal: mhlib.attention(q, k, v, causal=c, backend=b), peers, why=why,
            )  # fmt: skip
    few = max(1, heads // 4)
    grouped = [t[:, :few].contiguous() for t in (k, v)]
    yield Contest(
        "attention, grouped, causal", size, lambda: mhlib.attention(q, *grouped, causal=True),
        {"sdpa, enable_gqa": lambda: F.scaled_dot_product_attention(q, *grouped, is_causal=True, enable_gqa=True)},
        why="what mhlib.attention checks before it calls",
    )  # fmt: skip
    window = n // 8
    near = (torch.arange(n)[:, None] - torch.arange(n)).abs() <= window // 2
    yield Contest(
        "attention, window", size, lambda: mhlib.attention(q, k, v, window=window),
        {"sdpa, boolean mask": sdpa(attn_mask=near)}, why="builds the mask that the peer is given",
    )  # fmt: skip
    if flex:
        yield Contest(
            "attention, flex", size, lambda: mhlib.attention(q, k, v, backend="flex"), {"sdpa": sdpa()},
            why="FlexAttention's CPU code; it pays for masks that leave much out",
        )  # fmt: skip


def _decoding(keys: int, head_dim: int, heads: int) -> Contest:
    """One new token, a quarter of the heads for keys and values: the group goes in as queries."""
    few = max(1, heads // 4)
    q = torch.randn(1, heads, 1, head_dim)
    k, v = (torch.randn(1, few, keys, head_dim) for _ in range(2))
    return Contest(
        "attention, one query, grouped", f"{heads} over {few} x {keys} x {head_dim}", lambda: mhlib.attention(q, k, v),
        {"sdpa, enable_gqa": lambda: F.scaled_dot_product_attention(q, k, v, enable_gqa=True)},
    )  # fmt: skip


def bare(layer: MultiHeadAttention, x: Tensor, causal: bool) -> Tensor:
    """SDPA and the four matrix products of a layer, and nothing else."""
    heads, batch, n = layer.num_heads, *x.shape[:2]
    q, k, v = (
        F.linear(x, proj.weight).view(batch, n, -1, layer.head_dim).transpose(1, 2)
        for proj in (layer.q_proj, layer.k_proj, layer.v_proj)
    )
    y = F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=layer.num_kv_heads != heads)
    return F.linear(y.transpose(1, 2).reshape(batch, n, -1), layer.o_proj.weight)


def _layers(x: Tensor, heads: int) -> Iterator[Contest]:
    n, dim = x.shape[1:]
    size = f"{heads} heads, {n} x {dim}"
    layer = MultiHeadAttention(dim, heads)
    theirs = nn.MultiheadAttention(dim, heads, bias=False, batch_first=True)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([p.weight for p in (layer.q_proj, layer.k_proj, layer.v_proj)]))
        theirs.out_proj.weight.copy_(layer.o_proj.weight)
    causal = torch.ones(n, n, dtype=torch.bool).triu(1)
    for name, kind, mask in (("", False, None), (", causal", True, causal)):
        options = {"attn_mask": mask, "is_causal": kind, "need_weights": False}
        peers = {
            "sdpa and 4 products": lambda c=kind: bare(layer, x, c),
            "nn.MultiheadAttention": lambda o=options: theirs(x, x, x, **o)[0],
        }
        yield Contest(f"MultiHeadAttention{name}", size, lambda c=kind: layer(x, causal=c), peers)
    yield from _llama(x, heads)


def _llama(x: Tensor, heads: int) -> Iterator[Contest]:
    """Grouped attention with rotary positions, as in Llama; nothing if transformers is not installed."""
    try:
        from transformers.models.llama import modeling_llama as llama
    except ImportError:
        return
    from mhlib.functional.positions import Rotary

    n, dim = x.shape[1:]
    few = max(1, heads // 4)
    config = llama.LlamaConfig(
        hidden_size=dim, num_attention_heads=heads, num_key_value_heads=few, max_position_embeddings=n, attn_implementation="sdpa"
    )
    theirs = llama.LlamaAttention(config, layer_idx=0).eval()
    ours = GroupedQueryAttention(dim, heads, num_kv_heads=few, rope=Rotary(dim // heads))
    for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
        getattr(ours, name).load_state_dict(getattr(theirs, name).state_dict())
    angles = llama.LlamaRotaryEmbedding(config)(x, torch.arange(n)[None])
    yield Contest(
        "GroupedQueryAttention, rotary", f"{heads} over {few}, {n} x {dim}", lambda: ours(x, causal=True),
        {"transformers' Llama": lambda: theirs(x, angles, None)[0]}, why="computes the angles anew; the peer is given them",
    )  # fmt: skip
