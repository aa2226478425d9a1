"""Each kernel on its grid of shapes beside what else computes the same on the device."""

import functools
import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.contest import Contest, Run
from mhlib import functional, kernels
from mhlib.kernels import attention_pool, decode_attention, flash_attention, latent_decode, power_pool, soft_pool2d, statistics_pool
from mhlib.kernels.launch import Counts

__all__ = ["Grid", "Measured", "grids"]


@dataclass(frozen=True)
class Measured:
    """A contest, and what its computation cannot do without."""

    contest: Contest
    counts: Counts


@dataclass(frozen=True)
class Grid:
    """Where and how large."""

    device: str
    dtype: torch.dtype
    tiny: bool = False

    def randn(self, *shape: int, grad: bool = False) -> Tensor:
        return torch.randn(shape, device=self.device, dtype=self.dtype, requires_grad=grad)

    @property
    def tolerance(self) -> float:
        return 3e-2 if self.dtype.itemsize == 2 else 1e-4


def grids(grid: Grid) -> dict[str, Iterator[Measured]]:
    """The contests of each kernel, made one by one."""
    return {
        "flash_attention": _flash(grid),
        "decode_attention": _decode(grid),
        "latent_decode": _latent(grid),
        "attention_pool": _attention_pool(grid),
        "statistics_pool": _statistics(grid),
        "power_pool": _power(grid),
        "soft_pool2d": _soft(grid),
    }


def _counts(kernel: str, *sizes: int, **options) -> Counts:
    return importlib.import_module(f"{kernels.__name__}.{kernel}").counts(*sizes, **options)


def _both(
    grid: Grid, kernel: str, size: str, ours: Run, peers: dict[str, Run], leaves: tuple[Tensor, ...], counts: Callable[..., Counts]
) -> Iterator[Measured]:
    """The forward pass, then the backward pass alone, each with the peers that can."""
    peers = {name: run for name, run in peers.items() if _runs(run, leaves)}
    yield Measured(Contest(kernel, f"{size}, forward", ours, peers, tolerance=grid.tolerance), counts())
    back = {name: _backward(run, leaves) for name, run in {"": ours, **peers}.items()}
    yield Measured(Contest(kernel, f"{size}, backward", back.pop(""), back, tolerance=3 * grid.tolerance), counts(backward=True))


def _runs(run: Run, leaves: tuple[Tensor, ...]) -> bool:
    """Whether a peer takes these shapes on this device, backward pass included."""
    try:
        torch.autograd.grad(run().float().square().mean(), leaves)
    except (RuntimeError, ValueError, NotImplementedError):
        return False
    return True


def _backward(run: Run, leaves: tuple[Tensor, ...]) -> Run:
    with torch.enable_grad():
        y = run()
    generator = torch.Generator(y.device).manual_seed(0)
    g = torch.randn(y.shape, device=y.device, dtype=y.dtype, generator=generator)
    return lambda: torch.autograd.grad(y, leaves, g, retain_graph=True)[0]


def _flash(grid: Grid) -> Iterator[Measured]:
    lengths, widths, heads, tokens = ((32,), (16,), 2, 32) if grid.tiny else ((1024, 2048, 4096, 8192, 16_384), (64, 128), 16, 16_384)
    for width in widths:
        for n in lengths:
            for causal in (False, True):
                q, k, v = (grid.randn(tokens // n, heads, n, width, grad=True) for _ in range(3))
                counts = functools.partial(
                    _counts, "flash_attention", tokens // n, heads, heads, n, n, width, width, itemsize=q.itemsize, causal=causal
                )
                ours = functools.partial(flash_attention, q, k, v, causal=causal)
                size = f"{tokens // n}x{heads}x{n}x{width}{' causal' if causal else ''}"
                yield from _both(grid, "flash_attention", size, ours, _attention_peers(grid, q, k, v, causal), (q, k, v), counts)


def _attention_peers(grid: Grid, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> dict[str, Run]:
    peers: dict[str, Run] = {}
    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH):
        if backend is SDPBackend.MATH and q.shape[2] > 4096:
            continue  # its table does not fit

        def run(backend=backend):
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

        peers[f"sdpa {backend.name.split('_')[0].lower()}"] = run
    if grid.device == "cuda":
        peers["flex, compiled"] = functools.partial(_flex(), q, k, v, block_mask=_block_mask(q.shape[2]) if causal else None)
    if importlib.util.find_spec("flash_attn"):
        from flash_attn import flash_attn_func

        peers["flash-attn"] = lambda: flash_attn_func(*(x.transpose(1, 2) for x in (q, k, v)), causal=causal).transpose(1, 2)
    if importlib.util.find_spec("fla") and causal:
        from fla.ops.attn.parallel import parallel_attn

        peers["flash-linear-attention"] = lambda: parallel_attn(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2)
    return peers


@functools.cache
def _flex():
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=False)


@functools.cache
def _block_mask(n: int):
    from torch.nn.attention.flex_attention import create_block_mask

    return create_block_mask(lambda b, h, i, j: i >= j, None, None, n, n, device="cuda")


def _alone(grid: Grid, kernel: str, size: str, ours: Run, peers: dict[str, Run], counts: Counts) -> Measured:
    """A contest without a backward pass."""
    return Measured(Contest(kernel, size, ours, peers, tolerance=grid.tolerance), counts)


def _decode(grid: Grid) -> Iterator[Measured]:
    shapes = [(1, 4, 2, 64, 16)] if grid.tiny else [(b, 32, g, m, 128) for g in (32, 8, 1) for b, m in ((1, 131_072), (16, 16_384), (64, 8192))]
    for batch, heads, kv_heads, keys, width in shapes:
        q, k, v = grid.randn(batch, heads, 1, width), grid.randn(batch, kv_heads, keys, width), grid.randn(batch, kv_heads, keys, width)
        peers = {
            "sdpa, enable_gqa": functools.partial(F.scaled_dot_product_attention, q, k, v, enable_gqa=True),
            "sdpa, group as queries": lambda q=q, k=k, v=v: F.scaled_dot_product_attention(
                q.reshape(k.shape[0], k.shape[1], -1, k.shape[3]), k, v
            ).reshape(q.shape),
        }
        counts = _counts("decode_attention", batch, heads, kv_heads, 1, keys, width, width, itemsize=q.itemsize)
        size = f"{batch}x{heads}/{kv_heads}x{keys}x{width}"
        yield _alone(grid, "decode_attention", size, functools.partial(decode_attention, q, k, v), peers, counts)


def _latent(grid: Grid) -> Iterator[Measured]:
    shapes = [(1, 4, 48, 16, 16)] if grid.tiny else [(b, h, m, 512, 64) for h in (16, 128) for b, m in ((1, 131_072), (16, 16_384), (64, 8192))]
    for batch, heads, keys, rank, rope in shapes:
        q, latent = grid.randn(batch, heads, 1, rank + rope), grid.randn(batch, keys, rank + rope)
        scale = (rank / 4 + rope) ** -0.5

        def peer(q=q, latent=latent, rank=rank, scale=scale):
            return F.scaled_dot_product_attention(q.transpose(1, 2), latent[:, None], latent[:, None, :, :rank], scale=scale).transpose(1, 2)

        counts = _counts("latent_decode", batch, heads, 1, keys, rank, rope, itemsize=q.itemsize)
        ours = functools.partial(latent_decode, q, latent, rank, scale=scale)
        yield _alone(grid, "latent_decode", f"{batch}x{heads}x{keys}x{rank}+{rope}", ours, {"sdpa, heads as queries": peer}, counts)


def _attention_pool(grid: Grid) -> Iterator[Measured]:
    shapes = [(2, 2, 1, 24, 16)] if grid.tiny else [(256, 12, m, 1024, 64) for m in (1, 8)] + [(4, 12, 1, 65_536, 64)]
    for sets, heads, queries, tokens, width in shapes:
        q, k, v = grid.randn(heads, queries, width, grad=True), *(grid.randn(sets, heads, tokens, width, grad=True) for _ in range(2))
        peers = {"sdpa": lambda q=q, k=k, v=v: F.scaled_dot_product_attention(q.expand(len(k), -1, -1, -1), k, v)}
        counts = functools.partial(
            _counts, "attention_pool", sets, heads, heads, queries, sets * tokens, width, width, itemsize=q.itemsize
        )
        size = f"{sets}x{heads}x{queries} of {tokens}x{width}"
        yield from _both(grid, "attention_pool", size, functools.partial(attention_pool, q, k, v), peers, (q, k, v), counts)


def _shapes(grid: Grid) -> list[tuple[int, int, int]]:
    return [(2, 24, 16)] if grid.tiny else [(256, 1024, 768), (16, 16_384, 768), (2, 131_072, 768)]


def _statistics(grid: Grid) -> Iterator[Measured]:
    for sets, tokens, dim in _shapes(grid):
        x, w = grid.randn(sets, tokens, dim, grad=True), grid.randn(sets, tokens, 1).softmax(1).requires_grad_()

        def ours(x=x, w=w):
            return torch.cat(statistics_pool(x, w), -1)

        def formula(x=x, w=w):
            mean = (w * x).sum(1)
            return torch.cat([mean, (w * (x - mean[:, None]).square()).sum(1).sqrt()], -1)

        peers = {"the formula": formula, "the formula, compiled": torch.compile(formula)} if grid.device == "cuda" else {"the formula": formula}
        counts = functools.partial(_counts, "statistics_pool", sets, sets * tokens, dim, groups=1, itemsize=x.itemsize)
        yield from _both(grid, "statistics_pool", f"{sets}x{tokens}x{dim}", ours, peers, (x, w), counts)


def _power(grid: Grid) -> Iterator[Measured]:
    for sets, tokens, dim in _shapes(grid):
        x = grid.randn(sets, tokens, dim).abs().add(0.1).requires_grad_()
        p = torch.full((dim,), 3.0, device=grid.device, requires_grad=True)

        def formula(x=x, p=p):
            return x.float().clamp(min=1e-6).pow(p).mean(1).pow(1 / p).to(x.dtype)

        peers = {"the formula": formula, "the formula, compiled": torch.compile(formula)} if grid.device == "cuda" else {"the formula": formula}
        counts = functools.partial(_counts, "power_pool", sets, sets * tokens, dim, itemsize=x.itemsize)
        yield from _both(grid, "power_pool", f"{sets}x{tokens}x{dim}", functools.partial(power_pool, x, p), peers, (x, p), counts)


def _soft(grid: Grid) -> Iterator[Measured]:
    shapes = [(1, 2, 8, 2, 2)] if grid.tiny else [(64, 64, 224, 2, 2), (64, 256, 112, 3, 2)]
    for batch, channels, side, window, stride in shapes:
        x = grid.randn(batch, channels, side, side, grad=True)
        peers = {
            "unfolded": functools.partial(functional.soft_pool2d, x, window, stride, backend="reference"),
            "two average pools": lambda x=x, a=window, b=stride: F.avg_pool2d(x.exp() * x, a, b) / F.avg_pool2d(x.exp(), a, b),
        }
        counts = functools.partial(_counts, "soft_pool2d", batch, channels, side, side, window, stride, itemsize=x.itemsize)
        size = f"{batch}x{channels}x{side}x{side}, {window}/{stride}"
        yield from _both(grid, "soft_pool2d", size, functools.partial(soft_pool2d, x, window, stride), peers, (x,), counts)
