"""What doctor tries: each backend on a tiny problem, and each mechanism's reductions on random numbers."""

import time
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from mhlib.functional.attention import BACKENDS, attention, attention_backends
from mhlib.registry import Mechanism, Reduction, mechanisms

COMPILING = ("flex",)


def backends(compiling: bool = True) -> Iterator[tuple[str, str, bool, str]]:
    """(name, device, whether it works, how long it took or why not) for each backend and kind of device."""
    for device in ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]:
        generator = torch.Generator().manual_seed(0)
        q, k, v = (torch.randn(1, heads, 32, 16, generator=generator).to(device) for heads in (4, 2, 2))
        want = attention(q.double(), k.double(), v.double(), causal=True, backend="reference").float()
        for name in BACKENDS:
            if name in COMPILING and not compiling:
                yield name, device, False, "not tried (--no-compile)"
                continue
            start = time.perf_counter()
            try:
                with torch.inference_mode():
                    got = attention(q, k, v, causal=True, backend=name)
            except Exception as error:  # noqa: BLE001 - whatever goes wrong is the answer
                yield name, device, False, f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
                continue
            off = (got - want).abs().max().item()
            took = f"{time.perf_counter() - start:.1f} s the first time"
            right = off < 1e-2 if device == "cuda" else off < 1e-5
            yield name, device, right, f"{took}, off by {off:.1g}" + ("" if right else ": wrong")


def reductions() -> tuple[int, list[tuple[str, str, str]]]:
    """How many reductions there are, and (mechanism, reduction, why) of those that do not hold here."""
    count, wrong = 0, []
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        for m in mechanisms().values():
            for reduction in m.reductions:
                count += 1
                try:
                    why = _difference(m, reduction)
                except Exception as error:  # noqa: BLE001 - a mechanism that raises does not hold either
                    why = f"{type(error).__name__}: {error}"
                if why:
                    wrong.append((m.name, reduction.text, why))
    return count, wrong


def _difference(m: Mechanism, reduction: Reduction) -> str:
    sides = reduction.build()  # with gradients: some sides are trained first
    if m.kind not in ("head", "pool", "training"):
        return _far(*(side() for side in sides))
    sides = [side.double().eval() if isinstance(side, nn.Module) else side for side in sides]
    dim = next(side.dim for side in sides if hasattr(side, "dim"))
    for call in reduction.calls:
        x = torch.randn(2, 6, dim, dtype=torch.float64)
        with torch.no_grad():
            found = [side(x, **call) for side in sides]
        if why := _far(*found):
            return why
    return ""


def _far(ours: Tensor, reduced: Tensor) -> str:
    """Weights are made in float32, so what was factored there agrees no better than that."""
    off = (ours - reduced).abs().max().item()
    return "" if off <= 1e-5 * max(1.0, reduced.abs().max().item()) else f"off by {off:.2g}"
