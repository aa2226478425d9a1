"""What every head and every pool costs at a few sizes, counted on the meta device at build time: no memory, no measurement."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch.utils.flop_counter import FlopCounterMode

#: Width and heads of a layer, largest context last. The first of each is what a page shows without JavaScript.
HEAD_SIZES = {"4096 wide, 32 heads": (4096, 32), "768 wide, 12 heads": (768, 12), "2048 wide, 16 heads": (2048, 16), "8192 wide, 64 heads": (8192, 64)}
POOL_SIZES = {"768 wide": (768, 12), "64 wide": (64, 4), "4096 wide": (4096, 32)}
CONTEXTS = (8192, 512, 2048, 32768, 131072)
TOKENS = (256, 16, 4096, 65536)
BYTES = 2
HEAD_MEASURES = ("parameters", "FLOPs of a prompt", "FLOPs of a token", "cache bytes", "FLOPs per byte, prompt", "FLOPs per byte, token")
POOL_MEASURES = ("parameters", "FLOPs", "bytes moved", "FLOPs per byte", "numbers out")
#: Options that a constructor asks for, from width and heads.
OPTIONS: dict[str, Callable[[int, int], int | float]] = {
    "num_heads": lambda dim, heads: heads,
    "num_kv_heads": lambda dim, heads: max(1, heads // 4),
    "kv_rank": lambda dim, heads: dim // 8,
    "num_classes": lambda dim, heads: 10,
    "groups": lambda dim, heads: heads,
    "q": lambda dim, heads: 0.9,
    "share": lambda dim, heads: 0.1,
}


@dataclass(frozen=True)
class Counted:
    """A mechanism with the options it was built with at each size, and its measures: numbers[size][context][measure]."""

    mechanism: object
    options: list[str]
    numbers: list[list[list[float]]]


@dataclass(frozen=True)
class Uncounted:
    mechanism: object
    reason: str


def heads(mechanisms) -> Iterator[Counted | Uncounted]:
    chosen = [m for m in mechanisms if m.kind == "head" and hasattr(m.obj, "stage_costs")]
    return (_count(m, HEAD_SIZES, CONTEXTS, _head) for m in chosen)


def pools(mechanisms) -> Iterator[Counted | Uncounted]:
    return (_count(m, POOL_SIZES, TOKENS, _pool) for m in mechanisms if m.kind == "pool")


def _count(mechanism, sizes: dict, lengths: tuple[int, ...], measure: Callable) -> Counted | Uncounted:
    names = _required(mechanism.obj)
    if unknown := [name for name in names if name not in OPTIONS]:
        return Uncounted(mechanism, f"needs {', '.join(unknown)}, for which no size is customary")
    numbers = []
    try:
        for dim, count in sizes.values():
            chosen = {name: OPTIONS[name](dim, count) for name in names}
            with torch.device("meta"):
                layer = mechanism.obj(dim, **chosen).eval().requires_grad_(False)
            numbers.append([measure(layer, length) for length in lengths])
    except Exception as error:  # what one mechanism cannot do must not hide the others, so the page says it
        return Uncounted(mechanism, f"cannot be counted without data: {type(error).__name__}")
    options = [", ".join(f"{name}={OPTIONS[name](*size)}" for name in names if name != "num_heads") for size in sizes.values()]
    return Counted(mechanism, options, numbers)


def _required(cls: type) -> list[str]:
    from mhlib.cli.build import constructor

    parameters = constructor(cls)
    return [name for name, p in parameters.items() if name != "dim" and (p.default is p.empty or name == "num_heads")]


def _head(layer, context: int) -> list[float]:
    from mhlib import cost

    prompt, token = cost.prefill(layer, context), cost.decode(layer, context)
    cache = prompt.cache_bytes_per_token * context
    return [prompt.parameters, prompt.matmul_flops, token.matmul_flops, cache, round(prompt.intensity, 3), round(token.intensity, 3)]


def _pool(layer, tokens: int) -> list[float]:
    for module in layer.modules():
        if hasattr(module, "backend"):
            module.backend = "reference"  # the counter knows nothing of fused attention
    x = torch.empty(1, tokens, layer.dim, device="meta")
    with FlopCounterMode(display=False) as counter:
        y = layer(x)
    parameters = sum(parameter.numel() for parameter in layer.parameters())
    moved = BYTES * (x.numel() + parameters + y.numel())
    flops = counter.get_total_flops()
    return [parameters, flops, moved, round(flops / moved, 3), y.numel()]
