"""Training and evaluation: one loop for all chapters, the same numbers for the same seed."""

import math
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

__all__ = ["Record", "evaluate", "train"]


@dataclass(frozen=True)
class Record:
    """What a training run was like: the loss of every step, and how long it took."""

    losses: tuple[float, ...]
    seconds: float

    @property
    def last(self) -> float:
        """Mean loss of the last tenth of the steps: single steps are noisy."""
        tail = self.losses[-math.ceil(len(self.losses) / 10) :]
        return sum(tail) / len(tail)

    def __repr__(self) -> str:
        return f"Record({len(self.losses)} steps, loss {self.losses[0]:.3f} to {self.last:.3f}, {self.seconds:.1f} s)"


def train(
    model: nn.Module,
    batches: Iterable[Any],
    steps: int,
    *,
    lr: float = 4e-3,
    loss: Callable[[Any], Tensor] | None = None,
    warmup: float = 0.1,
    weight_decay: float = 0.1,
    clip: float = 1.0,
    seed: int = 0,
) -> Record:
    """Train ``model`` in place with AdamW, gradients clipped to the norm ``clip``.

    Args:
        batches: at least ``steps`` batches, such as ``text.batches(4, 65)``; moved to the device of the model.
        lr: the peak of the learning rate. It rises linearly over the first ``warmup`` of the steps, then falls along a
            cosine to zero.
        loss: ``loss(batch)`` gives the scalar to minimise, ``model.loss`` by default.
        weight_decay: of matrices; vectors (norms, biases) are not decayed.
        seed: of what is random inside the model (dropout); the global generator is left as it was.

    Raises:
        ValueError: ``steps`` is not positive, ``batches`` end too early, or the loss is not finite.
    """
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    loss = model.loss if loss is None else loss
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW([group for group in groups if group["params"]], lr=lr, betas=(0.9, 0.95), fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step, steps, warmup))
    device = parameters[0].device
    was_training = model.training
    losses, start = [], time.perf_counter()
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        model.train()
        for step, batch in zip(range(steps), batches):
            value = loss(_to(batch, device))
            if not value.isfinite():
                raise ValueError(f"the loss is {value.item()} at step {step + 1}: try a smaller lr than {lr}")
            optimizer.zero_grad(set_to_none=True)
            value.backward()
            nn.utils.clip_grad_norm_(parameters, clip)
            optimizer.step()
            schedule.step()
            losses.append(value.item())
            _progress(step + 1, steps, losses[-1])
    model.train(was_training)
    if len(losses) < steps:
        raise ValueError(f"batches ended after {len(losses)} of {steps} steps; give an endless iterator or fewer steps")
    return Record(tuple(losses), time.perf_counter() - start)


def _rate(step: int, steps: int, warmup: float) -> float:
    """Factor of the learning rate: up in a line, down along a cosine."""
    rising = max(1, round(warmup * steps))
    if step < rising:
        return (step + 1) / rising
    return 0.5 * (1 + math.cos(math.pi * (step - rising) / max(1, steps - rising)))


def _to(batch: Any, device: torch.device) -> Any:
    if isinstance(batch, Tensor):
        return batch.to(device)
    if isinstance(batch, (tuple, list)):
        return type(batch)(_to(item, device) for item in batch)
    return batch


def _progress(step: int, steps: int, loss: float) -> None:
    """A line that rewrites itself, for someone who watches a terminal; nothing in notebooks, files and tests."""
    if sys.stderr.isatty() and (step == steps or step % 10 == 0):
        end = "\n" if step == steps else ""
        print(f"\rstep {step}/{steps}, loss {loss:.3f}", end=end, file=sys.stderr, flush=True)


@torch.no_grad()
def evaluate(model: nn.Module, ids: Int[Tensor, " tokens"], *, length: int = 64, batch: int = 32) -> float:
    """Mean loss in nats per token over the whole of ``ids``, cut into excerpts that guess ``length`` tokens each.

    Dropout is off. The excerpts follow one another without overlap, and what is left over at the end is not used, so the
    number is the same each time. exp of it is the perplexity.
    """
    count = (len(ids) - 1) // length
    if count < 1:
        raise ValueError(f"an excerpt takes length + 1 = {length + 1} tokens, got {len(ids)} tokens")
    device = next(model.parameters()).device
    excerpts = ids[: count * length + 1].unfold(0, length + 1, length)
    was_training = model.training
    model.eval()
    total = sum(model.loss(part.to(device)).item() * len(part) for part in excerpts.split(batch))
    model.train(was_training)
    return total / count
